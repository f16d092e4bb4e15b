"""Reads one chain as it stands, unverified, in one snapshot: for an export, and for showing it.

Rows are fetched in pieces of bounded size, whatever the length of the chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec

from app.audit.rows import fetch, pieces
from app.audit.session import connected, enter_tenant
from app.chain.record import SignedRecord
from app.errors import NotFoundError, StartupError
from db.errors import translate
from db.pool import Connection
from db.schema import DEFAULT_TENANT_SLUG
from db.sql import statements

_SQL = statements("audit")


class DumpedRecord(msgspec.Struct, frozen=True):
    """One row of a chain: its position by the table, and the record as it stands; and whose chain it is."""

    seq: int
    signed: SignedRecord
    tenant_id: UUID
    log_uuid: UUID


async def dump_chain(
    url: str, agent_id: str, *, tenant: str | None = None, after: int = -1
) -> AsyncIterator[DumpedRecord]:
    """The records of one agent after ``after``, in order.

    Raises:
        NotFoundError: no such agent, or several tenants have one of this id.
        UnavailableError: the database is away.
        StartupError: the database was never migrated.
    """
    with translate():
        async with (
            connected(url) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            chain = await _find(connection, agent_id, tenant)
            wanted = (chain["tenant_id"], chain["log_uuid"], after)
            async for piece in pieces(connection, _SQL["chain_places"], *wanted):
                found = await fetch(connection, _SQL["records_at"], piece)
                for spot in piece:
                    signed = SignedRecord(*found[spot.table, spot.tid])
                    yield DumpedRecord(spot.seq or 0, signed, chain["tenant_id"], chain["log_uuid"])


async def _find(connection: Connection, agent_id: str, tenant: str | None) -> asyncpg.Record:
    scope = await connection.fetchrow(_SQL["scope"])
    if scope is None or not scope["migrated"]:
        raise StartupError("the database holds no trail: it was never migrated; run trails migrate")
    if scope["bound"] and not scope["knows_tenants"]:
        if tenant is not None:
            raise NotFoundError(f"the login {scope['role']} sees its own tenant only: leave --tenant out")
        found = await connection.fetch(_SQL["find_own_chain"], agent_id)
    else:
        if scope["bound"]:
            await enter_tenant(connection, tenant or DEFAULT_TENANT_SLUG)
        found = await connection.fetch(_SQL["find_chain"], agent_id, tenant)
    if not found:
        where = "the database" if tenant is None else f"tenant {tenant}"
        raise NotFoundError(f"{where} has no agent {agent_id}")
    if len(found) > 1:
        slugs = ", ".join(str(row["slug"]) for row in found)
        raise NotFoundError(f"several tenants have an agent {agent_id}: say which with --tenant ({slugs})")
    return found[0]
