"""The service's connections, and the one way to work for a tenant on them.

Row security reads the setting ``trails.tenants``. It is set for a transaction, never for a session: a
pool would hand it on to the next request (case P11). Time-outs are given when a connection opens, so that
the ``RESET ALL`` on its return to the pool restores them; behind a pooler, with each transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import asyncpg
import asyncpg.pool
import asyncpg.transaction

from db import pooler
from db.errors import translate
from db.hosts import Hosts
from db.returning import Session
from db.sql import statements

if TYPE_CHECKING:
    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    )
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
else:
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool

LOCK_MILLISECONDS: Final = 5_000
"""A writer waits this long for another one's uncommitted ``seq``, then answers "try again"."""

ACQUIRE_SECONDS: Final = 5.0
"""How long a caller waits for a connection before the answer is "try again"."""

RELEASE_SECONDS: Final = 1.0
"""How long a connection that was given up on may take to be usable again before it is dropped.

A server that is there has by then confirmed that it cancelled the statement.
"""

CLOSE_SECONDS: Final = 3.0
"""How long the server may take to acknowledge the end of our sessions; one that is silent never does."""

_BROKEN: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What a connection answers that broke or is silent; TimeoutError is an OSError."""

_KEEPALIVE: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""A server that lost us without a word (a cut cable, a dead machine) drops our sessions after a minute; by
default it keeps them for hours, and each of them counts towards ``max_connections``."""

IDLE_MILLISECONDS: Final = 30_000
"""The server ends a transaction that a stuck process leaves open for this long."""

_SQL = statements("session")


async def create_pool(
    url: str,
    *,
    min_size: int = 1,
    max_size: int = 10,
    command_timeout: float = 30.0,
    connect_timeout: float = 10.0,
    application_name: str = "trails",
    role: str | None = None,
    through_pooler: bool = False,
) -> Pool:
    """Opens a pool for the role that ``url`` names (``trails_app``, for the service).

    Args:
        url: ``postgresql://`` URL.
        min_size: connections opened at once and kept.
        max_size: connections at most; further callers wait.
        command_timeout: seconds for one statement, on our side; the server gives up at the same time.
        connect_timeout: seconds for opening one connection.
        application_name: what ``pg_stat_activity`` shows.
        role: what the sessions become after their login; None: they stay what ``url`` names.
        through_pooler: whether ``url`` leads to a connection pooler, so that no session can be relied on.

    Raises:
        UnavailableError: the server cannot be reached or refuses the login.
    """
    name = {"application_name": application_name}
    with translate():
        settings = {
            **await _suiting(url, connect_timeout),
            # An answer promises a durable record, whatever the server's default is.
            "synchronous_commit": "on",
            "statement_timeout": str(round(command_timeout * 1000)),
            "lock_timeout": str(LOCK_MILLISECONDS),
            "idle_in_transaction_session_timeout": str(IDLE_MILLISECONDS),
            **({} if role is None else {"role": role}),
        }
        return await asyncpg.create_pool(
            url,
            connect=Hosts(url).connect,
            min_size=min_size,
            max_size=max_size,
            command_timeout=command_timeout,
            timeout=connect_timeout,
            **(
                _sessionless(settings, name)
                if through_pooler
                else {"connection_class": Session, "server_settings": settings | name | _KEEPALIVE}
            ),
        )


def _sessionless(settings: Mapping[str, str], name: Mapping[str, str]) -> dict[str, Any]:
    """How connections are opened that a pooler gives another session for each transaction."""

    async def prepare(connection: pooler.PooledConnection) -> None:
        connection.set_in_each_transaction(settings)

    return {
        "connection_class": pooler.PooledConnection,
        "statement_cache_size": pooler.STATEMENTS_KEPT,
        "server_settings": name,
        "init": prepare,
    }


async def _suiting(url: str, connect_timeout: float) -> dict[str, str]:
    """The settings of ``suiting_settings``, as this server and this role need them."""
    connection = await pooler.connect(url, seconds=connect_timeout)
    try:
        rows = await connection.fetch(_SQL["suiting_settings"], timeout=connect_timeout)
    finally:
        await connection.close(timeout=connect_timeout)
    return {row["name"]: row["value"] for row in rows}


async def close_pool(pool: Pool) -> None:
    """Ends all connections, in order where the server answers."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()  # cancelled, it ends them the hard way


def tenant_setting(*tenant_ids: UUID) -> str:
    """The value of ``trails.tenants`` that names exactly these tenants."""
    return ",".join(str(tenant_id) for tenant_id in tenant_ids)


@asynccontextmanager
async def tenant_transaction(pool: Pool, *tenant_ids: UUID) -> AsyncIterator[Connection]:
    """A transaction that sees and writes the rows of exactly ``tenant_ids``; commits at the end.

    Raises:
        UnavailableError and the other errors of ``db.errors.translate``.
    """
    with translate():
        connection = await pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            transaction = connection.transaction()
            try:
                await transaction.start()
                await connection.execute(_SQL["name_tenants"], tenant_setting(*tenant_ids))
                yield connection
            except BaseException as error:
                await take_back(connection, transaction, error)
                raise
            await transaction.commit()
        finally:
            await give_back(pool, connection)


async def take_back(
    connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
    transaction: asyncpg.transaction.Transaction,
    error: BaseException,
) -> None:
    """Rolls back, or drops the connection: a server that did not answer would not answer a ROLLBACK either.

    Never raises, so that what went wrong is told, and whoever is cancelled ends.
    """
    is_silent = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
    if not is_silent and isinstance(error, Exception):
        with suppress(*_BROKEN):
            await transaction.rollback()
            return
    connection.terminate()


async def give_back(pool: Pool, connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]) -> None:
    """Returns a connection to its pool, which drops one that is not usable again in time. Never raises."""
    with suppress(*_BROKEN):
        await pool.release(connection, timeout=RELEASE_SECONDS)


@asynccontextmanager
async def for_tenant(source: Pool | Connection, tenant_id: UUID) -> AsyncIterator[Connection]:
    """The caller's own transaction, or with a pool a new one for ``tenant_id``."""
    if isinstance(source, asyncpg.Pool):
        async with tenant_transaction(source, tenant_id) as connection:
            yield connection
        return
    with translate():
        yield source
