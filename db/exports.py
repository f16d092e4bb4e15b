"""What an export asks of the database: all of it in one snapshot, in pieces of bounded size.

Everything happens on one connection, in a transaction that reads only and sees one moment (REPEATABLE READ).
Records are read by their key, piece by piece, which within one snapshot is what a cursor gives; views, which
have no key, through a cursor of the server. Both work behind a pooler. Errors are those of
``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from db.errors import translate
from db.pool import ACQUIRE_SECONDS, Connection, Pool, give_back, take_back, tenant_setting
from db.sql import statements

PIECE_ROWS: Final = 500
PIECE_BYTES: Final = 1024 * 1024
"""Rows and text read at once, and one record more: an export's memory, whatever it exports."""

RECORD_SECS: Final = 60.0
"""Longest wait for one piece of a chain."""

VIEW_SECS: Final = 900.0
"""Longest wait for a piece of a view: it is computed and sorted before its first row."""

_FIRST_FETCH: Final = 16
_SQL: Final = statements("exports")
_SESSION: Final = statements("session")


class Chain(msgspec.Struct, frozen=True):
    """One chain to export; ``length`` is how many records it has, by the ``seq`` of the last one."""

    agent_id: str
    log_uuid: UUID
    length: int


class PublicKeyRow(msgspec.Struct, frozen=True):
    """One public key of the tenant (hex); ``created_at`` is aware, UTC."""

    key_id: str
    public_key: str
    created_at: datetime


class Record(msgspec.Struct, frozen=True):
    """One record as it stands, not verified; times are aware, UTC. Columns in the order of the statement."""

    agent_id: str
    log_uuid: UUID
    seq: int
    created_at: datetime
    kind: str
    actor: str
    session_id: UUID
    prev_hash: str
    hash: str
    signature: str
    key_id: str
    signed_text: str


_RECORD_TYPES: Final = {
    "log_uuid": "uuid",
    "seq": "bigint",
    "created_at": "timestamp with time zone",
    "session_id": "uuid",
}

RECORD_COLUMNS: Final = tuple((name, _RECORD_TYPES.get(name, "text")) for name in Record.__struct_fields__)
"""Name and PostgreSQL type of each column of a record's row."""


class Between(msgspec.Struct, frozen=True):
    """From ``since`` on and before ``until`` (aware); None: no bound."""

    since: datetime | None = None
    until: datetime | None = None


class ViewQuery(msgspec.Struct, frozen=True):
    """A view to read: names of ours, never what came in.

    ``agents_column`` holds an agent's id, or with ``many_agents`` the ids of several.
    """

    name: str
    time_column: str
    order: str
    agents_column: str = "agent_id"
    many_agents: bool = False


@asynccontextmanager
async def snapshot(pool: Pool, tenant_id: UUID) -> AsyncIterator[Connection]:
    """A connection that sees the tenant's rows of one moment, as long as the block runs; it writes nothing.

    Raises:
        UnavailableError and the other errors of ``db.errors.translate``.
    """
    with translate():
        connection = await pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            transaction = connection.transaction(isolation="repeatable_read", readonly=True)
            try:
                await transaction.start()
                await connection.execute(_SESSION["name_tenants"], tenant_setting(tenant_id))
                await last_long(connection)
                yield connection
            except BaseException as error:
                await take_back(connection, transaction, error)
                raise
            await transaction.commit()
        finally:
            await give_back(pool, connection)


async def last_long(connection: Connection) -> None:
    """For the present transaction: it may last, and times have one spelling."""
    await connection.execute(_SQL["last_long"])


async def taken_at(connection: Connection) -> datetime:
    """The moment of the snapshot, aware."""
    return await connection.fetchval(_SQL["taken_at"])  # type: ignore[no-any-return]  # a timestamptz


async def public_keys(connection: Connection, tenant_id: UUID) -> list[PublicKeyRow]:
    """The tenant's public keys, oldest first."""
    return [PublicKeyRow(*row) for row in await connection.fetch(_SQL["public_keys"], tenant_id)]


async def chains(connection: Connection, tenant_id: UUID, agents: Sequence[str] | None) -> list[Chain]:
    """The tenant's chains by agent, or those of some agents; one that is not there is left out."""
    wanted = None if agents is None else list(agents)
    return [Chain(*row) for row in await connection.fetch(_SQL["chains"], tenant_id, wanted)]


async def records(
    connection: Connection, tenant_id: UUID, chain: Chain, between: Between, *, after: tuple[int, str]
) -> AsyncIterator[list[Record]]:
    """The records of a chain behind a position (seq and hash), in order, in pieces; none is empty."""
    while True:
        rows = await connection.fetch(
            _SQL["records"],
            tenant_id,
            chain.log_uuid,
            *after,
            PIECE_ROWS,
            PIECE_BYTES,
            between.since,
            between.until,
            timeout=RECORD_SECS,
        )
        if not rows:
            return
        piece = [Record(*row) for row in rows]
        yield piece
        after = piece[-1].seq, piece[-1].hash


async def columns(connection: Connection, view: str) -> list[tuple[str, str]]:
    """Name and PostgreSQL type of each column of a view."""
    return [(row["attname"], row["type"]) for row in await connection.fetch(_SQL["columns"], view)]


async def rows(
    connection: Connection, tenant_id: UUID, view: ViewQuery, agents: Sequence[str] | None, between: Between
) -> AsyncIterator[list[tuple[Any, ...]]]:
    """The tenant's rows of a view in order, in pieces; none is empty."""
    cursor = f"export_{view.name}"
    query, arguments = _query(view, tenant_id, agents, between)
    await connection.execute(f"DECLARE {cursor} NO SCROLL CURSOR FOR {query}", *arguments, timeout=VIEW_SECS)
    count = _FIRST_FETCH
    while found := await connection.fetch(f"FETCH FORWARD {count} FROM {cursor}", timeout=VIEW_SECS):
        piece = [tuple(row) for row in found]
        yield piece
        # Rows may hold anything from some bytes to megabytes: after a light piece comes a longer one.
        size = sum(len(value) for row in piece for value in row if isinstance(value, str))
        count = max(1, min(PIECE_ROWS, 2 * count if size < PIECE_BYTES // 2 else count // 2))
    await connection.execute(f"CLOSE {cursor}")


def _query(
    view: ViewQuery, tenant_id: UUID, agents: Sequence[str] | None, between: Between
) -> tuple[str, list[object]]:
    arguments: list[object] = [tenant_id]
    conditions = ["v.tenant_id = $1"]

    def also(condition: str, value: object) -> None:
        arguments.append(value)
        conditions.append(condition.format(f"${len(arguments)}"))

    if agents is not None:
        column = f"v.{view.agents_column}"
        also(
            f"{column} && {{}}::text[]" if view.many_agents else f"{column} = ANY ({{}}::text[])",
            list(agents),
        )
    if between.since is not None:
        also(f"v.{view.time_column} >= {{}}::timestamptz", between.since)
    if between.until is not None:
        also(f"v.{view.time_column} < {{}}::timestamptz", between.until)
    where = " AND ".join(conditions)
    # Only names of ours are put into the text.
    return f"SELECT v.* FROM trails.{view.name} AS v WHERE {where} ORDER BY {view.order}", arguments  # noqa: S608
