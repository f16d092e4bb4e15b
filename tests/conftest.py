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

Tests run in half as many processes again as there are cores, a file in one process. Each process has a
server of its own, and so roles of its own; ports are the system's choice and folders those of pytest.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from pytest_postgresql import factories
from pytest_postgresql.executors import NoopExecutor

from db.pool import Pool, create_pool
from tests.support.postgres import Database, Server, fresh_database, migrate_template, running_server

MOST_PROCESSES = 8

GARBAGE_OBJECTS = 10_000
"""Containers made and not yet released before a process of tests looks for cycles among them.

It holds millions that stay, those of pytest and of all that was collected: with the interpreter's 700 each
fourth second went by with looking through them.
"""

# Hundreds of processes that tests start load the service: from bytecode, where they may keep it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes share the tests; 0 is this one alone.

    More than there are cores, since a test often waits: for a server to stop, a time-out, another process.

    One alone runs single files, which starting others would only slow down, and what is given a server by
    ``TRAILS_TEST_DATABASE_URL``, whose roles the tests change.
    """
    single_files = all(Path(name.partition("::")[0]).is_file() for name in config.args)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    alone = single_files or cores == 1 or "TRAILS_TEST_DATABASE_URL" in os.environ
    return 0 if alone else min(cores + cores // 2, MOST_PROCESSES)


def pytest_configure() -> None:
    """Garbage is looked for seldom, while tests are collected too."""
    gc.set_threshold(GARBAGE_OBJECTS)


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process, so no later search has to walk it."""
    gc.collect()
    gc.freeze()


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
