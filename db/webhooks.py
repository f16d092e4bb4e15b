"""What is stored of webhooks: how they were set up, how far each is, and who delivers it.

Every function takes a pool, or a connection inside ``db.pool.tenant_transaction`` that names the tenant.
Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from db.pool import Connection, Pool, for_tenant, tenant_transaction
from db.sql import statements

_SQL: Final = statements("webhooks")
_ACCESS: Final = statements("access")


class WebhookRow(msgspec.Struct, frozen=True):
    """One webhook as the tables hold it; a genuine one only when its seal opens. Times are aware, UTC."""

    tenant_id: UUID
    webhook_id: str
    name: str
    kinds: list[str] | None
    agents: list[str] | None
    sealed: bytes
    created_at: datetime
    delivered: int = 0
    failures: int = 0
    failing_since: datetime | None = None
    problem: str | None = None


class Claimed(msgspec.Struct, frozen=True):
    """How far a webhook is that is held now: its cursor, the time of the last record told, its failures."""

    cursor: str
    told_at: datetime
    failures: int


class Held(msgspec.Struct, frozen=True):
    """A webhook, and who delivers it."""

    tenant_id: UUID
    webhook_id: str
    holder: UUID


async def add(source: Pool | Connection, row: WebhookRow, cursor: str) -> None:
    """Adds a webhook whose telling begins at ``cursor``."""
    async with for_tenant(source, row.tenant_id) as connection:
        await connection.execute(
            _SQL["add"],
            row.tenant_id,
            row.webhook_id,
            row.name,
            row.kinds,
            row.agents,
            row.sealed,
            row.created_at,
        )
        await connection.execute(_SQL["begin"], row.tenant_id, row.webhook_id, cursor, row.created_at)


async def webhooks(
    source: Pool | Connection, tenant_id: UUID, webhook_id: str | None = None
) -> list[WebhookRow]:
    """All webhooks that a tenant has had, or the one of this id."""
    async with for_tenant(source, tenant_id) as connection:
        rows = await connection.fetch(_SQL["webhooks"], tenant_id, webhook_id)
    return [WebhookRow(*row) for row in rows]


async def resume(source: Pool | Connection, tenant_id: UUID, webhook_id: str) -> None:
    """Makes a webhook due at once, and forgets that it failed."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["resume"], tenant_id, webhook_id)


async def due(pool: Pool, limit: int) -> list[tuple[UUID, str]]:
    """Webhooks of all tenants that nobody delivers now."""
    async with tenant_transaction(pool) as connection:
        await connection.execute(_ACCESS["list_all_tenants"])
        rows = await connection.fetch(_SQL["due"], limit)
    return [(row["tenant_id"], row["webhook_id"]) for row in rows]


async def claim(pool: Pool, held: Held, secs: float) -> Claimed | None:
    """Takes a webhook to deliver it for so long; None when somebody else has it."""
    row = await _row(pool, "claim", held, secs)
    return None if row is None else Claimed(*row)


async def keep(
    pool: Pool, held: Held, *, cursor: str, told_at: datetime, delivered: int, secs: float
) -> bool:
    """Notes how far it is, and holds it on; False when it is not held any more."""
    return await _row(pool, "keep", held, cursor, told_at, delivered, secs) is not None


async def fail(pool: Pool, held: Held, problem: str, again_secs: float) -> float:
    """Notes that an event was not taken, and lets go; returns for how many seconds it has been failing."""
    row = await _row(pool, "fail", held, problem, again_secs)
    return 0.0 if row is None else float(row[0])


async def release(pool: Pool, held: Held, again_secs: float) -> None:
    """Lets go of a webhook."""
    await _row(pool, "release", held, again_secs)


async def _row(pool: Pool, statement: str, held: Held, *values: object) -> tuple[Any, ...] | None:
    async with for_tenant(pool, held.tenant_id) as connection:
        row = await connection.fetchrow(
            _SQL[statement], held.tenant_id, held.webhook_id, held.holder, *values
        )
    return None if row is None else tuple(row)
