"""Fixtures for dashboards: a story that is known, whoever looks at it, and the running service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from pytest_postgresql.executors import NoopExecutor

from db.schema import DEFAULT_TENANT_ID
from tests.integration.bi.story import Told, login, story_of
from tests.integration.http.conftest import operator, service
from tests.support.postgres import Server, fresh_database

__all__ = ["operator", "service"]


@pytest.fixture(scope="package")
def told(postgres: Server, template: NoopExecutor) -> Iterator[Told]:
    """The story of one tenant, its dashboard's login, and another tenant with one of its own."""
    with fresh_database(postgres, template.template_dbname) as database:
        world, other = asyncio.run(story_of(database))
        with login(database, DEFAULT_TENANT_ID) as url, login(database, other) as other_url:
            yield Told(database, world, url, other_url)


@pytest.fixture
async def looking(told: Told) -> AsyncIterator[asyncpg.Connection]:
    """A session of the dashboard's login."""
    connection = await asyncpg.connect(told.url)
    yield connection
    await connection.close()
