"""What the ledger asks of the database about sessions: their records in order, and finding them by time.

Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

import msgspec

from db.ledger import CHUNK, CHUNK_BYTES, TrailRow
from db.pool import Pool, tenant_transaction
from db.sql import statements

LOOKED_AT: Final = 5_000
"""Records that one page of sessions looks at, at most (and those of the same moment as the last one)."""

_SQL: Final = statements("sessions")


class Place(msgspec.Struct, frozen=True):
    """Where a record stands in its session: they are in order of time, then chain, then ``seq``."""

    created_at: datetime
    log_uuid: UUID
    seq: int


class Beginning(msgspec.Struct, frozen=True):
    """Where a session begins: its first record's time, and its id."""

    created_at: datetime
    session_id: UUID


class Found(msgspec.Struct, frozen=True):
    """Sessions by their beginnings, newest first, and where the next look goes on (None: nothing is left)."""

    beginnings: list[Beginning]
    following: Beginning | None


class Extent(msgspec.Struct, frozen=True):
    """How many records a session has, and the time of the last one; None when there is none."""

    records: int
    last: datetime | None


class Wanted(msgspec.Struct, frozen=True):
    """Which sessions are wanted; None asks nothing. The last three must hold of one and the same node."""

    agent_id: str | None = None
    status: str | None = None
    tool: str | None = None
    node_type: str | None = None

    @property
    def all(self) -> bool:
        """Whether every session is wanted."""
        return self == Wanted()


class Entry(msgspec.Struct, frozen=True):
    """One session of a list, as the view ``trails.sessions`` counts it."""

    session_id: UUID
    agents: list[str]
    records: int
    nodes: int
    tool_calls: int
    failed_tool_calls: int
    first_recorded_at: datetime
    last_recorded_at: datetime


class Sums(msgspec.Struct, frozen=True):
    """Calls of a session, what it used, and when its senders say that it ran; None where nobody said."""

    session_id: UUID
    tool_calls: int
    failed_tool_calls: int
    total_tokens: Decimal | None
    cost: Decimal | None
    started_at: datetime | None
    ended_at: datetime | None


class Model(msgspec.Struct, frozen=True):
    """What one model used in a session; ``model`` is None where tokens were sent without one."""

    model: str | None
    calls: int
    input_tokens: Decimal | None
    output_tokens: Decimal | None
    total_tokens: Decimal | None
    cost: Decimal | None


async def rows(
    pool: Pool, tenant_id: UUID, session_id: UUID, *, after: Place, upto: datetime, limit: int = CHUNK
) -> list[TrailRow]:
    """Some records of a session behind ``after``, none later than ``upto``.

    At most ``limit``, and about ``CHUNK_BYTES`` of text; there is always the next one, if there is one.
    """
    arguments = (tenant_id, session_id, *msgspec.structs.astuple(after), upto, limit, CHUNK_BYTES)
    async with tenant_transaction(pool, tenant_id) as connection:
        return [TrailRow(*row) for row in await connection.fetch(_SQL["rows"], *arguments)]


async def extent(pool: Pool, tenant_id: UUID, session_id: UUID) -> Extent:
    """How much there is of a session, which tells whether it is still what it was."""
    async with tenant_transaction(pool, tenant_id) as connection:
        [row] = await connection.fetch(_SQL["extent"], tenant_id, session_id)
    return Extent(*row)


async def beginnings(
    pool: Pool, tenant_id: UUID, *, since: datetime, until: datetime, after: Beginning, most: int
) -> Found:
    """Sessions that begin from ``since`` on and before ``until``, newest first, those behind ``after``."""
    arguments = (tenant_id, since, until, after.created_at, after.session_id, most)
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["candidates"], *arguments)
    following = None
    if found and found[-1]["looked_at"] >= most:
        following = Beginning(found[-1]["created_at"], found[-1]["session_id"])
    return Found(
        [Beginning(row["created_at"], row["session_id"]) for row in found if row["begins"]], following
    )


async def sizes(pool: Pool, tenant_id: UUID, session_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Signed text of each of these sessions, in bytes."""
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["sizes"], tenant_id, list(session_ids))
    return {row["session_id"]: row["size"] for row in found}


async def matching(
    pool: Pool, tenant_id: UUID, session_ids: Sequence[UUID], wanted: Wanted, limit: int
) -> list[UUID]:
    """Those of the sessions that are wanted, in their order, at most ``limit``."""
    if wanted.all:
        return list(session_ids[:limit])
    asked = msgspec.structs.astuple(wanted)
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["matching"], tenant_id, list(session_ids), *asked, limit)
    return [row["session_id"] for row in found]


async def entries(pool: Pool, tenant_id: UUID, session_ids: Sequence[UUID]) -> list[Entry]:
    """What there is to say of these sessions, in their order."""
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["entries"], tenant_id, list(session_ids))
    by_id = {row["session_id"]: Entry(*row) for row in found}
    return [by_id[session_id] for session_id in session_ids if session_id in by_id]


async def sums(pool: Pool, tenant_id: UUID, session_ids: Sequence[UUID]) -> dict[UUID, Sums]:
    """What each of these sessions used."""
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["sums"], tenant_id, list(session_ids))
    return {row["session_id"]: Sums(*row) for row in found}


async def models(pool: Pool, tenant_id: UUID, session_id: UUID) -> list[Model]:
    """What each model used in one session, the most tokens first."""
    async with tenant_transaction(pool, tenant_id) as connection:
        found = await connection.fetch(_SQL["models"], tenant_id, session_id)
    return [Model(*row) for row in found]
