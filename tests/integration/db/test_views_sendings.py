"""The index of sendings: what stands in it, how it comes there, and what long sessions cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

import db.ledger
from app.trace.node import action_node_id
from db import migrate
from db.ledger import TrailRow
from db.pool import Connection, Pool, tenant_transaction
from db.sql import statements
from tests.support.postgres import Database
from tests.support.rows import Maker, started_chain
from tests.support.view_rows import SESSION, Json, by, fragment, names, node, node_id, posted_row, send, view
from tests.support.write_catalog import read

ELSEWHERE = uuid4()
Entry = tuple[str, int, bool, str | None, str | None]


@pytest.fixture
async def other(pool: Pool, tenant: UUID) -> Maker:
    """Another chain of the same tenant."""
    return await started_chain(pool, tenant, "agent-2")


async def entries(admin: asyncpg.Connection, session: UUID = SESSION) -> list[Entry]:
    """What the index says of a session, in the order of the records."""
    rows = await admin.fetch(
        "SELECT node_id::text, seq, guarded, tool, status FROM trails.sendings"
        " WHERE session_id = $1 ORDER BY seq, log_uuid, tool, node_id",
        session,
    )
    return [tuple(row) for row in rows]


def entry(name: str, row: TrailRow, tool: str | None = None, status: str | None = None) -> Entry:
    return (node_id(name), row.seq, False, tool, status)


# --- what stands in it ----------------------------------------------------------------------------------


async def test_a_session_is_indexed_from_its_second_record_on(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    first = await send(pool, maker, node("a", status="failed"), node("plan", None, "PLANNING", status="done"))
    await send(pool, maker, node("a"), session=ELSEWHERE)
    assert await entries(admin) == []
    second = await send(pool, maker, node("a", status="success"))
    expected = [entry("a", first, "a", "failed"), entry("plan", first), entry("a", second, "a", "success")]
    assert await entries(admin) == expected
    third = await send(pool, maker, node("b"))
    assert await entries(admin) == [*expected, entry("b", third, "b")]
    assert await entries(admin, ELSEWHERE) == []


async def test_a_second_record_may_be_another_chains_or_come_in_the_same_append(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, other: Maker
) -> None:
    await send(pool, maker, node("a"))
    await send(pool, other, node("b"))
    assert {row[0] for row in await entries(admin)} == {node_id("a"), node_id("b")}
    rows = [posted_row(maker, node(name), session=ELSEWHERE) for name in "cde"]
    alone = posted_row(other, node("c"), session=uuid4())
    await db.ledger.append(pool, [alone, *rows])
    assert await entries(admin, ELSEWHERE) == [entry(n, r, n) for n, r in zip("cde", rows, strict=True)]
    assert await entries(admin, alone.session_id) == []


async def test_records_without_a_tree_make_no_session_a_long_one(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    note = {"session_id": str(SESSION), "type": "note"}
    await db.ledger.append(pool, [maker.row("event", note), maker.row("event", note)])
    await send(pool, maker, node("a"))
    await db.ledger.append(pool, [maker.row("event", note)])
    assert await entries(admin) == []
    await send(pool, maker, node("b"))
    assert {row[0] for row in await entries(admin)} == {node_id("a"), node_id("b")}


async def test_what_the_guard_wrote_is_marked_and_left_out_where_no_session_was_named(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    guarded = node("mail", status="denied") | {"node_id": str(action_node_id(maker.log_uuid, "act-1"))}
    denied = {**fragment(guarded), "action_id": "act-1", "reason": {}}
    alone = {name: value for name, value in denied.items() if name != "session_id"}
    await db.ledger.append(pool, [maker.row("action_denied", alone) for _ in range(3)])
    assert await admin.fetchval("SELECT count(*) FROM trails.sendings") == 0
    assert names(await view(pool, maker.tenant_id, "tool_calls")) == ["mail"] * 3
    row = maker.row("action_denied", denied)
    await db.ledger.append(pool, [row])
    await send(pool, maker, node("a"))
    assert (guarded["node_id"], row.seq, True, "mail", "denied") in await entries(admin)


@pytest.mark.parametrize("kind", ["action_requested", "action_allowed"])
async def test_a_request_or_permission_is_indexed_with_a_tree_alone(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, kind: str
) -> None:
    first = await send(pool, maker, node("a"))
    session = {"session_id": str(SESSION), "action_id": "act-1"}
    await db.ledger.append(pool, [maker.row(kind, session)])
    assert await entries(admin) == []
    row = maker.row(kind, {**fragment(node("b")), **session})
    await db.ledger.append(pool, [row])
    assert await entries(admin) == [entry("a", first, "a"), entry("b", row, "b")]


async def test_only_ids_that_are_uuids_are_indexed_each_once_a_record_by_its_last_place(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    odd = [{"node_id": value} for value in (None, 5, "no uuid", f"{{{node_id('a')}}}", node_id("a") + "0")]
    first = await send(pool, maker, *odd, {"node_type": "TOOL_CALL"}, node("a"), node("a", status="failed"))
    loud = {**node("b"), "node_id": node_id("b").upper()}
    second = await send(pool, maker, loud, node("long", status="x" * 65, name="n" * 1025))
    assert await entries(admin) == [
        entry("a", first, "a", "failed"),
        entry("b", second, "b"),
        entry("long", second),
    ]


# --- how it comes there ---------------------------------------------------------------------------------


async def test_two_chains_at_the_same_moment_are_put_in_by_a_later_record(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, maker: Maker, other: Maker
) -> None:
    async with tenant_transaction(pool, tenant) as one, tenant_transaction(pool, tenant) as two:
        await send(one, maker, node("a", status="failed"))
        await send(two, other, node("b", status="failed"))
    assert await entries(admin) == []
    assert names(await view(pool, tenant, "failed_tool_calls")) == ["a", "b"]
    await send(pool, maker, node("c"))
    assert {row[0] for row in await entries(admin)} == {node_id(name) for name in "abc"}


async def test_a_chain_that_another_one_did_not_see_is_complete_from_its_second_record_on(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, maker: Maker, other: Maker
) -> None:
    async with tenant_transaction(pool, tenant) as unseen:
        first = await send(unseen, other, node("b", status="failed"))
        await send(pool, maker, node("a"))
        await send(pool, maker, node("a"))
    assert {row[0] for row in await entries(admin)} == {node_id("a")}
    await send(pool, maker, node("c"))
    await db.ledger.append(pool, [other.row("event", {"session_id": str(SESSION), "type": "note"})])
    assert names(await view(pool, tenant, "failed_tool_calls")) == ["b"]
    second = await send(pool, other, node("b", status="success"))
    found = await entries(admin)
    assert {row[0] for row in found} == {node_id(name) for name in "abc"}
    assert entry("b", first, "b", "failed") in found
    assert entry("b", second, "b", "success") in found
    assert names(await view(pool, tenant, "failed_tool_calls")) == []
    assert by(await view(pool, tenant, "trace_nodes"), "name")["b"]["sendings"] == 2


async def test_a_session_of_one_record_costs_no_look_at_the_index(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    looked = (
        "SELECT idx_scan + coalesce(seq_scan, 0) FROM pg_stat_xact_user_tables WHERE relname = 'sendings'"
    )
    async with tenant_transaction(pool, tenant) as connection:
        for name in "abc":
            await send(connection, maker, node(name), session=uuid4())
        assert await connection.fetchval(looked) == 0
        await send(connection, maker, node("a"))
        await send(connection, maker, node("a"))
        assert await connection.fetchval(looked) > 0


async def test_the_index_is_kept_under_replication_role_too(
    database: Database, admin: asyncpg.Connection, maker: Maker
) -> None:
    await admin.execute(f"ALTER ROLE postgres IN DATABASE {database.admin_url.rpartition('/')[2]}"
                        " SET session_replication_role = replica")  # fmt: skip
    replica = await asyncpg.connect(database.admin_url)
    for name in "ab":
        await send(replica, maker, node(name))
    await replica.close()
    assert len(await entries(admin)) == 2


FORGED = {
    "a node that the record does not hold": "tenant_id, session_id, gen_random_uuid(), log_uuid, seq, {}",
    "a record that is not there": "tenant_id, session_id, node_id, log_uuid, seq + 100, {}",
    "another chain": "tenant_id, session_id, node_id, gen_random_uuid(), seq, {}",
    "another session": "tenant_id, gen_random_uuid(), node_id, log_uuid, seq, {}",
    "the guard's word": "tenant_id, session_id, node_id, log_uuid, seq + 1, true, tool, status",
    "another status": "tenant_id, session_id, node_id, log_uuid, seq + 1, guarded, tool, 'success'",
    "no tool": "tenant_id, session_id, node_id, log_uuid, seq + 1, guarded, NULL, status",
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("role", ["trails_app", "postgres"])
async def test_no_entry_comes_in_that_its_record_does_not_bear_out(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, forged: str, role: str
) -> None:
    """Such an entry would hide a failed call: the record after the one it stands for holds the node, too."""
    for _ in range(2):
        await send(pool, maker, node("a", status="failed"))
    columns = forged.format("guarded, tool, status")
    forge = f"INSERT INTO trails.sendings SELECT {columns} FROM trails.sendings ORDER BY seq LIMIT 1"
    await admin.execute("SELECT set_config('trails.tenants', $1, false)", str(maker.tenant_id))
    # Only the check is in the way: not the key, as the second entry is gone.
    await admin.execute("SET session_replication_role = replica")
    await admin.execute("ALTER TABLE trails.sendings DISABLE TRIGGER ALL")
    await admin.execute("DELETE FROM trails.sendings WHERE seq = (SELECT max(seq) FROM trails.sendings)")
    await admin.execute("ALTER TABLE trails.sendings ENABLE ALWAYS TRIGGER check_sendings")
    if role != "postgres":
        await admin.execute(f"RESET session_replication_role; SET ROLE {role}")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute(forge)
    assert caught.value.sqlstate == "TR004"
    honest = FORGED["the guard's word"].replace("true", "guarded")
    await admin.execute(forge.replace(columns, honest))


@pytest.mark.parametrize("change", ["DELETE FROM", "TRUNCATE", "UPDATE"])
async def test_entries_are_never_changed(admin: asyncpg.Connection, change: str) -> None:
    statement = f"{change} trails.sendings" + (" SET seq = 1" if change == "UPDATE" else "")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute(statement)
    assert caught.value.sqlstate == "TR001"


# --- the migration --------------------------------------------------------------------------------------


async def test_records_that_are_there_are_indexed_as_if_they_came_now(
    database: Database, pool: Pool, admin: asyncpg.Connection, maker: Maker, other: Maker
) -> None:
    guarded = node("mail", status="failed") | {"node_id": str(action_node_id(maker.log_uuid, "act-1"))}
    outcome = {**fragment(guarded), "action_id": "act-1", "status": "failure", "detail": ""}
    await send(
        pool, maker, node("a", status="failed"), {"node_type": "TOOL_CALL"}, node("p", None, "PLANNING")
    )
    await db.ledger.append(pool, [maker.row("outcome", outcome)])
    await send(pool, other, {**node("a", status="success"), "node_id": node_id("a").upper()})
    await send(pool, other, node("a"), session=ELSEWHERE)
    alone = {name: value for name, value in outcome.items() if name != "session_id"}
    await db.ledger.append(pool, [maker.row("outcome", alone) for _ in range(2)])
    for _ in range(2):  # among those, under the id of the other agent's chain
        await send(pool, other, node("a"), session=maker.log_uuid)
    everything = "SELECT * FROM trails.sendings ORDER BY session_id, node_id, log_uuid, seq"
    before = await admin.fetch(everything)
    assert len(before) == 6
    calls = await view(pool, maker.tenant_id, "tool_calls")
    await pool.expire_connections()
    migrate.downgrade(database.admin_url, "0004")
    assert len(await view(pool, maker.tenant_id, "tool_calls")) == len(calls)
    await pool.expire_connections()
    migrate.migrate(database.admin_url)
    await admin.reload_schema_state()
    assert await admin.fetch(everything) == before


async def test_going_back_leaves_what_was_there_before(database: Database, empty_database: Database) -> None:
    migrate.downgrade(database.admin_url, "0004")
    migrate.bootstrap(empty_database.admin_url, app_password="x")  # noqa: S106  of a throw-away server
    migrate.downgrade(empty_database.admin_url)
    migrate.migrate(empty_database.admin_url, "0004")
    assert await read(database.admin_url) == await read(empty_database.admin_url)


# --- long sessions --------------------------------------------------------------------------------------


def distinct(records: int) -> Iterator[list[Json]]:
    """Records of other nodes each."""
    for at in range(records):
        yield [node(f"{at}/{place}", status="failed") for place in range(3)]


def again(records: int) -> Iterator[list[Json]]:
    """One node that is sent again with each record."""
    for at in range(records):
        yield [node("same", status="failed"), node(f"{at}", status="failed")]


def compiled(records: int) -> Iterator[list[Json]]:
    """Nodes that come one by one, and then all of them in one tree."""
    for at in range(records):
        yield [node(f"{at}", status="failed")]
    yield [node(f"{at}", status="failed") for at in range(records)]


def marked(records: int) -> Iterator[list[Json]]:
    """Inner ends of calls in the record before, and of one that is sent again with each record."""
    for at in range(records):
        before, same = ({"nested_in": node_id(name)} for name in (f"{at - 1}", "same"))
        yield [
            node("same", status="failed", name="t"),
            node(f"{at}", status="failed", name="t", metadata=before),
            node(f"{at}/0", status="failed", name="t", metadata=same),
        ]


def marked_tree(records: int) -> Iterator[list[Json]]:
    """One tree with inner ends of the calls before them, sent twice."""
    for _ in range(2):
        yield [
            node(f"{at}", status="failed", name="t", metadata={"nested_in": node_id(f"{at - 1}")})
            for at in range(records)
        ]


WORLDS: Sequence[Callable[[int], Iterator[list[Json]]]] = (distinct, again, compiled, marked, marked_tree)
SESSIONS = statements("sessions")
OF_ONE = "tenant_id = $1 AND session_id = $2"
QUERIES: dict[str, str] = {
    **{
        f"{columns} of {name}": f"SELECT {columns} FROM trails.{name} WHERE {OF_ONE}"
        for name in ("trace_nodes", "tool_calls", "failed_tool_calls")
        for columns in ("node_id", "*")
    },
    "the list's filter": SESSIONS["matching"].replace("$2::uuid[]", "ARRAY[$2::uuid]"),
    "the list's entries": SESSIONS["entries"].replace("$2::uuid[]", "ARRAY[$2::uuid]"),
}
ASKED = {"the list's filter": (None, "no such status", None, None, 5)}
FEW = 120


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("world", WORLDS)
async def test_no_query_is_quadratic_in_the_records_of_a_session(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, world: Callable[[int], Iterator[list[Json]]],
    analyzed: bool,
) -> None:  # fmt: skip
    """Twice the records are about twice the work: rows of all steps of a plan, and blocks that are looked at.

    What is looked at in functions is among the blocks.
    """
    maker = await started_chain(pool, tenant)
    sessions = {count: UUID(int=count) for count in (FEW, 2 * FEW)}
    for count, session in sessions.items():
        rows = [posted_row(maker, *nodes, session=session) for nodes in world(count)]
        await db.ledger.append(pool, rows)
    for number in range(50):
        await send(pool, maker, node("alone", status="failed"), session=UUID(int=10**6 + number))
    queries = dict(QUERIES)
    if analyzed:
        await admin.execute("VACUUM ANALYZE trails.agent_audit_trails, trails.sendings")
        # Without statistics this one takes a bad plan; so the list asks for each session by itself.
        queries["sessions"] = f"SELECT * FROM trails.sessions WHERE {OF_ONE}"
    for name, query in queries.items():
        async with tenant_transaction(pool, tenant) as connection:
            few, many = [
                await work(connection, query, tenant, session, *ASKED.get(name, ()))
                for session in sessions.values()
            ]
        grown = {what: many[what] / few[what] for what in few}
        assert all(factor < 2.7 for factor in grown.values()), (name, few, many)


async def work(connection: Connection, query: str, *arguments: Any) -> dict[str, float]:
    """How many rows the steps of a plan gave and threw away, and how many blocks were looked at."""
    said = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query}", *arguments
    )
    top = json.loads(said)[0]["Plan"]
    rows = sum(
        (
            step["Actual Rows"]
            + step.get("Rows Removed by Filter", 0)
            + step.get("Rows Removed by Join Filter", 0)
        )
        * step["Actual Loops"]
        for step in steps(top)
    )
    return {"rows": rows, "blocks": top["Shared Hit Blocks"] + top["Shared Read Blocks"]}


def steps(plan: Json) -> Iterator[Json]:
    """All steps of a plan."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from steps(below)


async def test_what_is_asked_of_a_record_is_asked_once_and_not_for_each_node(
    pool: Pool, tenant: UUID, maker: Maker
) -> None:
    """A fragment of 10,000 nodes would be read 10,000 times, which no smaller test would notice."""
    for nodes in marked_tree(50):
        await send(pool, maker, *nodes)
    # Each with what it asks first, and a call that cannot be made before that is known.
    of_function = ("shown_tree_v1", r"jsonb_path_query\(r\.tree, ")
    in_query = ("jsonb_path_query", r"jsonb_path_query\(.*'\$\[\*\]'::jsonpath, (?!'{}')")
    views = {"trace_nodes": of_function, "tool_calls": of_function, "failed_tool_calls": in_query}
    for name, (first, call) in views.items():
        for columns in ("status", "*"):
            query = f"SELECT {columns} FROM trails.{name} WHERE status = 'failed' AND node_type = 'TOOL_CALL'"
            async with tenant_transaction(pool, tenant) as connection:
                said = await connection.fetchval(f"EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) {query}")
                shape = await connection.fetch(f"EXPLAIN (VERBOSE) {query}")
            taken = {
                function: [
                    step["Actual Loops"]
                    for step in steps(json.loads(said)[0]["Plan"])
                    if step.get("Function Name") == function
                ]
                for function in (first, "jsonb_path_query")
            }
            # There are five records.
            assert all(loops and max(loops) <= 5 for loops in taken.values()), (query, taken)
            # Not by the luck of this plan: the nodes cannot be had before what is asked first is known.
            assert any(re.search(call, row[0]) for row in shape), shape


async def test_an_append_costs_what_it_holds_whatever_the_record_before_holds(
    admin: asyncpg.Connection, pool: Pool, tenant: UUID
) -> None:
    """How often ids are read while the third large tree of a session comes in: its own, and one more."""
    maker = await started_chain(pool, tenant)
    await admin.execute("SET track_functions = 'pl'")
    read = []
    for record in range(3):
        before = await _ids_read(admin)
        nodes = [node(f"{record}-{number}") for number in range(2_000)]
        nodes.sort(key=lambda one: str(one["node_id"]), reverse=True)  # the first id is the last of the index
        await admin.execute("SET ROLE trails_app")  # row security keeps some plans from it
        await db.ledger.append(admin, [posted_row(maker, *nodes, session=UUID(int=7))])
        await admin.execute("RESET ROLE")
        read.append(await _ids_read(admin) - before)
    # The second one puts in the first one, too. The third one looks at one id of the record before, once.
    assert read[2] == read[1] // 2 + 1 > 2_000


async def _ids_read(admin: asyncpg.Connection) -> int:
    await admin.execute("SELECT pg_stat_force_next_flush()")
    await admin.execute("SELECT pg_stat_clear_snapshot()")
    return int(
        await admin.fetchval(
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'uuid_v1'"
        )
    )
