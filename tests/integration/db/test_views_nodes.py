"""The views over trace trees: which sending counts, whose word counts, and how trees hang together."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

import db.ledger
from app.trace.node import action_node_id
from db.pool import Connection, Pool, tenant_transaction
from tests.support.rows import EPOCH, NOW, Maker, register_tenant, started_chain
from tests.support.view_rows import SESSION, Json, by, fragment, names, node, node_id, send, view

CLASSIC = """
    SELECT session_id, created_at
    FROM trails.agent_audit_trails,
         jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
    WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed'
"""
"""The classic auditor's query, as it is written down in the design."""


@pytest.fixture
async def other(pool: Pool, tenant: UUID) -> Maker:
    """Another chain of the same tenant."""
    return await started_chain(pool, tenant, "agent-2")


async def alone(pool: Pool, number: int, sent: Json, *, name: str = "trace_nodes") -> Json:
    """The row of a view that tells of a node, which is the only one of a new tenant."""
    tenant = await register_tenant(pool, f"tenant-{number}")
    await send(pool, await started_chain(pool, tenant), sent)
    [row] = await view(pool, tenant, name)
    return row


async def classic(pool: Pool, tenant: UUID) -> list[tuple[UUID, datetime]]:
    async with tenant_transaction(pool, tenant) as connection:
        return sorted((row[0], row[1]) for row in await connection.fetch(CLASSIC))


# --- which sending counts -------------------------------------------------------------------------------


async def test_a_later_sending_replaces_an_earlier_one_of_its_chain(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    await send(pool, maker, node("a", status="failed"), node("b", status="failed"))
    await send(pool, maker, node("a", status="success"))
    await send(pool, maker, node("c", status="success"))
    await send(pool, maker, node("c", status="failed"))
    rows = by(await view(pool, tenant, "trace_nodes"), "name")
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "success",
        "b": "failed",
        "c": "failed",
    }
    for name in ("trace_nodes", "session_paths"):
        found = by(await view(pool, tenant, name), "name")
        assert {key: row["sendings"] for key, row in found.items()} == {"a": 2, "b": 1, "c": 2}
    assert rows["a"]["seq"] == rows["b"]["seq"] + 1
    assert names(await view(pool, tenant, "failed_tool_calls")) == ["b", "c"]


async def test_ids_are_compared_as_uuids_are(pool: Pool, tenant: UUID, maker: Maker) -> None:
    await send(pool, maker, {**node("a", status="failed"), "node_id": node_id("a").upper()})
    await send(pool, maker, node("a", status="success"))
    assert await view(pool, tenant, "failed_tool_calls") == []
    [row] = await view(pool, tenant, "trace_nodes")
    assert row["node_id"] == node_id("a")


async def test_two_chains_that_send_one_node_give_two_rows(
    pool: Pool, tenant: UUID, maker: Maker, other: Maker
) -> None:
    await send(pool, maker, node("a", status="failed"))
    await send(pool, other, node("a", status="success"))
    rows = by(await view(pool, tenant, "trace_nodes"), "agent_id")
    assert {agent: row["status"] for agent, row in rows.items()} == {
        "agent-1": "failed",
        "agent-2": "success",
    }
    assert names(await view(pool, tenant, "failed_tool_calls")) == ["a"]


async def test_the_same_node_in_another_session_is_another_node(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    elsewhere = uuid4()
    await send(pool, maker, node("a", status="failed"))
    await send(pool, maker, node("a", status="success"), session=elsewhere)
    rows = by(await view(pool, tenant, "trace_nodes"), "session_id")
    assert {session: row["status"] for session, row in rows.items()} == {
        SESSION: "failed",
        elsewhere: "success",
    }


@pytest.mark.parametrize("painted_first", [True, False])
async def test_an_agent_cannot_paint_over_what_the_guard_recorded(
    pool: Pool, tenant: UUID, maker: Maker, painted_first: bool
) -> None:
    """The id of a guarded action's node is known to the agent; its own node of that id does not count."""
    guarded = node("mail", status="failed") | {"node_id": str(action_node_id(maker.log_uuid, "act-1"))}
    paint = {**guarded, "outputs": {"status": "success"}}
    outcome = {**fragment(guarded), "action_id": "act-1", "status": "failure", "detail": "bounced"}
    if painted_first:
        await send(pool, maker, paint)
    await db.ledger.append(pool, [maker.row("outcome", outcome)])
    if not painted_first:
        await send(pool, maker, paint)
    for name in ("trace_nodes", "tool_calls", "failed_tool_calls", "session_paths"):
        [row] = await view(pool, tenant, name)
        assert row["status"] == "failed", name
        assert row["log_uuid"] == maker.log_uuid
    [call] = await view(pool, tenant, "tool_calls")
    assert (call["kind"], call["action_id"]) == ("outcome", "act-1")
    [session] = await view(pool, tenant, "sessions")
    assert (session["nodes"], session["failed_tool_calls"]) == (1, 1)


async def test_an_outcome_that_knows_replaces_the_unknown_one(pool: Pool, tenant: UUID, maker: Maker) -> None:
    for status, said in (("unknown", "unknown"), ("failed", "failure")):
        guarded = node("mail", status=status) | {"node_id": str(action_node_id(maker.log_uuid, "act-1"))}
        outcome = {**fragment(guarded), "action_id": "act-1", "status": said, "detail": ""}
        await db.ledger.append(pool, [maker.row("outcome", outcome)])
        [row] = await view(pool, tenant, "tool_calls")
        assert row["status"] == status
    assert names(await view(pool, tenant, "failed_tool_calls")) == ["mail"]


async def test_the_classic_query_and_the_view_agree_where_nothing_was_sent_again(
    pool: Pool, tenant: UUID, maker: Maker, other: Maker
) -> None:
    for number in range(12):
        session = UUID(int=SESSION.int + number)
        chain = maker if number % 3 else other
        nodes = [
            node(f"{number}-{place}", status=("failed" if (number + place) % 4 == 0 else "success"))
            for place in range(5)
        ]
        await send(pool, chain, *nodes, node("plan", None, "PLANNING", status="failed"), session=session)
    refused = fragment(node("held", status="denied"))
    await db.ledger.append(
        pool, [maker.row("action_denied", {**refused, "action_id": "act-1", "reason": {}})]
    )
    found = sorted((r["session_id"], r["recorded_at"]) for r in await view(pool, tenant, "failed_tool_calls"))
    assert found == await classic(pool, tenant)
    assert len(found) == 15


# --- what a row says ------------------------------------------------------------------------------------


async def test_a_row_says_what_its_node_says(pool: Pool, tenant: UUID, maker: Maker) -> None:
    metadata = {
        "timestamp": "2026-09-30T10:27:35.4230319+02:00",
        "duration_ms": 1500.5,
        "model": "m-1",
        "tokens": {"prompt": 3_000_000_000, "completion": 20},
        "cost": 0.25,
    }
    sent = node(
        "search",
        "plan",
        inputs=["q"],
        thought_process="why",
        outputs={"status": "failed", "error": {"type": "E", "message": "no"}},
        metadata=metadata,
    )
    record = await send(pool, maker, node("plan", None, "PLANNING"), sent)
    [row] = await view(pool, tenant, "tool_calls")
    started = datetime(2026, 9, 30, 8, 27, 35, 423031, tzinfo=UTC)
    expected = {
        "tool": "search",
        "parent_id": node_id("plan"),
        "status": "failed",
        "error": "no",
        "thought_process": "why",
        "inputs": '["q"]',
        "started_at": started,
        "ended_at": started + timedelta(milliseconds=1500.5),
        "model": "m-1",
        "input_tokens": 3_000_000_000,
        "output_tokens": 20,
        "total_tokens": 3_000_000_020,
        "recorded_at": record.created_at,
        "clock_skew": started - record.created_at,
        "position": 2,
        "kind": "trace",
        "action_id": None,
        "seq": record.seq,
        "hash": record.hash,
        "record_id": int(record.hash[:16], 16) >> 1,
    }
    assert {name: row[name] for name in expected} == expected
    assert (float(row["cost"]), float(row["duration_ms"])) == (0.25, 1500.5)


TOKENS: list[tuple[Any, tuple[int | None, ...]]] = [
    (7, (None, None, 7)),
    ({"input": 1, "output": 2}, (1, 2, 3)),
    ({"input_tokens": 1, "output_tokens": 2, "total": 9}, (1, 2, 9)),
    ({"prompt_tokens": 1, "total_tokens": 5}, (1, None, 5)),
    ({"completion": 2}, (None, 2, 2)),
    ({"input": 2**63 - 1}, (2**63 - 1, None, 2**63 - 1)),
    ({"input": 2**63 - 1, "output": 1}, (2**63 - 1, 1, None)),
    ({"input": 2**63, "output": -1}, (None, None, None)),
    ({"input": 1.5, "output": "2"}, (None, None, None)),
    ("7", (None, None, None)),
    ([7], (None, None, None)),
    (None, (None, None, None)),
]


async def test_p31_tokens_are_whole_numbers_of_64_bits_or_nothing(
    pool: Pool, subtests: pytest.Subtests
) -> None:
    for number, (tokens, expected) in enumerate(TOKENS):
        with subtests.test(tokens=tokens):
            row = await alone(pool, number, node("a", metadata={"tokens": tokens}))
            assert (row["input_tokens"], row["output_tokens"], row["total_tokens"]) == expected


async def test_p31_sums_go_beyond_64_bits(pool: Pool, tenant: UUID, maker: Maker) -> None:
    most = {"tokens": {"input": 2**63 - 1, "output": 3_000_000_000}, "cost": 10**12}
    await send(pool, maker, *(node(name, metadata=most) for name in "abc"))
    [row] = await view(pool, tenant, "sessions")
    assert row["input_tokens"] == 3 * (2**63 - 1)
    assert row["output_tokens"] == 9_000_000_000
    assert row["cost"] == 3 * 10**12


OUTPUTS: list[tuple[Any, str | None]] = [
    ({"status": "failed", "error": {"message": "m"}, "detail": "d"}, "m"),
    ({"status": "failed", "error": "e"}, "e"),
    ({"status": "failed", "error": {"code": 5}}, '{"code": 5}'),
    ({"status": "failed", "detail": "d"}, "d"),
    ({"status": "denied", "detail": "", "reason": {"code": "rate_limited"}}, "rate_limited"),
    ({"status": "denied", "reason": "no"}, "no"),
    ({"status": "success", "detail": "fine"}, None),
    ({"status": "failed"}, None),
    ("failed", None),
]


async def test_the_error_is_what_the_outputs_say(pool: Pool, subtests: pytest.Subtests) -> None:
    for number, (outputs, error) in enumerate(OUTPUTS):
        with subtests.test(outputs=outputs):
            row = await alone(pool, number, node("a", outputs=outputs), name="tool_calls")
            assert row["error"] == error


SENT_TIMES: list[tuple[Json, int | None, int | None]] = [
    ({"start_time_unix_nano": "1790000000123456789"}, 1_790_000_000_123_456, None),
    ({"start_time_unix_nano": 1790000000123456999}, 1_790_000_000_123_456, None),
    ({"start_time_unix_nano": "1000000001", "end_time_unix_nano": "2000000000"}, 1_000_000, 2_000_000),
    ({"timestamp": "1970-01-01T00:00:01Z", "start_time_unix_nano": "5000000000"}, 1_000_000, None),
    ({"timestamp": "yesterday", "start_time_unix_nano": "5000000000"}, 5_000_000, None),
    ({"start_time_unix_nano": "253402300799999999999"}, 253_402_300_799_999_999, None),
    ({"start_time_unix_nano": "253402300800000000000"}, None, None),
    ({"start_time_unix_nano": "0", "end_time_unix_nano": -5}, None, None),
    ({"timestamp": "1970-01-01T00:00:01Z", "duration_ms": 1e300}, 1_000_000, None),
    ({"timestamp": "1970-01-01T00:00:01Z", "duration_ms": -1}, 1_000_000, None),
    ({"timestamp": "1970-01-01T00:00:01Z", "duration_ms": "5"}, 1_000_000, None),
    ({"timestamp": "1970-01-01T00:00:01Z", "duration_ms": 1e-320}, 1_000_000, 1_000_000),
    ({"timestamp": "9999-12-31T23:59:59Z", "duration_ms": 2000}, 253_402_300_799_000_000, None),
    ({"timestamp": 5}, None, None),
]
"""What a sender's metadata say, and the microseconds of start and end that they mean."""


async def test_times_of_the_sender_are_read_exactly_or_not_at_all(
    pool: Pool, subtests: pytest.Subtests
) -> None:
    for number, (metadata, *expected) in enumerate(SENT_TIMES):
        with subtests.test(metadata=metadata):
            row = await alone(pool, number, node("a", metadata=metadata))
            wanted = [None if us is None else EPOCH + timedelta(microseconds=us) for us in expected]
            assert [row["started_at"], row["ended_at"]] == wanted


@pytest.mark.parametrize(
    ("offset", "skewed"),
    [
        (timedelta(0), False),
        (timedelta(minutes=5), False),
        (timedelta(minutes=5, microseconds=1), True),
        (-timedelta(days=1), False),
        (-timedelta(days=1, microseconds=1), True),
        (timedelta(days=27_000), True),
    ],
)
async def test_t13_a_senders_clock_that_is_far_off_is_flagged(
    pool: Pool, tenant: UUID, maker: Maker, offset: timedelta, skewed: bool
) -> None:
    """The record's own time is the server's, and stands beside what the sender says."""
    at = NOW + timedelta(seconds=3)
    told = (at + offset).isoformat()
    record = await send(pool, maker, node("a", metadata={"timestamp": told}))
    [row] = await view(pool, tenant, "trace_nodes")
    assert record.created_at == at == row["recorded_at"]
    assert row["clock_skew"] == offset
    assert row["clock_skewed"] is skewed


# --- trees ----------------------------------------------------------------------------------------------


async def test_paths_lead_from_the_root_over_all_agents(
    pool: Pool, tenant: UUID, maker: Maker, other: Maker
) -> None:
    await send(pool, other, node("call", "plan", status="failed"))  # before its parent
    await send(pool, maker, node("root", None, "AGENT"), node("plan", "root", "PLANNING"))
    await send(pool, maker, node("lost", "nowhere"), node("below", "lost"))
    rows = by(await view(pool, tenant, "session_paths"), "name")
    assert {name: row["names"] for name, row in rows.items()} == {
        "root": ["root"],
        "plan": ["root", "plan"],
        "call": ["root", "plan", "call"],
        "lost": ["lost"],
        "below": ["lost", "below"],
    }
    assert {name: row["depth"] for name, row in rows.items()} == {
        "root": 1, "plan": 2, "call": 3, "lost": 1, "below": 2,
    }  # fmt: skip
    assert rows["call"]["path"] == [node_id(name) for name in ("root", "plan", "call")]
    assert rows["call"]["root_id"] == node_id("root")
    assert [name for name, row in rows.items() if row["orphan"]] == ["lost"]
    assert not any(row["cyclic"] for row in rows.values())
    [session] = await view(pool, tenant, "sessions")
    assert (session["depth"], session["orphans"], session["nodes"]) == (3, 1, 5)
    assert session["agents"] == ["agent-1", "agent-2"]


async def test_a_cycle_across_fragments_ends(pool: Pool, tenant: UUID, maker: Maker) -> None:
    await send(pool, maker, node("root"), node("a", "c"), node("self", "self"))
    await send(pool, maker, node("b", "a"), node("c", "b"), node("below", "c"))
    rows = by(await view(pool, tenant, "session_paths"), "name")
    assert {name for name, row in rows.items() if row["cyclic"]} == {"a", "b", "c", "below", "self"}
    for name in ("a", "below", "self"):
        assert (rows[name]["depth"], rows[name]["path"], rows[name]["root_id"]) == (None, None, None)
    [session] = await view(pool, tenant, "sessions")
    assert (session["nodes"], session["depth"], session["orphans"]) == (6, 1, 0)


async def test_a_parent_that_two_chains_sent_is_that_of_the_childs_chain(
    pool: Pool, tenant: UUID, maker: Maker, other: Maker
) -> None:
    await send(pool, maker, node("p", name="mine"))
    await send(pool, other, node("p", name="theirs"), node("c", "p"))
    await send(pool, maker, node("d", "p"))
    rows = by(await view(pool, tenant, "session_paths"), "name")
    assert rows["c"]["names"] == ["theirs", "c"]
    assert rows["d"]["names"] == ["mine", "d"]


async def test_a_deep_tree_has_its_exact_depth_and_the_last_steps_of_its_path(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    deep = 2_000
    nodes = [node(f"n{i}", f"n{i - 1}" if i else None) for i in range(deep)]
    await send(pool, maker, *reversed(nodes))
    rows = by(await view(pool, tenant, "session_paths"), "name")
    for place in (0, 126, 127, 128, deep - 1):
        row = rows[f"n{place}"]
        assert row["depth"] == place + 1
        steps = [f"n{i}" for i in range(max(0, place - 127), place + 1)]
        assert (row["names"], row["path"]) == (steps, [node_id(step) for step in steps])
        assert row["root_id"] == node_id("n0")


async def test_sessions_sum_up(pool: Pool, tenant: UUID, maker: Maker, other: Maker) -> None:
    first = await send(
        pool,
        maker,
        node("agent", None, "AGENT", metadata={"tokens": {"input": 10, "output": 4}, "cost": 3}),
        node("llm", "agent", "LLM_CALL", metadata={"tokens": {"input": 10, "output": 4}, "cost": 3}),
    )
    last = await send(pool, maker, node("call", "agent", status="failed"), node("out", "agent", "OUTPUT"))
    alone = uuid4()
    await send(pool, other, node("a", None, "AGENT", metadata={"tokens": 5, "cost": 1}), session=alone)
    rows = by(await view(pool, tenant, "sessions"), "session_id")
    assert set(rows) == {SESSION, alone}  # a chain's own records without a session are none
    row = rows[SESSION]
    assert (row["input_tokens"], row["output_tokens"], row["total_tokens"], row["cost"]) == (10, 4, 14, 3)
    assert (row["records"], row["nodes"], row["tool_calls"], row["failed_tool_calls"]) == (2, 4, 1, 1)
    assert (row["first_recorded_at"], row["last_recorded_at"]) == (first.created_at, last.created_at)
    assert row["has_output"] is True
    assert (rows[alone]["total_tokens"], rows[alone]["cost"], rows[alone]["has_output"]) == (5, 1, False)


async def test_corrections_are_below_the_failed_call_or_later_beside_it(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    await send(
        pool,
        maker,
        node("root", None, "AGENT"),
        node("before", "root", "SELF_CORRECTION"),
        node("f", "root", status="failed", name="search"),
        node("think", "f", "SELF_CORRECTION"),
        node("again", "root", status="success", name="search"),
        node("unrelated", "root", status="success", name="mail"),
        node("elsewhere", "again", "SELF_CORRECTION"),
    )
    await send(pool, maker, node("late", "root", "SELF_CORRECTION"))
    rows = by(await view(pool, tenant, "corrections"), "correction_node_id")
    assert {key: row["relation"] for key, row in rows.items()} == {
        node_id("think"): "child",
        node_id("again"): "sibling",
        node_id("late"): "sibling",
    }
    again = rows[node_id("again")]
    assert (again["failed_node_id"], again["tool"]) == (node_id("f"), "search")
    assert (again["correction_type"], again["correction_status"]) == ("TOOL_CALL", "success")


async def test_of_two_times_of_the_sender_the_later_one_is_the_correction(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    """Spans arrive when they end: the order of records is not that of the calls."""
    at = "2026-09-30T08:00:0{}Z"
    retry = node("retry", "root", status="success", name="t", metadata={"timestamp": at.format(2)})
    early = node("early", "root", status="success", name="t", metadata={"timestamp": at.format(0)})
    await send(pool, maker, retry)
    await send(
        pool, maker, node("f", "root", status="failed", name="t", metadata={"timestamp": at.format(1)})
    )
    await send(pool, maker, early)
    rows = await view(pool, tenant, "corrections")
    assert [row["correction_node_id"] for row in rows] == [node_id("retry")]


# --- plans ----------------------------------------------------------------------------------------------


async def plan(connection: Connection, query: str, *arguments: Any) -> str:
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (VERBOSE) {query}", *arguments))


async def test_p27_failed_tool_calls_reads_the_partial_index_and_there_is_no_gin(
    pool: Pool, tenant: UUID, maker: Maker, admin: asyncpg.Connection
) -> None:
    for number in range(200):
        await db.ledger.append(
            pool,
            [
                maker.row("trace", fragment(node("a", status="failed" if number % 100 == 0 else "success"),
                                            session=UUID(int=number + 1)))
            ],
        )  # fmt: skip
    await admin.execute("ANALYZE trails.agent_audit_trails")
    kinds = await admin.fetch(
        "SELECT DISTINCT am.amname FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid"
        " JOIN pg_namespace AS n ON n.oid = i.relnamespace JOIN pg_am AS am ON am.oid = i.relam"
        " WHERE n.nspname = 'trails'"
    )
    assert [row[0] for row in kinds] == ["btree"]
    queries = {
        "SELECT tool, error FROM trails.failed_tool_calls": "trail_failed_tool_calls",
        "SELECT tool FROM trails.failed_tool_calls WHERE recorded_at > '2026-01-01'": "trail_failed_tool",
        f"SELECT name FROM trails.trace_nodes WHERE session_id = '{SESSION}'": "trail_sessions",
        f"SELECT depth FROM trails.session_paths WHERE session_id = '{SESSION}'": "trail_sessions",
        f"SELECT depth FROM trails.sessions WHERE session_id = '{SESSION}'": "trail_sessions",
    }
    for query, index in queries.items():
        async with tenant_transaction(pool, tenant) as connection:
            await connection.execute("SET LOCAL enable_seqscan = off")  # the table is small
            found = await plan(connection, query)
        assert index in found, f"{query}\n{found}"
        assert not re.search(r"_v[0-9]+\(\)", found), f"a function is not inlined: {found}"


PARALLEL = (
    "parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0",
    "min_parallel_index_scan_size = 0", "parallel_leader_participation = off",
)  # fmt: skip


@pytest.mark.parametrize("name", ["trace_nodes", "tool_calls", "model_usage"])
async def test_several_processes_may_read_the_nodes_and_they_show_the_same(
    pool: Pool, tenant: UUID, maker: Maker, admin: asyncpg.Connection, name: str
) -> None:
    """Nothing in the views keeps a month of trees in one process.

    The sub-select is like the one in the policy of SQL logins.
    """
    one_tenant = "(SELECT min(a.tenant_id::text)::uuid FROM trails.agents AS a)"
    asked = f"SELECT * FROM trails.{name} WHERE tenant_id = {one_tenant}"
    told = {"model": "m", "tokens": {"input": 3, "output": 2}, "cost": 1}
    for number in range(20):
        agent = node(f"agent-{number % 3}", None, "AGENT", metadata=told)
        inner = node(f"inner-{number}", metadata={"nested_in": node_id(f"call-{number}")}, name="t")
        call = node(f"call-{number}", name="t", status="failed", metadata=told if number % 2 else {})
        await send(pool, maker, agent, call, inner, session=UUID(int=number // 2 + 1))
    await admin.execute("ANALYZE trails.agent_audit_trails")
    rows = []
    for settings in ((), PARALLEL):
        async with tenant_transaction(pool, tenant) as connection:
            for setting in settings:
                await connection.execute(f"SET LOCAL {setting}")
            if settings:
                assert re.search(
                    r"Parallel .* on trails.agent_audit_trails t\b", await plan(connection, asked)
                )
            else:
                await connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            rows.append(sorted(repr(row) for row in await connection.fetch(asked)))
    assert rows[0] == rows[1] != []
