"""Reads rows as they stand in pieces of bounded size: where they stand first, then what they hold.

Only places are sorted and kept; the rows themselves are fetched in pieces of some MiB of text, whatever their
number. The JSONB mirror never leaves the server: a number such as 1e308 takes 309 characters there, so that
a body of 4 MiB would be 200 MiB of text. The server says whether mirror and text are the same value.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from db.ledger import TrailRow
from db.pool import Connection
from db.sql import statements

CHUNK_ROWS: Final = 500
"""Rows fetched at once at most."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Text fetched at once at most; a row that is larger comes alone."""

MAX_ROW_BYTES: Final = 64 * 1024 * 1024
"""No record comes near it; a larger row is a fault, and is not read."""

_AUDIT = statements("audit")
_NEVER: Final = datetime.min.replace(tzinfo=UTC)

# Of SQLSTATE: a text that is no JSON or too deep for JSONB, and columns that are no longer of these types.
# Nothing passing is among them, and no missing privilege.
_NO_VALUE: Final = ("22", "54")
_NO_COMPARISON: Final = frozenset({"42703", "42804", "42846", "42883"})


Place = tuple[UUID | None, UUID | None]
"""A chain as the table names it: tenant and log_uuid, of which either may be missing."""


class Spot(msgspec.Struct, frozen=True):
    """Where a row stands: table and place in it, its chain and ``seq``, and the bytes of its texts."""

    table: int
    tid: str
    tenant_id: UUID | None
    log_uuid: UUID | None
    seq: int | None
    size: int

    @property
    def place(self) -> Place:
        """The chain that it belongs to, as the table says."""
        return self.tenant_id, self.log_uuid


class AuditedRow(msgspec.Struct, frozen=True):
    """A row as it was read: ``trail`` is what the service reads of it, None when it is too large to read.

    ``mirrored`` says whether ``trace_data`` is the payload of the text; None when the two cannot be compared.
    """

    spot: Spot
    id: int | None
    trail: TrailRow | None
    mirrored: bool | None


async def pieces(connection: Connection, statement: str, *arguments: object) -> AsyncIterator[list[Spot]]:
    """What ``statement`` finds, in its order, in pieces that may be fetched at once; none is empty."""
    piece: list[Spot] = []
    size = 0
    cursor = await connection.cursor(statement, *arguments)
    while chunk := await cursor.fetch(CHUNK_ROWS):
        for found in chunk:
            spot = Spot(*found)
            if piece and (size + spot.size > CHUNK_BYTES or len(piece) >= CHUNK_ROWS):
                yield piece
                piece, size = [], 0
            piece.append(spot)
            size += spot.size
    if piece:
        yield piece


async def fetch(
    connection: Connection, statement: str, spots: Sequence[Spot]
) -> dict[tuple[int, str], list[Any]]:
    """What ``statement`` says of the rows at ``spots``, by table and place."""
    rows = await connection.fetch(statement, [spot.tid for spot in spots])
    return {(table, tid): columns for table, tid, *columns in rows}


async def read_rows(connection: Connection, spots: Sequence[Spot]) -> AsyncIterator[AuditedRow]:
    """The rows at ``spots``, in their order; they are no more than may be fetched at once."""
    readable = [spot for spot in spots if spot.size <= MAX_ROW_BYTES]
    rows = await fetch(connection, _AUDIT["rows_at"], readable)
    mirrored = await _mirrored(connection, readable)
    for spot in spots:
        at = (spot.table, spot.tid)
        if at in rows:
            row_id, *columns = rows[at]
            yield AuditedRow(spot, row_id, _trail(columns), mirrored.get(at))
        else:
            yield AuditedRow(spot, None, None, None)


async def _mirrored(connection: Connection, spots: Sequence[Spot]) -> dict[tuple[int, str], bool]:
    """Whether each row's mirror is the payload of its text; rows that cannot be compared are left out."""
    if not spots:
        return {}
    try:
        async with connection.transaction():  # what fails must not end the audit's own transaction
            rows = await connection.fetch(_AUDIT["mirrors_at"], [spot.tid for spot in spots])
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        if state in _NO_COMPARISON or (state[:2] in _NO_VALUE and len(spots) == 1):
            return {}
        if state[:2] not in _NO_VALUE:
            raise
        half = len(spots) // 2
        return await _mirrored(connection, spots[:half]) | await _mirrored(connection, spots[half:])
    return {(table, tid): same for table, tid, same in rows}


def _trail(columns: list[Any]) -> TrailRow:
    """The row as it stands: whatever a column holds, it is compared, not believed."""
    columns[7] = moment(columns[7])
    return TrailRow(*columns)


def moment(text: object) -> datetime:
    """A time in PostgreSQL's ISO spelling; one that Python cannot hold equals no record's time."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(text))
    return _NEVER
