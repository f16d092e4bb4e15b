"""The service over the auditors' story (``tests.support.cookbook_world``), whose every count is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from app.ledger import Ledger
from app.settings import Secrets
from db.pool import create_pool
from tests.integration.console.browser import Visit
from tests.integration.http.serving import Running, serve
from tests.support.cookbook_world import World, tell
from tests.support.ledgers import MASTER_KEY, SetClock
from tests.support.postgres import Database, Server, fresh_database

PERIOD = "since=2026-01-01&until=2026-01-04"
"""The three days of the story."""

_SECRETS = Secrets("operator-token-of-the-story", MASTER_KEY)


class Told(msgspec.Struct, frozen=True):
    """The story's account, its database, and somebody who is signed in."""

    world: World
    database: Database
    service: Running
    visit: Visit


@pytest.fixture(scope="module")
def told(postgres: Server, template: NoopExecutor) -> Iterator[Told]:
    """The story, told once for all tests that only look."""
    with fresh_database(postgres, template.template_dbname) as database:
        world = asyncio.run(_told(database.app_url))
        with serve(database.app_url, known=_SECRETS) as running:
            yield Told(world, database, running, Visit(running.url).sign_in(_SECRETS.operator_token))


async def _told(url: str) -> World:
    async with await create_pool(url, max_size=2) as pool:
        clock = SetClock()
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
        world = World(ledger, clock)
        await tell(world)
        await ledger.close()
    return world
