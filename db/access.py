"""What is stored of who may do what: API keys, what became of them, tenants that are suspended.

Every function takes a pool, or a connection inside ``db.pool.tenant_transaction`` that names the tenant.
Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from db.ledger import TenantRow
from db.pool import Connection, Pool, for_tenant, tenant_transaction
from db.sql import statements

_SQL: Final = statements("access")


class ApiKeyRow(msgspec.Struct, frozen=True):
    """One key as the table holds it; a genuine one only when its seal is. Times are aware, UTC."""

    tenant_id: UUID
    key_id: str
    role: str
    agent_id: str | None
    name: str
    secret_hash: bytes
    created_at: datetime
    expires_at: datetime | None
    seal: bytes
    revoked_at: datetime | None = None
    used_at: datetime | None = None


async def add_api_key(source: Pool | Connection, row: ApiKeyRow) -> None:
    """Adds a key; what became of it is not stored by this."""
    columns = msgspec.structs.astuple(row)[:-2]
    async with for_tenant(source, row.tenant_id) as connection:
        await connection.execute(_SQL["add_api_key"], *columns)


async def api_key(source: Pool | Connection, tenant_id: UUID, key_id: str) -> ApiKeyRow | None:
    """One key of a tenant, revoked ones too."""
    async with for_tenant(source, tenant_id) as connection:
        row = await connection.fetchrow(_SQL["api_key"], tenant_id, key_id)
    return None if row is None else ApiKeyRow(*row)


async def api_keys(source: Pool | Connection, tenant_id: UUID) -> list[ApiKeyRow]:
    """All keys of a tenant, oldest first, revoked ones too."""
    async with for_tenant(source, tenant_id) as connection:
        rows = await connection.fetch(_SQL["api_keys"], tenant_id)
    return [ApiKeyRow(*row) for row in rows]


async def revoke_api_key(source: Pool | Connection, tenant_id: UUID, key_id: str, at: datetime) -> None:
    """Ends a key; one that was revoked stays so since then."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["revoke_api_key"], tenant_id, key_id, at)


async def use_api_key(source: Pool | Connection, tenant_id: UUID, key_id: str, at: datetime) -> None:
    """Notes that a key was used; told to ten minutes."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["use_api_key"], tenant_id, key_id, at)


async def add_visit(
    source: Pool | Connection, tenant_id: UUID, visit_hash: bytes, at: datetime, until: datetime
) -> None:
    """Begins a visit to the console."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["add_visit"], tenant_id, visit_hash, at, until)


async def end_visit(source: Pool | Connection, tenant_id: UUID, visit_hash: bytes, at: datetime) -> None:
    """Ends a visit to the console; one that was ended stays so since then."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["end_visit"], tenant_id, visit_hash, at)


async def visit_is_open(source: Pool | Connection, tenant_id: UUID, visit_hash: bytes) -> bool:
    """Whether a visit to the console was begun and not ended."""
    async with for_tenant(source, tenant_id) as connection:
        return bool(await connection.fetchval(_SQL["visit_is_open"], tenant_id, visit_hash))


async def is_suspended(source: Pool | Connection, tenant_id: UUID) -> bool:
    """Whether the tenant is suspended."""
    async with for_tenant(source, tenant_id) as connection:
        return bool(await connection.fetchval(_SQL["suspended"], tenant_id))


async def server_time(connection: Connection) -> datetime:
    """The database's time, aware."""
    return await connection.fetchval(_SQL["server_time"])  # type: ignore[no-any-return]  # a timestamptz


async def suspend(source: Pool | Connection, tenant_id: UUID, at: datetime, *, suspended: bool) -> None:
    """Suspends a tenant, or lets it go on."""
    async with for_tenant(source, tenant_id) as connection:
        await connection.execute(_SQL["suspend"], tenant_id, at, suspended)


async def tenants(pool: Pool, *, after: str = "", limit: int = 1_000) -> list[TenantRow]:
    """Who shares this database, by slug: the registry alone, nothing of theirs."""
    async with tenant_transaction(pool) as connection:
        await connection.execute(_SQL["list_all_tenants"])
        rows = await connection.fetch(_SQL["tenants"], after, limit)
    return [TenantRow(*row) for row in rows]


async def suspended_among(pool: Pool, tenant_ids: Sequence[UUID]) -> frozenset[UUID]:
    """Those of these tenants that are suspended."""
    async with tenant_transaction(pool, *tenant_ids) as connection:
        return frozenset(row[0] for row in await connection.fetch(_SQL["suspended_among"]))
