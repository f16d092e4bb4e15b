"""Fixtures of whoever tests the ledger: a clock to set, the table, an agent, and the same one elsewhere.

Import them into a ``conftest.py`` that has a fixture ``ledger``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from app.ledger import Ledger
from db.pool import create_pool
from tests.support.ledgers import MASTER_KEY, Caller, SetClock, Table
from tests.support.postgres import Database


@pytest.fixture
def clock() -> SetClock:
    """The clock of all ledgers of the test; it stands still until it is moved."""
    return SetClock()


@pytest.fixture
async def second_ledger(ledger: Ledger, database: Database, clock: SetClock) -> AsyncIterator[Ledger]:
    """Another process's ledger: its own pool, straight to the database, its own memory."""
    del ledger  # it is opened first
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
