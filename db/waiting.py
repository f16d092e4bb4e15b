"""What the index of waiting actions says: which actions of a tenant wait for a person.

It is no evidence: the chains say what waits. Every function takes a pool, or a connection inside
``db.pool.tenant_transaction`` that names the tenant. Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from db.pool import Connection, Pool, for_tenant
from db.sql import statements

_SQL: Final = statements("waiting")


class WaitingRow(msgspec.Struct, frozen=True):
    """One action that waits, with its chain; the time is aware, UTC.

    Attributes:
        seq: place of the chain's newest record; None when the table holds none.
        hash: that record's hash.
    """

    log_uuid: UUID
    action_id: str
    held_at: datetime
    agent_id: str
    guarded: bool
    seq: int | None
    hash: str | None


async def queue(
    source: Pool | Connection,
    tenant_id: UUID,
    after: tuple[datetime, UUID, str],
    *,
    limit: int,
    log_uuid: UUID | None = None,
) -> list[WaitingRow]:
    """What waits behind a place (when it was held, chain, action), oldest first; at most ``limit``.

    With ``log_uuid`` what waits in that chain alone.
    """
    async with for_tenant(source, tenant_id) as connection:
        rows = await connection.fetch(_SQL["queue"], tenant_id, *after, limit, log_uuid)
    return [WaitingRow(*row) for row in rows]


async def length(source: Pool | Connection, tenant_id: UUID, *, most: int) -> int:
    """How many actions of the tenant wait, counted up to ``most``."""
    async with for_tenant(source, tenant_id) as connection:
        return int(await connection.fetchval(_SQL["length"], tenant_id, most))
