"""The database of one test goes away for a while, as seen by the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.postgres import Database


@contextmanager
def away(database: Database) -> Iterator[None]:
    """While the block runs nobody is connected to the database, and nobody can connect."""
    name = database.name
    with psycopg.connect(database.server.url("postgres"), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false".encode())
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            admin.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true".encode())
