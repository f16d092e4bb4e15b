"""Calls that are seen from both ends (``metadata.nested_in``) are counted once, and no failure is hidden.

Each case is what was sent, in order, and the calls that the views show. All that count calls say the same:
``tool_calls``, ``failed_tool_calls``, ``corrections``, ``sessions`` and the service's list of sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

import db.ledger
import db.sessions
from app.trace.node import action_node_id
from db.pool import Pool
from tests.support.rows import Maker, register_tenant, started_chain
from tests.support.view_rows import SESSION, Json, by, fragment, node, node_id, send, view


class Sent(msgspec.Struct, frozen=True):
    """One record: its nodes, the agent whose chain it stands in, who posted it, its session."""

    nodes: Sequence[Json]
    agent: str = "agent-1"
    actor: str = "exporter"
    session: UUID = SESSION


def outer(status: str | None = "failed", **members: Any) -> Json:
    """The call that others say they are the inner end of."""
    return node("outer", status=status, **{"name": "search", **members})


def inner(status: str | None = "failed", mark: Any = None, **members: Any) -> Json:
    """A call that says so."""
    metadata = {"nested_in": node_id("outer") if mark is None else mark}
    return node("inner", "outer", status=status, **{"name": "search", "metadata": metadata, **members})


ELSEWHERE = uuid4()
BOTH = ["inner", "outer"]
CASES: dict[str, tuple[list[Sent], list[str]]] = {
    "in one record": ([Sent([outer(), inner()])], ["outer"]),
    "the inner one first": ([Sent([inner(), outer()])], ["outer"]),
    "in two records of a chain": ([Sent([outer()]), Sent([inner()])], ["outer"]),
    "the inner one's record first": ([Sent([inner()]), Sent([outer()])], ["outer"]),
    "the id in upper case": ([Sent([outer(), inner(mark=node_id("outer").upper())])], ["outer"]),
    "without a status of the inner one": ([Sent([outer("failed"), inner(None)])], ["outer"]),
    "the inner one succeeded": ([Sent([outer("failed"), inner("success")])], ["outer"]),
    "the same status": ([Sent([outer("denied")]), Sent([inner("denied")])], ["outer"]),
    "the agent itself posted both": (
        [Sent([outer()], actor="agent-1"), Sent([inner()], actor="agent-1")],
        ["outer"],
    ),
    "two posters in one chain": ([Sent([outer()], actor="agent-1"), Sent([inner()])], ["outer"]),
    "two chains, one poster": ([Sent([outer()]), Sent([inner()], "agent-2")], ["outer"]),
    "two chains, the inner one first": ([Sent([inner()], "agent-2"), Sent([outer()])], ["outer"]),
    "the outer one names itself": (
        [Sent([outer(metadata={"nested_in": node_id("outer")}), inner()])], ["outer"],
    ),
    "the outer one was sent again": ([Sent([outer("success")]), Sent([inner()]), Sent([outer()])], ["outer"]),
    # --- and these stand as calls of their own
    "the outer one is itself marked": (
        [Sent([outer(metadata={"nested_in": node_id("outermost")}), inner()])], BOTH,
    ),
    "the outer one is itself marked, in another record": (
        [Sent([outer(metadata={"nested_in": node_id("outermost")})]), Sent([inner()])], BOTH,
    ),
    "two that name each other": ([Sent([outer(metadata={"nested_in": node_id("inner")}), inner()])], BOTH),
    "two that name each other, apart": (
        [Sent([outer(metadata={"nested_in": node_id("inner")})]), Sent([inner()])], BOTH,
    ),
    "the outer one is missing": ([Sent([inner()])], ["inner"]),
    "the outer one is missing among others": ([Sent([inner()]), Sent([node("x", status="failed")])],
                                              ["inner", "x"]),
    "the outer one in another session": ([Sent([outer()], session=ELSEWHERE), Sent([inner()])], ["inner"]),
    "the outer one did not fail": ([Sent([outer("success"), inner("failed")])], BOTH),
    "the outer one did not fail, in another record": ([Sent([outer("success")]), Sent([inner()])], BOTH),
    "the outer one says nothing": ([Sent([outer(None)]), Sent([inner("failed")])], BOTH),
    "another bad status": ([Sent([outer("denied"), inner("failed")])], BOTH),
    "the outer one's last word is success": ([Sent([outer()]), Sent([inner()]), Sent([outer("success")])],
                                             BOTH),
    "another tool": ([Sent([outer(name="fetch"), inner()])], BOTH),
    "another tool in another record": ([Sent([outer(name="fetch")]), Sent([inner()])], BOTH),
    "the outer one is no call": ([Sent([outer(node_type="AGENT"), inner()])], ["inner"]),
    "the outer one is no call, in another record": ([Sent([outer(node_type="AGENT")]), Sent([inner()])],
                                                    ["inner"]),
    "the outer one is no call any more": (
        [Sent([outer()]), Sent([inner()]), Sent([outer(node_type="AGENT")])],
        ["inner"],
    ),
    "marked with itself": ([Sent([outer(metadata={"nested_in": node_id("outer")})])], ["outer"]),
    "marked with itself, and sent twice": (
        [Sent([outer(metadata={"nested_in": node_id("outer").upper()})])] * 2,
        ["outer"],
    ),
    "marked with true": ([Sent([outer(), inner(mark=True)])], BOTH),
    "marked with an object": ([Sent([outer(), inner(mark={"node_id": node_id("outer")})])], BOTH),
    "marked with no UUID": ([Sent([outer(), inner(mark="outer")])], BOTH),
    "the agents posted them, each its own": (
        [Sent([outer()], actor="agent-1"), Sent([inner()], "agent-2", actor="agent-2")],
        BOTH,
    ),
    "an agent posted both": (
        [Sent([outer()], actor="agent-1"), Sent([inner()], "agent-2", actor="agent-1")],
        BOTH,
    ),
    "the other agent posted both": (
        [Sent([outer()], actor="agent-2"), Sent([inner()], "agent-2", actor="agent-2")],
        BOTH,
    ),
    "two keys posted them": ([Sent([outer()]), Sent([inner()], "agent-2", actor="another")], BOTH),
    "two chains, the outer one did not fail": ([Sent([outer("success")]), Sent([inner()], "agent-2")], BOTH),
}  # fmt: skip


async def test_a_call_seen_from_both_ends_counts_once_and_no_failure_is_hidden(
    pool: Pool, subtests: pytest.Subtests
) -> None:
    """Each case is a tenant of its own."""
    for number, (case, (sent, expected)) in enumerate(CASES.items()):
        with subtests.test(case=case):
            tenant = await register_tenant(pool, f"tenant-{number}")
            makers = {name: await started_chain(pool, tenant, name) for name in ("agent-1", "agent-2")}
            for one in sent:
                await send(pool, makers[one.agent], *one.nodes, session=one.session, actor=one.actor)
            assert await calls(pool, tenant) == sorted(node_id(name) for name in expected)
            everything = {row["node_id"] for row in await view(pool, tenant, "trace_nodes")}
            assert everything == {made["node_id"] for one in sent for made in one.nodes}
            assert {row["node_id"] for row in await view(pool, tenant, "session_paths")} == everything


async def calls(pool: Pool, tenant: UUID) -> list[str]:
    """The calls of the session, which all who count them agree on."""
    rows = await view(pool, tenant, "tool_calls", "session_id = $1", SESSION)
    failed = await view(pool, tenant, "failed_tool_calls", "session_id = $1", SESSION)
    of_calls = [row for row in rows if row["status"] == "failed"]
    assert by(failed, "log_uuid", "seq", "position") == by(of_calls, "log_uuid", "seq", "position")
    counts = len(rows), len(failed)
    [session] = await view(pool, tenant, "sessions", "session_id = $1", SESSION)
    assert (session["tool_calls"], session["failed_tool_calls"]) == counts
    [entry] = await db.sessions.entries(pool, tenant, [SESSION])
    assert (entry.tool_calls, entry.failed_tool_calls) == counts
    return sorted(row["node_id"] for row in rows)


async def test_what_the_guard_wrote_is_an_outer_end_whatever_was_posted_under_its_id(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    action = str(action_node_id(maker.log_uuid, "act-1"))
    guarded = outer("failed") | {"node_id": action}
    denied = {**fragment(guarded), "action_id": "act-1", "reason": {}}
    paint = outer("success") | {"node_id": action}
    await send(pool, maker, paint)
    await db.ledger.append(pool, [maker.row("action_denied", denied)])
    await send(pool, maker, paint)
    await send(pool, maker, inner(mark=action))
    assert await calls(pool, tenant) == [action]


async def test_a_correction_is_no_inner_end_of_another_call(pool: Pool, tenant: UUID, maker: Maker) -> None:
    """A retry that another layer saw too is one correction."""
    again = {"name": "search", "status": "success"}
    await send(pool, maker, node("f", "root", status="failed", name="search"))
    await send(pool, maker, node("retry", "root", **again))
    await send(pool, maker, node("seen", "root", metadata={"nested_in": node_id("retry")}, **again))
    await send(pool, maker, node("own", "root", metadata={"nested_in": node_id("gone")}, **again))
    found = [row["correction_node_id"] for row in await view(pool, tenant, "corrections")]
    assert sorted(found) == sorted(map(node_id, ("retry", "own")))
