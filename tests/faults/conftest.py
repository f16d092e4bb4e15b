"""Fixtures of the fault tests: a ledger behind a proxy that fails, another one beside it, and the table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.ledger import Ledger
from db.pool import create_pool
from tests.support.ledgers import MASTER_KEY, Caller, SetClock, Table
from tests.support.postgres import Database
from tests.support.proxy import Proxy, proxied


@pytest.fixture
def clock() -> SetClock:
    """The clock of all ledgers of the test."""
    return SetClock()


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


@pytest.fixture
async def second_ledger(ledger: Ledger, database: Database, clock: SetClock) -> AsyncIterator[Ledger]:
    """Another process's ledger, not behind the proxy."""
    del ledger
    async with await create_pool(database.app_url, max_size=8) as pool:
        opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
        yield opened
        await opened.close()


@pytest.fixture
def table(admin: asyncpg.Connection[asyncpg.Record]) -> Table:
    """The trail as a superuser sees it."""
    return Table(admin)


@pytest.fixture
async def agent(ledger: Ledger) -> Caller:
    """A guarded agent at ``ledger``: budget 100, scar limit 50, tools look 0, search 2, email 5 (held)."""
    caller = Caller(ledger)
    await caller.create()
    return caller


@pytest.fixture
def twin(agent: Caller, second_ledger: Ledger) -> Caller:
    """The same agent at the second ledger."""
    return agent.at(second_ledger)
