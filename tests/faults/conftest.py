"""Fixtures of the fault tests: a ledger behind a proxy that fails, another one beside it, and the table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.ledger import Ledger
from db.pool import create_pool
from tests.support.ledger_fixtures import agent, clock, second_ledger, table, twin
from tests.support.ledgers import MASTER_KEY, SetClock
from tests.support.postgres import Database
from tests.support.proxy import Proxy, proxied
from tests.support.server import server, start_server

__all__ = ["agent", "clock", "second_ledger", "server", "start_server", "table", "twin"]


@pytest.fixture
async def route(database: Database) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy, and the URL of ``trails_app`` through it."""
    async with proxied(database.app_url) as found:
        yield found


@pytest.fixture
def proxy(route: tuple[Proxy, str]) -> Proxy:
    """The proxy between ``ledger`` and the database."""
    return route[0]


@pytest.fixture
async def ledger(route: tuple[Proxy, str], clock: SetClock) -> AsyncIterator[Ledger]:
    """A ledger behind the proxy; a statement may take one second."""
    pool = await create_pool(route[1], max_size=8, command_timeout=1.0)
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    yield opened
    await opened.close()
    await pool.close()
