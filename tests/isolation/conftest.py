"""Fixtures of the isolation suite."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from db import sql_logins
from tests.isolation.world import World, populate
from tests.support.pgbouncer import Pooler, running_pooler
from tests.support.postgres import Database, Server, fresh_database
from tests.support.server import server, start_server

__all__ = ["server", "start_server"]


class Filled(msgspec.Struct, frozen=True):
    """The world, and the database in which it was made; others are clones of it."""

    world: World
    database: Database


@pytest.fixture(scope="session")
def filled(postgres: Server, template: NoopExecutor) -> Iterator[Filled]:
    """The world, made once."""
    with fresh_database(postgres, template.template_dbname) as made:
        world = populate(made)
        yield Filled(world, made)
        for tenant in (world.mine, world.theirs):
            sql_logins.drop(made.admin_url, tenant.ids.login)


@pytest.fixture
def world(filled: Filled) -> World:
    """Two tenants and the ids of nobody; see ``populated`` for their database."""
    return filled.world


@pytest.fixture
def populated(filled: Filled, postgres: Server) -> Iterator[Database]:
    """A database with the world, of this test alone."""
    with fresh_database(postgres, filled.database.name) as found:
        yield found


@pytest.fixture(scope="module")
def shared(filled: Filled, postgres: Server) -> Iterator[Database]:
    """The same for the tests of a module that leave it as it was."""
    with fresh_database(postgres, filled.database.name) as found:
        yield found


@pytest.fixture
def pooler(database: Database) -> Iterator[Pooler]:
    """A pgbouncer in transaction mode before the test's database, with two connections to the server."""
    with running_pooler(database) as found:
        yield found
