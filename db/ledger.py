"""What the ledger asks of the database: appending rows and reading them back.

Rows are evidence as read, not yet verified: ``app.ledger`` verifies them before anything is decided on
them. Every function takes a pool, or a connection inside ``db.pool.tenant_transaction`` that names the
tenant. Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from app.errors import KeyMaterialError
from db.errors import translate
from db.pool import Connection, Pool, for_tenant, tenant_setting, tenant_transaction
from db.sql import statements

CHUNK: Final = 1_000
"""Rows fetched at a time when a whole chain is read."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Signed text fetched at a time: a record that crosses it is the last, so one large record more at most."""

_TRAIL: Final = statements("trail")
_REGISTRY: Final = statements("registry")
_SESSION: Final = statements("session")


class TrailRow(msgspec.Struct, frozen=True):
    """One record as the table holds it; times are aware, UTC. Columns in the order of the statements."""

    tenant_id: UUID
    agent_id: str
    log_uuid: UUID
    seq: int
    kind: str
    actor: str
    session_id: UUID
    created_at: datetime
    prev_hash: str
    hash: str
    signature: str
    key_id: str
    idempotency_key: str | None
    signed_text: str


class ChainRow(msgspec.Struct, frozen=True):
    """One chain of the registry."""

    tenant_id: UUID
    agent_id: str
    log_uuid: UUID
    guarded: bool
    created_at: datetime


class SpanRow(msgspec.Struct, frozen=True):
    """Which record holds a span: an index, to be checked against that record."""

    tenant_id: UUID
    trace_id: bytes
    span_id: bytes
    log_uuid: UUID
    seq: int


class TenantRow(msgspec.Struct, frozen=True):
    """One tenant."""

    tenant_id: UUID
    slug: str
    name: str
    created_at: datetime


class SigningKeyRow(msgspec.Struct, frozen=True):
    """One signing key of a tenant; the secret is sealed under the master key."""

    tenant_id: UUID
    key_id: str
    public_key: str
    sealed_secret: bytes
    created_at: datetime


async def append(
    source: Pool | Connection,
    rows: Sequence[TrailRow],
    *,
    chains: Sequence[ChainRow] = (),
    spans: Sequence[SpanRow] = (),
) -> None:
    """Appends all of ``rows``, registers ``chains`` and indexes ``spans`` with them, or does nothing at all.

    One statement: with a pool it is one transaction and one round trip. Rows may belong to any number of
    chains and tenants, in any order: they are inserted in the order of their key, so that two writers of
    the same chains (or of the same spans) wait for each other instead of ending in a deadlock (case P18).

    Raises:
        StaleChainError: a ``seq`` is taken, or its predecessor is missing.
        DuplicateKeyError: an idempotency key stands in its chain already.
        DuplicateSpanError: its chain holds one of ``spans`` already.
        AgentExistsError: the id of one of ``chains`` is taken (which one is known if there is one only).
        UnavailableError: nothing is known to be written; read before deciding again.
    """
    if not rows:
        return
    tenants = tenant_setting(*dict.fromkeys(row.tenant_id for row in rows))
    arguments = [tenants, *_columns(_sorted(rows), TrailRow)]
    statement = _TRAIL["append"]
    if chains or spans:
        statement = _TRAIL["append_with_index"]
        in_order = sorted(spans, key=_span_order)
        arguments += [*_columns(chains, ChainRow), *_columns(in_order, SpanRow)]
    with translate(chains[0].agent_id if len(chains) == 1 else ""):
        await source.execute(statement, *arguments)


async def head(source: Pool | Connection, tenant_id: UUID, log_uuid: UUID) -> tuple[int, str] | None:
    """``(seq, hash)`` of the chain's newest record; None for a chain without records."""
    row = await _fetchrow(source, tenant_id, _TRAIL["head"], tenant_id, log_uuid)
    return None if row is None else (row["seq"], row["hash"])


async def records(
    source: Pool | Connection,
    tenant_id: UUID,
    log_uuid: UUID,
    *,
    after: int = -1,
    limit: int = CHUNK,
    most_bytes: int | None = None,
) -> list[TrailRow]:
    """Some records with ``seq`` above ``after``, in order: at most ``limit``, and about ``most_bytes``.

    Without ``most_bytes`` it is about ``CHUNK_BYTES``. There is always the next one, if there is one; the end
    is reached when there is none.
    """
    arguments = (tenant_id, log_uuid, after, limit, most_bytes or CHUNK_BYTES)
    return await _trail_rows(source, tenant_id, _TRAIL["records"], *arguments)


async def each_chunk(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, *, after: int = -1, size: int = CHUNK
) -> AsyncIterator[list[TrailRow]]:
    """All records with ``seq`` above ``after``, in order, in lists of at most ``size``.

    With a pool, each list is a transaction of its own: no transaction stays open while the caller works.
    """
    while chunk := await records(source, tenant_id, log_uuid, after=after, limit=size):
        yield chunk
        after = chunk[-1].seq


async def row_at(source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, seq: int) -> TrailRow | None:
    """The record at ``seq``, if there is one."""
    return _first(await _trail_rows(source, tenant_id, _TRAIL["row_at"], tenant_id, log_uuid, seq))


async def rows_at(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, seqs: Sequence[int]
) -> list[TrailRow]:
    """The records at these positions, in order; one that is missing is left out."""
    return await _trail_rows(source, tenant_id, _TRAIL["rows_at"], tenant_id, log_uuid, list(seqs))


async def by_idempotency_keys(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, keys: Sequence[str]
) -> list[TrailRow]:
    """The records of a chain that carry one of these idempotency keys (64 hex digits each)."""
    return await _trail_rows(
        source, tenant_id, _TRAIL["by_idempotency_keys"], tenant_id, log_uuid, list(keys)
    )


async def span_rows(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, keys: Sequence[tuple[bytes, bytes]]
) -> list[SpanRow]:
    """What the index says of spans (trace id, span id) in one chain; one that is not there is left out."""
    columns = [[trace_id for trace_id, _ in keys], [span_id for _, span_id in keys]]
    rows = await _fetch(source, tenant_id, _TRAIL["span_rows"], tenant_id, log_uuid, *columns)
    return [SpanRow(*row) for row in rows]


async def rows_of(
    source: Pool | Connection,
    tenant_id: UUID,
    places: Sequence[tuple[UUID, int]],
    *,
    most_bytes: int | None = None,
) -> list[TrailRow]:
    """The records at these places (chain, ``seq``) of any chains of a tenant; missing ones are left out.

    They come in the order asked for. With ``most_bytes`` they end with the one whose text reaches so many.
    """
    columns = [[log_uuid for log_uuid, _ in places], [seq for _, seq in places]]
    return await _trail_rows(source, tenant_id, _TRAIL["rows_of"], tenant_id, *columns, most_bytes)


async def each_of(
    source: Pool | Connection, tenant_id: UUID, places: Sequence[tuple[UUID, int]], most_bytes: int
) -> AsyncIterator[list[TrailRow]]:
    """The same, of places that differ, in lists of about ``most_bytes`` of text: one record more at most.

    With a pool, each list is a transaction of its own: no transaction stays open while the caller works.
    """
    following = {place: number + 1 for number, place in enumerate(places)}
    begin = 0
    while begin < len(places):
        asked = places[begin : begin + CHUNK]
        rows = await rows_of(source, tenant_id, asked, most_bytes=most_bytes)
        if rows:
            yield rows
        # Those before the last row that did not come are not there; of those behind it nothing is known yet.
        begin = following[rows[-1].log_uuid, rows[-1].seq] if rows else begin + len(asked)


async def by_idempotency(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, key: str
) -> TrailRow | None:
    """The record that carries the idempotency key (64 hex digits), if there is one."""
    return _first(await _trail_rows(source, tenant_id, _TRAIL["by_idempotency"], tenant_id, log_uuid, key))


async def action_rows(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, action_id: str
) -> list[TrailRow]:
    """The records of one action of the guard in order of ``seq``, without asks that joined it."""
    return await _trail_rows(source, tenant_id, _TRAIL["action_rows"], tenant_id, log_uuid, action_id)


async def claim_row(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, action_id: str, *, after: int, upto: int
) -> TrailRow | None:
    """The claim of one action with a ``seq`` above ``after`` and up to ``upto``, if there is one."""
    places = (tenant_id, log_uuid, after, upto, action_id)
    return _first(await _trail_rows(source, tenant_id, _TRAIL["claim_row"], *places))


async def newest_snapshot(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, *, upto: int
) -> TrailRow | None:
    """The snapshot with the highest ``seq`` up to ``upto``, if the chain has one."""
    statement = _TRAIL["newest_snapshot"]
    return _first(await _trail_rows(source, tenant_id, statement, tenant_id, log_uuid, upto))


async def scar_rows(
    source: Pool | Connection, tenant_id: UUID, log_uuid: UUID, upto_seq: int
) -> list[TrailRow]:
    """All scars with ``seq`` up to and including ``upto_seq``, in order."""
    return await _trail_rows(source, tenant_id, _TRAIL["scar_rows"], tenant_id, log_uuid, upto_seq)


async def chain(source: Pool | Connection, tenant_id: UUID, agent_id: str) -> ChainRow | None:
    """The registry's row of one agent."""
    row = await _fetchrow(source, tenant_id, _REGISTRY["chain"], tenant_id, agent_id)
    return None if row is None else ChainRow(*row)


async def agent_called(source: Pool | Connection, tenant_id: UUID, folded: str) -> str | None:
    """The id of an agent that is ``folded`` but for its case, if there is one; asks all of the tenant's."""
    row = await _fetchrow(source, tenant_id, _REGISTRY["agent_called"], tenant_id, folded)
    return None if row is None else str(row[0])


async def chains(source: Pool | Connection, tenant_id: UUID) -> list[ChainRow]:
    """All chains of a tenant, by agent id."""
    return [ChainRow(*row) for row in await _fetch(source, tenant_id, _REGISTRY["chains"], tenant_id)]


async def chains_after(
    source: Pool | Connection, tenant_id: UUID, after: str, *, limit: int
) -> list[ChainRow]:
    """Some chains of a tenant, by agent id, behind one of these; at most ``limit``."""
    rows = await _fetch(source, tenant_id, _REGISTRY["chains_after"], tenant_id, after, limit)
    return [ChainRow(*row) for row in rows]


async def logs(
    source: Pool | Connection, tenant_id: UUID, *, since: UUID, limit: int
) -> list[tuple[UUID, bool]]:
    """Chains that rows of the table name, from ``since`` on, each with whether the registry has it."""
    rows = await _fetch(source, tenant_id, _REGISTRY["logs"], tenant_id, since, limit)
    return [(row["log_uuid"], row["registered"]) for row in rows]


async def chains_among(
    source: Pool | Connection, tenant_id: UUID, agent_ids: Sequence[str]
) -> list[ChainRow]:
    """The chains of those of the agents that exist, by agent id."""
    rows = await _fetch(source, tenant_id, _REGISTRY["chains_among"], tenant_id, list(agent_ids))
    return [ChainRow(*row) for row in rows]


async def add_tenant(source: Pool | Connection, row: TenantRow) -> bool:
    """Adds a tenant; False when one of this id is there already.

    Raises:
        ConflictError: another tenant has this slug.
    """
    async with for_tenant(source, row.tenant_id) as connection:
        return _added(await connection.execute(_REGISTRY["add_tenant"], *msgspec.structs.astuple(row)))


async def tenant(source: Pool | Connection, tenant_id: UUID) -> TenantRow | None:
    """One tenant by its id."""
    row = await _fetchrow(source, tenant_id, _REGISTRY["tenant"], tenant_id)
    return None if row is None else TenantRow(*row)


async def tenant_by_slug(pool: Pool, slug: str) -> TenantRow | None:
    """One tenant by its slug. Sees that row alone."""
    async with tenant_transaction(pool) as connection:
        await connection.execute(_SESSION["name_slug"], slug)
        row = await connection.fetchrow(_REGISTRY["tenant_by_slug"], slug)
    return None if row is None else TenantRow(*row)


async def add_signing_key(source: Pool | Connection, row: SigningKeyRow) -> bool:
    """Adds a key of a tenant; False when it is there already."""
    async with for_tenant(source, row.tenant_id) as connection:
        return _added(await connection.execute(_REGISTRY["add_signing_key"], *msgspec.structs.astuple(row)))


async def signing_keys(source: Pool | Connection, tenant_id: UUID) -> list[SigningKeyRow]:
    """All keys of a tenant by the time that the table gives them, which is to be held against their seals.

    Raises:
        KeyMaterialError: one has a time that the service never writes, such as infinity.
    """
    try:
        found = await _fetch(source, tenant_id, _REGISTRY["signing_keys"], tenant_id)
    except OverflowError:
        found = None
    rows = [] if found is None else [SigningKeyRow(*row) for row in found]
    if found is None or any(row.created_at.tzinfo is None for row in rows):  # infinities come without a zone
        raise KeyMaterialError("the time of a signing key is none that the service wrote")
    return rows


async def _fetch(
    source: Pool | Connection, tenant_id: UUID, statement: str, *args: object
) -> list[asyncpg.Record]:
    async with for_tenant(source, tenant_id) as connection:
        return await connection.fetch(statement, *args)


async def _fetchrow(
    source: Pool | Connection, tenant_id: UUID, statement: str, *args: object
) -> asyncpg.Record | None:
    async with for_tenant(source, tenant_id) as connection:
        return await connection.fetchrow(statement, *args)


async def _trail_rows(
    source: Pool | Connection, tenant_id: UUID, statement: str, *args: object
) -> list[TrailRow]:
    return [TrailRow(*row) for row in await _fetch(source, tenant_id, statement, *args)]


def _sorted(rows: Sequence[TrailRow]) -> list[TrailRow]:
    return sorted(rows, key=lambda row: (row.tenant_id.int, row.log_uuid.int, row.seq))


def _span_order(row: SpanRow) -> tuple[int, bytes, bytes, int]:
    return row.tenant_id.int, row.trace_id, row.span_id, row.log_uuid.int


def _first(rows: list[TrailRow]) -> TrailRow | None:
    return rows[0] if rows else None


def _added(status: str) -> bool:
    """Whether the command's status ("INSERT 0 1") tells of a row."""
    return status.endswith(" 1")


def _columns(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> list[list[Any]]:
    """Rows of ``kind`` turned into one list a column, as ``unnest`` takes them."""
    if not rows:
        return [[] for _ in kind.__struct_fields__]
    return [list(column) for column in zip(*map(msgspec.structs.astuple, rows), strict=True)]
