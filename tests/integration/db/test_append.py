"""Appending and reading: one statement for rows of any number of chains and tenants, or nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

import db.ledger
from app.chain.audit import verify_chain
from app.chain.record import SignedRecord
from app.errors import AgentExistsError, StaleChainError
from db.errors import DuplicateKeyError
from db.ledger import TenantRow, TrailRow
from db.pool import Pool, tenant_transaction
from tests.support.rows import KEY, NOW, Maker, count, register_tenant, started_chain


async def test_rows_come_back_exactly_as_they_were_appended(pool: Pool, tenant: UUID) -> None:
    maker = Maker(tenant)
    payload = {"text": 'é "\\ \u2028 %s $1', "n": 12345678901234567890, "session_id": str(uuid4())}
    rows = [maker.genesis(), maker.row(payload=payload)]
    await db.ledger.append(pool, rows, chains=[maker.chain])
    assert await db.ledger.records(pool, tenant, maker.log_uuid) == rows
    assert await db.ledger.chain(pool, tenant, "agent-1") == maker.chain


async def test_one_statement_carries_chains_and_tenants(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, other_tenant: UUID
) -> None:
    old = [await started_chain(pool, named, "old") for named in (tenant, other_tenant)]
    new = [Maker(named, "new") for named in (tenant, other_tenant)]
    rows = [row for maker in (*old, *new) for row in maker.rows(3)]
    before = await xids(admin)
    await db.ledger.append(pool, rows, chains=[maker.chain for maker in new])
    assert len(await xids(admin) - before) == 1
    for maker in (*old, *new):
        expected = [row for row in rows if row.log_uuid == maker.log_uuid]
        assert (await db.ledger.records(pool, maker.tenant_id, maker.log_uuid))[-3:] == expected


async def test_an_append_through_the_pool_is_one_round_trip(pool: Pool, maker: Maker) -> None:
    queries: list[str] = []
    async with pool.acquire() as connection:
        with connection.query_logger(lambda record: queries.append(record.query)):
            await db.ledger.append(connection, [maker.row()])
    assert queries == [db.ledger._TRAIL["append"]]


async def test_one_bad_row_leaves_nothing_of_the_others(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID, other_tenant: UUID
) -> None:
    good, bad = await started_chain(pool, tenant), await started_chain(pool, other_tenant)
    new = Maker(tenant, "new")
    bad.row()
    rows = [*new.rows(2), good.row(), bad.row()]
    before = await count(admin)
    with pytest.raises(StaleChainError):
        await db.ledger.append(pool, rows, chains=[new.chain])
    assert await count(admin) == before
    assert await db.ledger.chain(pool, tenant, "new") is None


async def test_the_order_of_the_rows_given_does_not_matter(pool: Pool, maker: Maker) -> None:
    rows = maker.rows(5)
    await db.ledger.append(pool, rows[::-1])
    assert (await db.ledger.records(pool, maker.tenant_id, maker.log_uuid))[-5:] == rows


async def test_nothing_to_append_is_nothing(pool: Pool) -> None:
    await db.ledger.append(pool, [])


async def test_a_faster_writer_makes_the_slower_one_stale(pool: Pool, maker: Maker) -> None:
    before = maker.head
    rows = []
    for number in range(8):
        maker.head = before
        rows.append(maker.row(payload={"writer": number}))
    results = await asyncio.gather(*(db.ledger.append(pool, [row]) for row in rows), return_exceptions=True)
    assert results.count(None) == 1
    assert all(type(result) is StaleChainError for result in results if result is not None)
    assert await db.ledger.head(pool, maker.tenant_id, maker.log_uuid) == (3, rows[results.index(None)].hash)


async def test_p18_writers_of_the_same_chains_in_opposite_order_do_not_deadlock(
    pool: Pool, admin: asyncpg.Connection, tenant: UUID
) -> None:
    """The second writer gives its rows the other way round, and waits before it holds anything."""
    one, two = Maker(tenant, "one", UUID(int=1)), Maker(tenant, "two", UUID(int=2))
    await db.ledger.append(pool, [*one.rows(1), *two.rows(1)], chains=[one.chain, two.chain])
    first, second = one.row(), two.row()
    async with tenant_transaction(pool, tenant) as connection:
        await db.ledger.append(connection, [first])
        other = asyncio.create_task(db.ledger.append(pool, [second, first]))
        async with asyncio.timeout(10):
            waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
            while not await admin.fetchval(waiting):
                await asyncio.sleep(0.01)
        await db.ledger.append(connection, [second])
    with pytest.raises(StaleChainError) as caught:
        await other
    assert isinstance(caught.value.__cause__, asyncpg.UniqueViolationError)


async def test_an_idempotency_key_counts_once_in_a_chain(pool: Pool, maker: Maker, tenant: UUID) -> None:
    payload = {"idempotency": {"key": "ab" * 32, "request": "cd" * 32}}
    first = maker.row(payload=payload)
    await db.ledger.append(pool, [first])
    with pytest.raises(DuplicateKeyError):
        await db.ledger.append(pool, [maker.row(payload=payload)])
    assert await db.ledger.by_idempotency(pool, tenant, maker.log_uuid, "ab" * 32) == first
    assert await db.ledger.by_idempotency(pool, tenant, maker.log_uuid, "cd" * 32) is None
    other = await started_chain(pool, tenant, "agent-2")
    await db.ledger.append(pool, [other.row(payload=payload)])


async def test_an_agent_id_is_taken_once(pool: Pool, maker: Maker, tenant: UUID, other_tenant: UUID) -> None:
    again = Maker(tenant, maker.agent_id)
    with pytest.raises(AgentExistsError, match="agent-1"):
        await db.ledger.append(pool, again.rows(1), chains=[again.chain])
    elsewhere = Maker(other_tenant, maker.agent_id)
    await db.ledger.append(pool, elsewhere.rows(1), chains=[elsewhere.chain])


async def test_reading(pool: Pool, maker: Maker, tenant: UUID, other_tenant: UUID) -> None:
    rows = [
        maker.row("action_requested", {"action_id": "act-1", "tool": "t"}),
        maker.row("action_allowed", {"action_id": "act-1"}),
        maker.row("action_requested", {"action_id": "act-2", "tool": "t"}),
        maker.row("scar", {"action_id": "act-1", "severity": "minor"}),
        maker.row("outcome", {"action_id": "act-1", "status": "failure"}),
        maker.row("scar", {"action_id": None, "severity": "minor"}),
    ]
    await db.ledger.append(pool, rows)
    log = maker.log_uuid
    assert await db.ledger.action_rows(pool, tenant, log, "act-1") == [rows[0], rows[1], rows[4]]
    assert await db.ledger.action_rows(pool, tenant, log, "act-9") == []
    assert await db.ledger.scar_rows(pool, tenant, log, 8) == [rows[3], rows[5]]
    assert await db.ledger.scar_rows(pool, tenant, log, 7) == [rows[3]]
    assert await db.ledger.row_at(pool, tenant, log, 5) == rows[2]
    assert await db.ledger.row_at(pool, tenant, log, 99) is None
    assert await db.ledger.head(pool, tenant, log) == (8, rows[-1].hash)
    assert await db.ledger.head(pool, tenant, uuid4()) is None
    assert await db.ledger.head(pool, other_tenant, log) is None
    assert await db.ledger.chains(pool, tenant) == [maker.chain]
    assert [key.key_id for key in await db.ledger.signing_keys(pool, tenant)] == [KEY.public.key_id]
    assert await db.ledger.tenant(pool, tenant) == TenantRow(tenant, "acme", "Acme", NOW)


async def test_reading_inside_ones_own_transaction(pool: Pool, maker: Maker, tenant: UUID) -> None:
    row = maker.row()
    async with tenant_transaction(pool, tenant) as connection:
        await db.ledger.append(connection, [row])
        assert await db.ledger.row_at(connection, tenant, maker.log_uuid, row.seq) == row
        assert await db.ledger.row_at(pool, tenant, maker.log_uuid, row.seq) is None


@pytest.mark.parametrize("size", [1, 3, 4, 9, 10, 11])
async def test_chunks_hold_every_record_once(pool: Pool, tenant: UUID, size: int) -> None:
    maker = await started_chain(pool, tenant, "long", records=10)
    chunks = [chunk async for chunk in db.ledger.each_chunk(pool, tenant, maker.log_uuid, size=size)]
    assert [row.seq for chunk in chunks for row in chunk] == list(range(10))
    assert max(map(len, chunks)) <= size
    later = [chunk async for chunk in db.ledger.each_chunk(pool, tenant, maker.log_uuid, after=7, size=size)]
    assert [row.seq for chunk in later for row in chunk] == [8, 9]


async def test_p29_refused_appends_leave_no_gap_and_a_deleted_row_is_told_by_seq(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, tenant: UUID
) -> None:
    before = maker.head
    for _ in range(5):
        maker.head = before
        with pytest.raises(asyncpg.CheckViolationError):
            await db.ledger.append(pool, [maker.row(actor="somebody else")])
    maker.head = before
    await db.ledger.append(pool, maker.rows(5))
    rows = await db.ledger.records(pool, tenant, maker.log_uuid)
    assert [row.seq for row in rows] == list(range(8))
    assert verify_chain(map(signed, rows), trusted=KEY.public).first_faults == ()

    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    await admin.execute("DELETE FROM trails.agent_audit_trails WHERE seq = 4")
    report = verify_chain(map(signed, await db.ledger.records(pool, tenant, maker.log_uuid)), KEY.public)
    assert [(fault.fault, fault.seq) for fault in report.first_faults] == [("order", 4)]


async def test_p31_numbers_beyond_32_bits_survive_and_the_identifier_is_63_bits(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    big = {"tokens": 3_000_000_000, "most": 2**63 - 1}
    rows = [maker.row(payload=big), maker.row(payload=big)]
    await db.ledger.append(pool, rows)
    sums = await admin.fetchrow(
        "SELECT sum((trace_data->>'tokens')::bigint) AS tokens, max((trace_data->>'most')::bigint) AS most"
        " FROM trails.agent_audit_trails"
    )
    assert sums is not None
    assert (sums["tokens"], sums["most"]) == (6_000_000_000, 2**63 - 1)
    for row in rows:
        found = await admin.fetchval("SELECT id FROM trails.agent_audit_trails WHERE hash = $1", row.hash)
        assert found == int(row.hash[:16], 16) >> 1
    types = await admin.fetch(
        "SELECT DISTINCT format_type(atttypid, atttypmod) AS type FROM pg_attribute a JOIN pg_class c"
        " ON c.oid = attrelid WHERE relnamespace = 'trails'::regnamespace AND relkind = 'r' AND attnum > 0"
    )
    assert {row["type"] for row in types}.isdisjoint({"integer", "smallint", "real", "timestamp"})


EQUAL_ONLY = {"trail_actions", "trail_claims"}
"""Indexes on text of the mirror that is compared for equality alone."""


async def test_p33_text_in_keys_and_indexes_is_compared_bytewise(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch(
        "SELECT c.relname, a.attname, l.collname FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_attribute a ON a.attrelid = c.oid"
        " JOIN pg_collation l ON l.oid = a.attcollation"
        " WHERE c.relnamespace = 'trails'::regnamespace AND c.relname <> 'alembic_version_pkc'"
    )
    assert rows
    assert {row["collname"] for row in rows if row["relname"] not in EQUAL_ONLY} == {"C"}


async def test_p33_agents_are_listed_in_the_order_of_their_bytes(pool: Pool, tenant: UUID) -> None:
    names = ["11", "1-1", "a", "B", "_", "A-b", "Ab"]
    for name in names:
        await started_chain(pool, tenant, name)
    assert [chain.agent_id for chain in await db.ledger.chains(pool, tenant)] == sorted(names)


async def test_p37_select_and_insert_are_all_that_the_service_holds_of_evidence(pool: Pool) -> None:
    held = await pool.fetch(
        "SELECT c.relname, x.privilege_type FROM pg_class c, aclexplode(c.relacl) x"
        " WHERE c.relnamespace = 'trails'::regnamespace AND x.grantee = 'trails_app'::regrole"
    )
    assert {row["privilege_type"] for row in held} == {"SELECT", "INSERT", "DELETE"}
    # What has been decided leaves the index of what waits; a trigger checks that it has been.
    deleted = [row["relname"] for row in held if row["privilege_type"] == "DELETE"]
    assert deleted == ["waiting_actions"]
    assert {row["relname"] for row in held if row["privilege_type"] == "INSERT"} == {
        "agent_audit_trails",
        "agents",
        "api_key_revocations",
        "api_key_uses",
        "api_keys",
        "console_visit_ends",
        "console_visits",
        "sendings",
        "signing_keys",
        "spans",
        "tenant_suspensions",
        "tenants",
        "waiting_actions",
        "webhook_progress",
        "webhooks",
    }


AUDITORS_QUERY = """
SELECT session_id, created_at
FROM agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed';
"""


async def test_the_classic_auditors_query_runs_unchanged(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    session = uuid4()
    node = {"node_type": "TOOL_CALL", "outputs": {"status": "failed"}}
    fine = {"node_type": "TOOL_CALL", "outputs": {"status": "success"}}
    rows = [
        maker.row("trace", {"session_id": str(session), "total_nodes": 2, "trace_tree": [node, fine]}),
        maker.row("trace", {"session_id": str(session), "total_nodes": 1, "trace_tree": [fine]}),
    ]
    await db.ledger.append(pool, rows)
    found = await admin.fetch(AUDITORS_QUERY)
    assert [tuple(row) for row in found] == [(session, rows[0].created_at)]


async def test_reads_of_a_long_table_use_their_indexes(pool: Pool, admin: asyncpg.Connection) -> None:
    tenant = await register_tenant(pool, "plans")
    maker = await started_chain(pool, tenant, "busy", records=400)
    await admin.execute("ANALYZE trails.agent_audit_trails")
    plans = {
        "head": ("trail_pkey", (tenant, maker.log_uuid)),
        "records": ("trail_pkey", (tenant, maker.log_uuid, 390, 100, 1_000_000)),
        "row_at": ("trail_pkey", (tenant, maker.log_uuid, 7)),
        "by_idempotency": ("trail_idempotency_key", (tenant, maker.log_uuid, "ab" * 32)),
        "action_rows": ("trail_actions", (tenant, maker.log_uuid, "act-1")),
        "claim_row": ("trail_claims", (tenant, maker.log_uuid, 3, 390, "act-1")),
        "scar_rows": ("trail_scars", (tenant, maker.log_uuid, 300)),
        "newest_snapshot": ("trail_snapshots", (tenant, maker.log_uuid, 300)),
    }
    async with tenant_transaction(pool, tenant) as connection:
        for name, (index, arguments) in plans.items():
            lines = await connection.fetch(
                f"EXPLAIN {db.ledger._TRAIL[name].partition(chr(10))[2]}", *arguments
            )
            plan = "\n".join(line[0] for line in lines)
            assert index in plan, f"{name}: {plan}"


def signed(row: TrailRow) -> SignedRecord:
    return SignedRecord(row.signed_text, row.hash, row.signature)


async def xids(admin: asyncpg.Connection) -> set[object]:
    """The transactions that wrote the rows of trail and registry."""
    rows = await admin.fetch(
        "SELECT xmin::text FROM trails.agent_audit_trails UNION SELECT xmin::text FROM trails.agents"
    )
    return {row[0] for row in rows}
