"""Every CHECK and every trigger refuses the row that it is there for, even from a superuser.

The superuser stands for whoever gets past privileges and row security: CHECKs and triggers are the last
word. Each lie is otherwise whole: hashed, signed, linked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

import db.ledger
from db.ledger import ChainRow, SpanRow, TrailRow
from db.pool import Pool
from tests.support.rows import Maker, count, resealed, started_chain

OTHER_HASH = "ab" * 32

COLUMN_LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "seq": ("trail_mirror", {"seq": 4}),
    "kind": ("trail_mirror", {"kind": "outcome"}),
    "actor": ("trail_mirror", {"actor": "someone-else"}),
    "prev_hash": ("trail_mirror", {"prev_hash": OTHER_HASH}),
    "created_at": ("trail_mirror", {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}),
    "session_id": ("trail_session_id", {"session_id": UUID(int=7)}),
    "hash": ("trail_hash", {"hash": OTHER_HASH}),
    "hash in capitals": ("trail_hash", {"hash": OTHER_HASH.upper()}),
    "signature": ("trail_signature_format", {"signature": "00"}),
    "signature in capitals": ("trail_signature_format", {"signature": "AB" * 64}),
    "idempotency_key": ("trail_idempotency_mirror", {"idempotency_key": "cd" * 32}),
}


async def test_a_column_that_differs_from_the_signed_text_is_refused(
    admin: asyncpg.Connection, maker: Maker, subtests: pytest.Subtests
) -> None:
    next_row = maker.row()
    for lie, (constraint, changes) in COLUMN_LIES.items():
        with subtests.test(lie=lie):
            assert await refused(admin, msgspec.structs.replace(next_row, **changes)) == constraint


async def test_one_microsecond_is_a_difference(admin: asyncpg.Connection, maker: Maker) -> None:
    row = maker.row()
    moved = msgspec.structs.replace(row, created_at=row.created_at + timedelta(microseconds=1))
    assert await refused(admin, moved) == "trail_mirror"


TEXT_LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "no payload object": ("trail_payload_object", {"payload": []}),
    "null for the time": ("trail_mirror", {"timestamp": None}),
    "null for the actor": ("trail_mirror", {"actor": None}),
    "a time in another spelling": ("trail_mirror", {"timestamp": "2026-09-21T15:33:23Z"}),
    "a session that is no uuid": ("trail_session_id", {"payload": {"session_id": "s1"}}),
    "a key that is no hash": ("trail_idempotency_mirror", {"payload": {"idempotency": {"key": "k"}}}),
}


async def test_a_text_that_differs_from_the_columns_is_refused(
    admin: asyncpg.Connection, maker: Maker, subtests: pytest.Subtests
) -> None:
    next_row = maker.row()
    for lie, (constraint, fields) in TEXT_LIES.items():
        with subtests.test(lie=lie):
            assert await refused(admin, resealed(next_row, **fields)) == constraint


async def test_an_infinite_time_is_refused_even_when_the_text_says_null(
    admin: asyncpg.Connection, maker: Maker
) -> None:
    row = resealed(maker.row(), timestamp=None)
    statement = (
        "INSERT INTO trails.agent_audit_trails (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id,"
        " created_at, prev_hash, hash, signature, key_id, signed_text)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, 'infinity', $8, $9, $10, $11, $12)"
    )
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await admin.execute(
            statement,
            *(row.tenant_id, row.agent_id, row.log_uuid, row.seq, row.kind, row.actor, row.session_id),
            *(row.prev_hash, row.hash, row.signature, row.key_id, row.signed_text),
        )
    assert caught.value.constraint_name == "trail_mirror"  # it is asked first; the rule stands by itself, too
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await admin.execute(
            "SELECT trails.well_formed_v1(0, 'event', 'infinity', repeat('0', 128), $1, $1, NULL, '{}')",
            row.log_uuid,
        )
    assert caught.value.constraint_name == "trail_created_at_finite"


async def test_an_idempotency_key_is_a_hash(admin: asyncpg.Connection, maker: Maker) -> None:
    row = maker.row(payload={"idempotency": {"key": "short", "request": "x"}})
    assert await refused(admin, row) == "trail_idempotency_format"


TREES: dict[str, Any] = {
    "null": None,
    "an object": {"node_type": "TOOL_CALL"},
    "a text": "[]",
    "a number": 1,
    "an array with a number": [{"node_type": "TOOL_CALL"}, 1],
    "an array with null": [None],
    "an array with an array of objects": [{"node_type": "TOOL_CALL"}, [{"node_type": "TOOL_CALL"}]],
    "an array with an empty array": [[]],
}


@pytest.mark.parametrize("tree", TREES)
async def test_a_trace_tree_that_the_auditors_query_could_not_read_is_refused(
    admin: asyncpg.Connection, maker: Maker, tree: str
) -> None:
    assert await refused(admin, maker.row("trace", {"trace_tree": TREES[tree]})) == "trail_trace_tree"


async def test_trace_trees_that_are_arrays_of_objects_pass(pool: Pool, maker: Maker) -> None:
    trees: list[Any] = [[], [{}], [{"outputs": 1, "node_type": ["x"]}, {"a": [[1]]}]]
    await db.ledger.append(pool, [maker.row("trace", {"trace_tree": tree}) for tree in trees])


async def test_the_mirror_cannot_be_written(admin: asyncpg.Connection) -> None:
    for statement in (
        "INSERT INTO trails.agent_audit_trails (trace_data) VALUES (NULL)",
        "INSERT INTO trails.agent_audit_trails (id) VALUES (1)",
    ):
        with pytest.raises(asyncpg.GeneratedAlwaysError):
            await admin.execute(statement)


async def test_every_column_but_the_idempotency_key_is_not_null(admin: asyncpg.Connection) -> None:
    nullable = await admin.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'trails' "
        "AND table_name = 'agent_audit_trails' AND is_nullable = 'YES'"
    )
    assert [row["column_name"] for row in nullable] == ["idempotency_key"]


async def test_a_negative_seq_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    row = resealed(maker.row(seq=-1), seq=-1)
    assert await refused(admin, row) == "trail_seq_range"


@pytest.mark.parametrize("kind", ["", "k" * 65])
async def test_a_kind_has_1_to_64_characters(admin: asyncpg.Connection, maker: Maker, kind: str) -> None:
    row = msgspec.structs.replace(maker.row(), kind=kind)
    assert await refused(admin, resealed(row, kind=kind)) == "trail_kind_length"


async def test_a_gap_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    maker.row()
    assert await refused(admin, maker.row()) == "trail_link"


async def test_a_fork_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    before = maker.head
    honest = maker.row(payload={"branch": "a"})
    maker.head = before
    forked = maker.row(payload={"branch": "b"})
    await db.ledger.append(admin, [honest])
    assert await refused(admin, forked) == "trail_pkey"


async def test_a_second_beginning_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    again = Maker(maker.tenant_id, maker.agent_id, maker.log_uuid)
    assert await refused(admin, again.genesis()) == "trail_pkey"


async def test_a_predecessor_that_is_not_the_one_before_is_refused(
    admin: asyncpg.Connection, maker: Maker
) -> None:
    row = maker.row(prev_hash=OTHER_HASH)
    assert await refused(admin, resealed(row, prev_hash=OTHER_HASH)) == "trail_link"


async def test_a_first_record_with_a_predecessor_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    other = Maker(maker.tenant_id, "agent-2")
    row = resealed(other.genesis(), prev_hash=OTHER_HASH)
    lying = msgspec.structs.replace(row, prev_hash=OTHER_HASH)
    assert await refused(admin, lying, chains=[other.chain]) == "trail_link"


async def test_the_head_of_another_chain_is_no_predecessor(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    other = await started_chain(pool, maker.tenant_id, "agent-2", records=3)
    other.head = maker.head
    assert await refused(admin, other.row()) == "trail_link"


async def test_a_chain_outside_the_registry_is_refused(admin: asyncpg.Connection, tenant: UUID) -> None:
    assert await refused(admin, Maker(tenant).genesis()) == "trail_registry"


async def test_a_row_under_another_agent_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    assert await refused(admin, maker.row(agent_id="agent-2")) == "trail_registry"


async def test_a_row_under_another_tenant_is_refused(
    admin: asyncpg.Connection, maker: Maker, other_tenant: UUID
) -> None:
    assert await refused(admin, maker.row(tenant_id=other_tenant)) == "trail_registry"


async def test_a_first_row_under_another_tenant_is_refused(
    admin: asyncpg.Connection, tenant: UUID, other_tenant: UUID
) -> None:
    fresh = Maker(tenant, "agent-9")
    row = msgspec.structs.replace(fresh.genesis(), tenant_id=other_tenant)
    assert await refused(admin, row, chains=[fresh.chain]) == "trail_registry"


async def test_a_key_outside_the_registry_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    assert await refused(admin, maker.row(key_id="0123456789abcdef")) == "trail_signing_key"


LIES_AMONG_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "predecessor": ("trail_link", {"prev_hash": OTHER_HASH}),
    "agent": ("trail_registry", {"agent_id": "agent-2"}),
    "key": ("trail_signing_key", {"key_id": "0123456789abcdef"}),
}


@pytest.mark.parametrize("lie", LIES_AMONG_OTHERS)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_lie_among_honest_rows_of_its_chain_is_refused(
    pool: Pool, admin: asyncpg.Connection, maker: Maker, lie: str, place: int
) -> None:
    await started_chain(pool, maker.tenant_id, "agent-2")
    constraint, changes = LIES_AMONG_OTHERS[lie]
    rows = maker.rows(3)
    rows[place] = msgspec.structs.replace(rows[place], **changes)
    if "prev_hash" in changes:
        rows[place] = resealed(rows[place], **changes)
    assert await refused_together(admin, rows) == constraint
    assert await refused_together(admin, rows[::-1]) == constraint


async def test_a_gap_within_one_statement_is_refused(admin: asyncpg.Connection, maker: Maker) -> None:
    first, _, last = maker.rows(3)
    assert await refused_together(admin, [first, last]) == "trail_link"
    bridged = msgspec.structs.replace(last, prev_hash=first.hash)
    assert await refused_together(admin, [first, resealed(bridged, prev_hash=first.hash)]) == "trail_link"


async def test_the_row_before_it_in_the_statement_is_no_predecessor_from_another_chain(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    other = await started_chain(pool, maker.tenant_id, "agent-2")
    mine = maker.row()
    other.head = maker.head
    assert await refused_together(admin, [mine, other.row()]) == "trail_link"


async def test_a_search_path_does_not_choose_what_is_compared(
    admin: asyncpg.Connection, maker: Maker
) -> None:
    await admin.execute(
        """
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.never(bytea, bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
        CREATE OPERATOR evil.<> (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.never);
        SET search_path = evil, pg_catalog;
        """
    )
    assert await refused(admin, maker.row(actor="bat")) == "trail_mirror"  # as long as the true one


async def test_p26_an_action_id_that_no_index_could_hold_is_refused_by_name(
    admin: asyncpg.Connection, maker: Maker
) -> None:
    row = maker.row("action_requested", {"action_id": uuid4().hex * 100})
    assert await refused(admin, row) == "trail_action_id_length"


async def test_triggers_hold_under_replication_role(admin: asyncpg.Connection, maker: Maker) -> None:
    await admin.execute("SET session_replication_role = replica")
    assert await refused(admin, maker.row(agent_id="agent-2")) == "trail_registry"
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute("DELETE FROM trails.agent_audit_trails")
    assert caught.value.sqlstate == "TR001"


async def refused(admin: asyncpg.Connection, row: TrailRow, chains: Sequence[ChainRow] = ()) -> str:
    """The name of the constraint that refuses ``row``; nothing is left of the attempt."""
    return await refused_together(admin, [row], chains)


async def refused_together(
    admin: asyncpg.Connection, rows: Sequence[TrailRow], chains: Sequence[ChainRow] = ()
) -> str:
    """The same of rows that come with one statement."""
    before = await count(admin)
    columns = db.ledger._columns(rows, TrailRow)
    statement = db.ledger._TRAIL["append"]
    if chains:
        statement = db.ledger._TRAIL["append_with_index"]
        columns += [*db.ledger._columns(chains, ChainRow), *db.ledger._columns((), SpanRow)]
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute(statement, "", *columns)
    assert await count(admin) == before
    return caught.value.constraint_name or str(caught.value)
