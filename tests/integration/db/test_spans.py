"""The index of spans: written with the records or not at all, once in a chain, never changed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

import db.ledger
import db.spans
from app.errors import StaleChainError
from db.errors import DuplicateSpanError
from db.ledger import SpanRow, TrailRow
from db.pool import Pool, tenant_transaction
from tests.support.rows import Maker, count, register_tenant, started_chain

TRACE = bytes(range(16))


def span(number: int, row: TrailRow) -> SpanRow:
    """The entry that says that ``row`` holds a span."""
    return SpanRow(row.tenant_id, TRACE, number.to_bytes(8), row.log_uuid, row.seq)


def keys(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [(TRACE, number.to_bytes(8)) for number in numbers]


async def test_records_and_spans_are_one_statement_and_are_found_again(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, tenant: UUID
) -> None:
    other = await started_chain(pool, tenant, "other")
    rows = [maker.row(), other.row(), maker.row()]
    entries = [span(number, rows[number % 3]) for number in (5, 2, 9, 0)]
    await db.ledger.append(pool, rows, spans=entries)
    for chain, held in ((maker, [0, 9]), (other, [])):
        found = await db.ledger.span_rows(pool, tenant, chain.log_uuid, keys(0, 1, 9))
        assert sorted(int.from_bytes(row.span_id) for row in found) == held
    found = await db.ledger.span_rows(pool, tenant, maker.log_uuid, keys(0, 1, 2, 5, 9))
    found += await db.ledger.span_rows(pool, tenant, other.log_uuid, keys(0, 1, 2, 5, 9))
    assert sorted(found, key=lambda row: row.span_id) == sorted(entries, key=lambda row: row.span_id)
    assert await db.ledger.span_rows(pool, tenant, maker.log_uuid, []) == []
    written = await admin.fetch(
        "SELECT xmin::text FROM trails.spans UNION SELECT xmin::text FROM trails.agent_audit_trails"
        " WHERE seq > 2 OR agent_id = 'other' AND seq > 0"
    )
    assert len(written) == 1


async def test_records_of_several_chains_are_read_at_once(pool: Pool, maker: Maker, tenant: UUID) -> None:
    other = await started_chain(pool, tenant, "other")
    rows = [maker.row(), other.row()]
    await db.ledger.append(pool, rows)
    places = [(row.log_uuid, row.seq) for row in rows]
    found = await db.ledger.rows_of(pool, tenant, [*places, (uuid4(), 1), (maker.log_uuid, 99)])
    assert found == rows
    assert await db.ledger.rows_of(pool, tenant, places[::-1]) == rows[::-1]
    assert await db.ledger.rows_of(pool, await register_tenant(pool, "foreign"), places) == []


async def test_records_are_read_in_parts_of_bounded_size(
    pool: Pool, maker: Maker, tenant: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await started_chain(pool, tenant, "other")
    sizes = [10, 10, 3_000, 5_000, 10, 3_000, 10]
    rows = [(maker, other)[n % 2].row(payload={"x": "x" * size}) for n, size in enumerate(sizes)]
    await db.ledger.append(pool, rows)
    places = [(row.log_uuid, row.seq) for row in rows]
    gone = [(uuid4(), 1), (maker.log_uuid, 99)]
    asked = [*gone, *places[:3], (uuid4(), 2), *places[3:], (uuid4(), 3)]

    async def parts() -> list[list[int]]:
        index = {place: number for number, place in enumerate(places)}
        each = db.ledger.each_of(pool, tenant, asked, 4_000)
        return [[index[row.log_uuid, row.seq] for row in part] async for part in each]

    # A part ends with the record that reaches the bytes.
    assert await parts() == [[0, 1, 2, 3], [4, 5, 6]]
    monkeypatch.setattr(db.ledger, "CHUNK", 2)
    assert [number for part in await parts() for number in part] == list(range(7))
    assert [part async for part in db.ledger.each_of(pool, tenant, gone, 4_000)] == []


async def test_a_chain_may_begin_with_spans(pool: Pool, tenant: UUID) -> None:
    new = Maker(tenant, "new")
    rows = new.rows(2)
    await db.ledger.append(pool, rows, chains=[new.chain], spans=[span(1, rows[1])])
    assert await db.ledger.chain(pool, tenant, "new") == new.chain
    assert await db.ledger.span_rows(pool, tenant, new.log_uuid, keys(1)) == [span(1, rows[1])]


async def test_a_span_is_recorded_once_in_a_chain_and_a_second_time_leaves_nothing(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, tenant: UUID, other_tenant: UUID
) -> None:
    first = maker.row()
    await db.ledger.append(pool, [first], spans=[span(1, first)])
    before = await count(admin), await count(admin, "spans")
    head = maker.head
    second = maker.row()
    with pytest.raises(DuplicateSpanError):
        await db.ledger.append(pool, [second], spans=[span(2, second), span(1, second)])
    assert (await count(admin), await count(admin, "spans")) == before
    maker.head = head
    chains = [maker, await started_chain(pool, tenant, "other"), await started_chain(pool, other_tenant)]
    for chain in chains[1:]:
        row = chain.row()
        await db.ledger.append(pool, [row], spans=[span(1, row)])
        found = await db.ledger.span_rows(pool, row.tenant_id, chain.log_uuid, keys(1, 2))
        assert found == [span(1, row)]
    assert await db.ledger.span_rows(pool, tenant, maker.log_uuid, keys(1, 2)) == [span(1, first)]
    assert await db.ledger.span_rows(pool, other_tenant, maker.log_uuid, keys(1, 2)) == []


async def test_records_that_come_too_late_leave_no_span(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    head = maker.head
    await db.ledger.append(pool, [maker.row()])
    maker.head = head
    late = maker.row(payload={"late": True})
    with pytest.raises(StaleChainError):
        await db.ledger.append(pool, [late], spans=[span(1, late)])
    assert await count(admin, "spans") == 0


async def test_p18_writers_of_the_same_spans_in_opposite_order_do_not_deadlock(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, tenant: UUID
) -> None:
    other = await started_chain(pool, tenant, "other")
    one, two, three = maker.row(), maker.row(), other.row()
    async with tenant_transaction(pool, tenant) as connection:
        await db.ledger.append(connection, [one], spans=[span(1, one)])
        waiting = asyncio.create_task(db.ledger.append(pool, [three], spans=[span(2, two), span(1, one)]))
        async with asyncio.timeout(10):
            while not await admin.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                await asyncio.sleep(0.01)
        await db.ledger.append(connection, [two], spans=[span(2, two)])
    with pytest.raises(DuplicateSpanError):
        await waiting


async def test_a_span_of_a_tenant_that_is_not_named_is_refused(
    pool: Pool, maker: Maker, other_tenant: UUID
) -> None:
    row = maker.row()
    foreign = SpanRow(other_tenant, TRACE, bytes(8), row.log_uuid, row.seq)
    with pytest.raises(Exception, match="not available") as caught:
        await db.ledger.append(pool, [row], spans=[foreign])
    assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)


TRACES = 1_000
"""Enough that nobody reads them all to find one."""


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("bytea '', bytea '\\x0102030405060708', 1", "spans_trace_id_length"),
        ("decode(repeat('ab', 17), 'hex'), bytea '\\x0102030405060708', 1", "spans_trace_id_length"),
        ("decode(repeat('ab', 16), 'hex'), bytea '\\x01020304050607', 1", "spans_span_id_length"),
        ("decode(repeat('ab', 16), 'hex'), bytea '\\x0102030405060708', -1", "spans_seq_range"),
    ],
)
async def test_an_entry_of_another_form_is_refused(
    admin: asyncpg.Connection, change: str, constraint: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await admin.execute(
            "INSERT INTO trails.spans (tenant_id, log_uuid, trace_id, span_id, seq)"
            f" SELECT gen_random_uuid(), gen_random_uuid(), {change}"
        )
    assert caught.value.constraint_name == constraint


async def test_entries_are_not_changed_under_replication_role_either(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    row = maker.row()
    await db.ledger.append(pool, [row], spans=[span(1, row)])
    await admin.execute("SET session_replication_role = replica")
    await admin.execute("ALTER TABLE trails.spans DISABLE TRIGGER refuse_change_statement")
    for change in ("DELETE FROM trails.spans", "UPDATE trails.spans SET seq = 1"):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await admin.execute(change)
        assert caught.value.sqlstate == "TR001"


async def test_lookups_use_the_keys_and_sessions_are_found_in_their_index_alone(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, tenant: UUID
) -> None:
    rows = [
        maker.row("trace", {"session_id": str(UUID(int=number)), "trace_tree": []})
        for number in range(TRACES)
    ]
    of_traces = [msgspec.structs.replace(span(row.seq, row), trace_id=row.seq.to_bytes(16)) for row in rows]
    await db.ledger.append(pool, rows, spans=of_traces)
    await admin.execute("VACUUM ANALYZE trails.agent_audit_trails")
    await admin.execute("VACUUM ANALYZE trails.spans")
    first = (
        "SELECT created_at, log_uuid, seq FROM trails.agent_audit_trails"
        " WHERE tenant_id = $1 AND session_id = $2 ORDER BY created_at, log_uuid, seq LIMIT 1"
    )
    plans = [
        (db.ledger._TRAIL["span_rows"], (tenant, maker.log_uuid, [TRACE], [bytes(8)]), "spans_pkey"),
        (db.ledger._TRAIL["rows_of"], (tenant, [maker.log_uuid], [7], None), "trail_pkey"),
        (db.spans._SQL["ends"], _ends(tenant, maker), "spans_pkey"),
        (db.spans._SQL["ends"], _ends(tenant, maker), "trail_pkey"),
        (db.spans._SQL["calls_below"], _below(tenant, maker), "spans_pkey"),
        (db.spans._SQL["calls_below"], _below(tenant, maker), "trail_pkey"),
        (db.spans._SQL["calls_below"], _below(tenant, maker), "hashed SubPlan"),
        (first, (tenant, UUID(int=7)), "Index Only Scan using trail_sessions"),
    ]
    async with tenant_transaction(pool, tenant) as connection:
        for statement, arguments, index in plans:
            lines = await connection.fetch(f"EXPLAIN {_without_comment(statement)}", *arguments)
            plan = "\n".join(line[0] for line in lines)
            assert index in plan, plan


async def test_a_trace_is_looked_up_by_its_key_by_a_plan_that_knows_no_request_too(
    pool: Pool, maker: Maker, tenant: UUID
) -> None:
    """Such a plan is kept for a session's later requests; before, PostgreSQL 15 read all spans for each."""
    rows = [maker.row() for _ in range(TRACES)]
    of_traces = [msgspec.structs.replace(span(row.seq, row), trace_id=row.seq.to_bytes(16)) for row in rows]
    await db.ledger.append(pool, rows, spans=of_traces)
    asked = f"'{tenant}', '{tenant}', '{{}}', now(), '{{}}', '{{1}}', '{maker.log_uuid}', 'operator'"
    async with tenant_transaction(pool, tenant) as connection:
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE below AS {db.spans._SQL['calls_below']}")
        plan = [line[0] for line in await connection.fetch(f"EXPLAIN EXECUTE below ({asked})")]
    assert any("Index Cond" in line and "trace_id = " in line for line in plan), "\n".join(plan)


def _ends(tenant: UUID, maker: Maker) -> tuple[object, ...]:
    return str(tenant), tenant, [TRACE], [bytes(8)], maker.log_uuid, "operator"


def _below(tenant: UUID, maker: Maker) -> tuple[object, ...]:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return str(tenant), tenant, [TRACE], since, [str(UUID(int=1))], [1], maker.log_uuid, "operator"


def _without_comment(statement: str) -> str:
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--"))
