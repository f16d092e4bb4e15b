"""What is asked of the database for people who look around: parts of the registry, parts of one chain.

Every question looks at a bounded number of rows, whatever it asks for. Errors are those of
``db.errors.translate``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from db.ledger import ChainRow, TrailRow
from db.pool import Pool, for_tenant
from db.sql import statements

_SQL: Final = statements("browse")


class AgentsWanted(msgspec.Struct, frozen=True):
    """Which agents: whose id holds ``text``, in whatever case; ``guarded`` or not (None: either)."""

    text: str = ""
    guarded: bool | None = None


class RecordsWanted(msgspec.Struct, frozen=True):
    """Which records, by what their columns say; None asks nothing. ``act`` is an administrative act."""

    kind: str | None = None
    actor: str | None = None
    action_id: str | None = None
    act: str | None = None
    session_id: UUID | None = None


class BrowsedRow(msgspec.Struct, frozen=True):
    """A record, and the hash that stands in the record before it (None: there is none)."""

    row: TrailRow
    before_hash: str | None


async def agents(
    pool: Pool, tenant_id: UUID, wanted: AgentsWanted, *, beyond: str | None, limit: int, descending: bool
) -> list[ChainRow]:
    """Some agents by id: those beyond one of these, in the direction asked for; never the administration."""
    statement = _SQL["agents_before" if descending else "agents_after"]
    place = beyond if descending else beyond or ""
    async with for_tenant(pool, tenant_id) as connection:
        rows = await connection.fetch(statement, tenant_id, place, wanted.text.lower(), wanted.guarded, limit)
    return [ChainRow(*row) for row in rows]


async def agents_count(pool: Pool, tenant_id: UUID, wanted: AgentsWanted) -> int:
    """How many agents these are."""
    async with for_tenant(pool, tenant_id) as connection:
        found = await connection.fetchval(
            _SQL["agents_count"], tenant_id, wanted.text.lower(), wanted.guarded
        )
    return int(found)


async def first_since(pool: Pool, tenant_id: UUID, log_uuid: UUID, moment: datetime, end: int) -> int:
    """The first seq below ``end`` whose record is not older than ``moment``; ``end`` when there is none."""
    async with for_tenant(pool, tenant_id) as connection:
        return int(await connection.fetchval(_SQL["first_since"], tenant_id, log_uuid, moment, end))


async def first_of_action(pool: Pool, tenant_id: UUID, log_uuid: UUID, action_id: str) -> int | None:
    """The seq of the first record of an action, if there is one."""
    async with for_tenant(pool, tenant_id) as connection:
        found = await connection.fetchval(_SQL["first_of_action"], tenant_id, log_uuid, action_id)
    return None if found is None else int(found)


async def span_of_session(
    pool: Pool, tenant_id: UUID, log_uuid: UUID, session_id: UUID
) -> tuple[int, int] | None:
    """First and last seq of a session's records in one chain, if there are any."""
    async with for_tenant(pool, tenant_id) as connection:
        found = await connection.fetchrow(_SQL["span_of_session"], tenant_id, log_uuid, session_id)
    return None if found is None or found["first"] is None else (found["first"], found["last"])


async def records(
    pool: Pool,
    tenant_id: UUID,
    log_uuid: UUID,
    wanted: RecordsWanted,
    *,
    window: range,
    limit: int,
    most_bytes: int,
    descending: bool,
) -> list[BrowsedRow]:
    """The wanted records within a window of seqs, in the direction asked for.

    At most ``limit``, and about ``most_bytes`` of signed text: there is always the first one, if any.
    """
    statement = _SQL["records_down" if descending else "records_up"]
    async with for_tenant(pool, tenant_id) as connection:
        rows = await connection.fetch(
            statement,
            tenant_id,
            log_uuid,
            window.start,
            window.stop,
            limit,
            most_bytes,
            *msgspec.structs.astuple(wanted),
        )
    return [BrowsedRow(TrailRow(*tuple(row)[:-1]), row["before_hash"]) for row in rows]
