"""The assembled tree and the views say the same of whatever was sent, by whichever agents, in any order.

Fragments are posted behind the HTTP routes, so that nodes come malformed, too, and cycles run across
fragments; guarded actions add nodes of their own, and agents post under their ids. Which calls are seen from
both ends is worked out here a second time, from the tree and the rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import db.sessions
from app.chain.record import Draft
from app.guard.kinds import TRACE
from app.ledger import Ledger
from app.ledger.post import Entry
from app.ledger.session_reading import EVER, FIRST
from app.moment import to_microseconds
from app.principal import Permission
from app.trace.node import action_node_id, is_uuid
from app.trace.tree import GUARD_KINDS, Sending, Source, Tree, TreeNode, assemble, sendings_of
from db.ledger import TrailRow
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import MASTER_KEY, Caller, SetClock
from tests.support.postgres import Database

NODES = """SELECT log_uuid, node_id, parent_id, node_type, name, status, started_at, seq, hash, agent_id
             FROM trails.trace_nodes WHERE session_id = $1"""
CALLS = "SELECT log_uuid, node_id FROM trails.tool_calls WHERE session_id = $1"
FAILED = "SELECT log_uuid, node_id FROM trails.failed_tool_calls WHERE session_id = $1"
COUNTS = "SELECT tool_calls, failed_tool_calls FROM trails.sessions WHERE session_id = $1"
PATHS = """SELECT log_uuid, node_id, depth, orphan, cyclic, sendings
             FROM trails.session_paths WHERE session_id = $1"""

ids = st.integers(0, 6)
times = st.sampled_from(
    ["2026-01-01T00:00:01Z", "2026-01-01T01:00:00.1234567+01:00", "2026-02-30T00:00:00Z", "now", 7, None]
)
nanos = st.sampled_from(["1767225601000001999", 1767225601000001999, "0", "-1", "x", "9" * 21, True, None])
marks = st.integers(0, 4) | st.sampled_from(["action", "ACTION", "x", True, None])
metadatas = st.none() | st.fixed_dictionaries(
    {}, optional={"timestamp": times, "start_time_unix_nano": nanos, "nested_in": marks}
)
nodes = st.fixed_dictionaries(
    {
        "number": ids,
        "parent": st.none() | st.integers(0, 8) | st.just("action"),
        "node_type": st.sampled_from(["TOOL_CALL", "TOOL_CALL", "PLANNING", "AGENT"]),
        "name": st.sampled_from(["a", "a", "search", "ü\\n"]),
        "outputs": st.sampled_from(
            [None, {}, {"status": "failed"}, {"status": "success"}, {"status": 5}, "text"]
        ),
        "metadata": metadatas,
        "upper": st.booleans(),
        "as_action": st.sampled_from([False] * 5 + [True]),
    }
)
fragments = st.lists(
    nodes, min_size=1, max_size=5, unique_by=lambda one: one["as_action"] or one["number"] + 2
)
posters = st.sampled_from(["agent-0", "agent-1", "exporter", "exporter", "other key"])
"""Who posts; the first two are the agents themselves."""

posts = st.fixed_dictionaries({"nodes": fragments, "actor": posters})
steps = st.lists(
    st.tuples(st.just("post"), st.integers(0, 1), posts)
    | st.tuples(
        st.just("act"), st.integers(0, 1), st.sampled_from(["denied", "success", "failure", "unknown"])
    )
    | st.tuples(st.just("again"), st.integers(0, 1), st.sampled_from(["success", "failure"])),
    min_size=1,
    max_size=14,
)


class Bench:
    """What all examples share; each has a session of its own."""

    def __init__(self, database: Database) -> None:
        self.runner = asyncio.Runner()
        self.clock = SetClock()
        self.pool = self.runner.run(create_pool(database.app_url))
        self.ledger = self.runner.run(Ledger.open(self.pool, master_key=MASTER_KEY, clock=self.clock))
        self.admin: asyncpg.Connection[Any] = self.runner.run(asyncpg.connect(database.admin_url))
        self.agents = [Caller(self.ledger, f"agent-{number}") for number in range(2)]
        self.chains = [self.runner.run(self._created(agent)) for agent in self.agents]

    async def _created(self, agent: Caller) -> UUID:
        policy = {"budget": 10**9, "scar_limit": 2**32 - 1, "tools": {"search": {"cost": 1}}}
        return UUID(str((await agent.create(policy))["log_uuid"]))

    def close(self) -> None:
        self.runner.run(self.ledger.close())
        self.runner.run(self.admin.close())
        self.runner.run(self.pool.close())
        self.runner.close()


class Scene:
    """One session: carries out the steps."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.session = uuid4()
        self.last_action: list[str | None] = [None, None]
        self.unknown: list[str | None] = [None, None]

    async def run(self, what: str, side: int, how: Any) -> None:
        self.bench.clock.move(0.5)
        agent = self.bench.agents[side]
        if what == "post":
            await self._post(agent, side, how)
        elif what == "act":
            await self._act(agent, side, how)
        elif (open_action := self.unknown[side]) is not None:
            await agent.report(open_action, how)
            self.unknown[side] = None

    async def _act(self, agent: Caller, side: int, how: str) -> None:
        tool = "rm" if how == "denied" else "search"
        decision = await agent.ask(tool, uuid4().hex, session_id=str(self.session))
        self.last_action[side] = decision.action_id
        if how != "denied":
            await agent.report(decision.action_id, how)
            if how == "unknown":
                self.unknown[side] = decision.action_id

    async def _post(self, agent: Caller, side: int, drawn: dict[str, Any]) -> None:
        tree = [self._node(side, one) for one in drawn["nodes"]]
        payload = {"session_id": str(self.session), "total_nodes": len(tree), "trace_tree": tree}
        entry = Entry(Draft(kind=TRACE, payload=payload, actor=drawn["actor"]))
        [receipt] = await agent.ledger.post(agent.may(Permission.POST), [entry])
        assert not isinstance(receipt, Exception), receipt

    def _node(self, side: int, one: dict[str, Any]) -> Any:
        action = self.last_action[side] or "act-1"
        of_action = str(action_node_id(self.bench.chains[side], action))
        node_id = of_action if one["as_action"] else str(UUID(int=one["number"] + (0xAB << 100)))
        parent = one["parent"]
        if isinstance(parent, int):
            parent = str(UUID(int=parent + (0xAB << 100)))
        made = {name: one[name] for name in ("node_type", "name", "outputs", "metadata")}
        if made["metadata"] is not None and "nested_in" in made["metadata"]:
            made["metadata"] = {
                **made["metadata"],
                "nested_in": _mark(made["metadata"]["nested_in"], of_action),
            }
        return {
            **made,
            "node_id": node_id.upper() if one["upper"] else node_id,
            "parent_id": of_action if parent == "action" else parent,
        }

    async def rows(self) -> list[TrailRow]:
        """The session's records."""
        return await db.sessions.rows(
            self.bench.pool, DEFAULT_TENANT_ID, self.session, after=FIRST, upto=EVER
        )

    async def sendings(self) -> list[Sending]:
        """All sendings, read from the rows."""
        sendings = []
        for row in await self.rows():
            source = Source(
                log_uuid=row.log_uuid,
                agent_id=row.agent_id,
                seq=row.seq,
                hash=row.hash,
                recorded_us=to_microseconds(row.created_at),
                guarded=row.kind in GUARD_KINDS,
            )
            sendings += sendings_of(source, json.loads(row.signed_text)["payload"])
        return sendings


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    made = Bench(database)
    yield made
    made.close()


@given(history=steps)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_tree_is_what_the_views_say(bench: Bench, history: list[Any]) -> None:
    bench.runner.run(compare(bench, history))


async def compare(bench: Bench, history: list[Any]) -> None:
    scene = Scene(bench)
    for step in history:
        await scene.run(*step)
    tree = assemble(await scene.sendings())
    view = [tuple(row) for row in await bench.admin.fetch(NODES, scene.session)]
    assert sorted(map(as_in_trace_nodes, tree.nodes), key=repr) == sorted(
        ((*row[:6], row[6] and to_microseconds(row[6]), *row[7:]) for row in view), key=repr
    )
    paths = [tuple(row) for row in await bench.admin.fetch(PATHS, scene.session)]
    placed = [(*one.shown.key, one.depth, one.orphan, one.cyclic, one.sendings) for one in tree.nodes]
    assert sorted(placed, key=repr) == sorted(paths, key=repr)
    await compare_calls(scene, calls_of(tree, await scene.rows()))


async def compare_calls(scene: Scene, calls: list[TreeNode]) -> None:
    """All that count calls count these."""
    admin = scene.bench.admin
    failed = [one for one in calls if one.shown.status == "failed"]
    for query, expected in ((CALLS, calls), (FAILED, failed)):
        found = [tuple(row) for row in await admin.fetch(query, scene.session)]
        assert sorted(found, key=repr) == sorted((one.shown.key for one in expected), key=repr)
    counts = len(calls), len(failed)
    [session] = await admin.fetch(COUNTS, scene.session) or [(0, 0)]
    assert tuple(session) == counts
    for entry in await db.sessions.entries(scene.bench.pool, DEFAULT_TENANT_ID, [scene.session]):
        assert (entry.tool_calls, entry.failed_tool_calls) == counts


def calls_of(tree: Tree, rows: list[TrailRow]) -> list[TreeNode]:
    """The calls of a session without those that are the inner end of another one."""
    records = {(row.log_uuid, row.seq): row for row in rows}
    calls = [one for one in tree.nodes if one.shown.node_type == "TOOL_CALL"]
    return [one for one in calls if not any(_is_inner_of(one.shown, other.shown, records) for other in calls)]


def _is_inner_of(inner: Sending, outer: Sending, records: dict[tuple[UUID, int], TrailRow]) -> bool:
    of_inner, of_outer = (records[one.source.log_uuid, one.source.seq] for one in (inner, outer))
    if _named(inner, of_inner) != outer.node_id or _named(outer, of_outer) is not None:
        return False
    one_poster = of_inner.actor == of_outer.actor and of_inner.actor not in {
        of_inner.agent_id,
        of_outer.agent_id,
    }
    return (
        inner.name == outer.name
        and (inner.source.log_uuid == outer.source.log_uuid or one_poster)
        and inner.status in {None, "success", outer.status}
    )


def _named(node: Sending, row: TrailRow) -> str | None:
    """The other node that a node says it is the inner end of."""
    metadata = json.loads(row.signed_text)["payload"]["trace_tree"][node.position].get("metadata")
    mark = metadata.get("nested_in") if isinstance(metadata, dict) else None
    return mark.lower() if is_uuid(mark) and mark.lower() != node.node_id else None


def _mark(drawn: Any, of_action: str) -> Any:
    """What ``nested_in`` says: a number is that of a node."""
    if drawn in {"action", "ACTION"}:
        return of_action if drawn == "action" else of_action.upper()
    return (
        drawn
        if isinstance(drawn, bool) or not isinstance(drawn, int)
        else str(UUID(int=drawn + (0xAB << 100)))
    )


def as_in_trace_nodes(one: TreeNode) -> tuple[Any, ...]:
    shown, source = one.shown, one.shown.source
    said = (shown.parent_id, shown.node_type, shown.name, shown.status, shown.started_us)
    return (*shown.key, *said, source.seq, source.hash, source.agent_id)
