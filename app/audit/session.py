"""The session of an audit: what it may see, and that it reads the tables themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from db.pool import Connection, tenant_setting
from db.schema import DEFAULT_TENANT_ID
from db.sql import statements

_AUDIT = statements("audit")
_SESSION = statements("session")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection of its own, closed afterwards; its errors are asyncpg's and the network's."""
    connection = await asyncpg.connect(
        url,
        timeout=10,
        # Unqualified names in casts and operators are PostgreSQL's own, whatever the database was set to.
        server_settings={"application_name": "trails-verify", "search_path": "pg_catalog"},
    )
    try:
        yield connection
    finally:
        with suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            await connection.close(timeout=5)


async def reading(connection: Connection) -> None:
    """For the present transaction: tables are read, not indexes, dates have one spelling, and it may last."""
    await connection.execute(_AUDIT["read_tables"])


async def enter_tenant(connection: Connection, slug: str) -> None:
    """Under row security: names the tenant to look at, which has to be known by its slug."""
    await connection.execute(_SESSION["name_slug"], slug)
    tenants = {row["slug"]: row["tenant_id"] for row in await connection.fetch(_AUDIT["tenants"])}
    await connection.execute(_SESSION["name_tenants"], tenant_setting(tenants.get(slug, DEFAULT_TENANT_ID)))
