"""Exports for whoever reads the database past the service: in one snapshot, with whatever login there is.

Nothing is signed or put on record here: that takes the service's own means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import db.exports
from app.audit.session import connected, enter_tenant
from app.errors import NotFoundError, StartupError
from app.ledger.export.run import Run
from app.ledger.export.wanted import Wanted
from db.errors import translate
from db.schema import DEFAULT_TENANT_SLUG
from db.sql import statements

_SQL = statements("audit")


@asynccontextmanager
async def exporting(url: str, wanted: Wanted, *, tenant: str | None = None) -> AsyncIterator[Run]:
    """An export that is read while the block runs.

    Args:
        url: whose login.
        wanted: what to export.
        tenant: slug; None: the default tenant, or the login's own.

    Raises:
        NotFoundError: no such tenant or agent.
        StartupError: the database was never migrated.
        UnavailableError: the database is away.
    """
    wanted.check()
    with translate():
        async with (
            connected(url) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            scope = await connection.fetchrow(_SQL["scope"])
            if scope is None or not scope["migrated"]:
                raise StartupError("the database holds no trail: it was never migrated; run trails migrate")
            if scope["bound"] and not scope["knows_tenants"]:
                if tenant is not None:
                    raise NotFoundError(
                        f"the login {scope['role']} sees its own tenant only: leave --tenant out"
                    )
                slug, tenant_id = None, await connection.fetchval(_SQL["own_tenant"])
            else:
                slug = tenant or DEFAULT_TENANT_SLUG
                if scope["bound"]:
                    await enter_tenant(connection, slug)
                tenant_id = await connection.fetchval(_SQL["tenant_called"], slug)
            if tenant_id is None:
                raise NotFoundError(f"there is no tenant {slug or 'of this login'}; check --tenant")
            await db.exports.last_long(connection)
            yield await Run.begin(connection, tenant_id, slug, wanted)
