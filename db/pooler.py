"""Connections that lead through a connection pooler, such as pgbouncer in transaction mode (case P15).

There, what follows a transaction may reach another session of the server than the transaction did. So nothing
may be left with a session: no statement stays prepared, and what a session would be set to at its start is
set at the start of each transaction. Every statement with arguments has one: it is described and executed in
two messages, and both must reach one session. Notifications and session-level locks are not used at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import asyncpg

from db.hosts import Hosts
from db.returning import Session

STATEMENTS_KEPT: Final = 0
"""Prepared statements that such a connection remembers (asyncpg's ``statement_cache_size``)."""


class PooledConnection(Session):
    """A connection that needs nothing of a session; as well fit for a direct one, at more round trips."""

    _settings = ""

    def set_in_each_transaction(self, settings: Mapping[str, str]) -> None:
        """From now on every transaction begins with these settings, which end with it."""
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        self._settings = "".join(f" SET LOCAL {name} = '{value}';" for name, value in quoted.items())

    async def execute(self, query: str, *args: object, **options: Any) -> str:  # noqa: ANN401  asyncpg's own
        """As asyncpg's, in a transaction; the settings travel with its BEGIN, in one message."""
        if not args and not self.is_in_transaction() and query.startswith("BEGIN"):
            query += self._settings
        async with self._transaction() if args else nullcontext():
            return await super().execute(query, *args, **options)

    async def fetch(self, query: str, *args: object, **options: Any) -> list[Any]:  # noqa: ANN401  as above
        """As asyncpg's, in a transaction."""
        async with self._transaction():
            rows: list[asyncpg.Record] = await super().fetch(query, *args, **options)
            return rows

    async def fetchrow(self, query: str, *args: object, **options: Any) -> Any:  # noqa: ANN401  as above
        """As asyncpg's, in a transaction."""
        async with self._transaction():
            return await super().fetchrow(query, *args, **options)

    async def fetchval(self, query: str, *args: object, **options: Any) -> Any:  # noqa: ANN401  as above
        """As asyncpg's, in a transaction."""
        async with self._transaction():
            return await super().fetchval(query, *args, **options)

    def get_reset_query(self) -> str:
        """Nothing: the session was never changed, and the next message may reach another one."""
        return ""

    def _transaction(self) -> AbstractAsyncContextManager[object]:
        """One of its own for what two messages are sent for, unless it is in one already."""
        return nullcontext() if self.is_in_transaction() else self.transaction()


async def connect(url: str, *, seconds: float) -> PooledConnection:
    """A single connection that works whatever ``url`` leads to; errors are asyncpg's and the network's.

    Args:
        url: ``postgresql://`` URL.
        seconds: bound on reaching the server and logging in.
    """
    connection: PooledConnection = await Hosts(url).connect(
        timeout=seconds, statement_cache_size=STATEMENTS_KEPT, connection_class=PooledConnection
    )
    return connection


async def is_pooled(connection: PooledConnection) -> bool:
    """Whether a pooler stands between: who answers is not the process that the login was told of.

    A pooler answers logins itself, since it has to pass on requests to cancel, which name that process.
    """
    return bool(connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()"))
