"""Fixtures for everyone.

Database fixtures:

========================  ==============================================================================
``postgres``              the session's PostgreSQL (``tests.support.postgres.Server``; see there how to
                          choose another version)
``database``              a fresh migrated database: ``.admin_url`` (superuser), ``.app_url`` (trails_app)
``empty_database``        the same without any object of ours, for tests of the migrations
``pool``                  asyncpg pool as ``trails_app`` on ``database``
``admin``                 asyncpg connection as superuser on ``database``
``owner``                 asyncpg connection on ``database`` that acts as ``trails_owner``
``app``                   asyncpg connection as ``trails_app`` on ``database``, outside any pool
========================  ==============================================================================

A database is a clone of a template that is migrated once a session. Without a database fixture a test
starts no server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from pytest_postgresql import factories
from pytest_postgresql.executors import NoopExecutor

from db.pool import Pool, create_pool
from tests.support.postgres import Database, Server, fresh_database, migrate_template, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The session's PostgreSQL server."""
    with running_server() as found:
        yield found


template = factories.postgresql_noproc(depends_on="postgres", dbname="trails", load=[migrate_template])
"""The migrated template database of the session (pytest-postgresql's executor)."""


@pytest.fixture
def database(postgres: Server, template: NoopExecutor) -> Iterator[Database]:
    """A fresh migrated database of this test alone."""
    with fresh_database(postgres, template.template_dbname) as found:
        yield found


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[Database]:
    """A fresh database without any object of ours; the roles of the cluster may exist."""
    with fresh_database(postgres, None) as found:
        yield found


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    """The service's pool: role ``trails_app``."""
    made = await create_pool(database.app_url, min_size=1, max_size=8)
    yield made
    await made.close()


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection."""
    connection = await asyncpg.connect(database.admin_url)
    yield connection
    await connection.close()


@pytest.fixture
async def owner(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the rights of ``trails_owner``."""
    connection = await asyncpg.connect(database.admin_url)
    await connection.execute("SET ROLE trails_owner")
    yield connection
    await connection.close()


@pytest.fixture
async def app(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection as ``trails_app``."""
    connection = await asyncpg.connect(database.app_url)
    yield connection
    await connection.close()
