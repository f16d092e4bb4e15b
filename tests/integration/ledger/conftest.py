"""Fixtures of the ledger's tests: two ledgers on one database, a clock to set, the table behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.ledger import Ledger
from db.pool import Pool
from tests.support.ledger_fixtures import agent, clock, second_ledger, table, twin
from tests.support.ledgers import MASTER_KEY, Opener, SetClock

__all__ = ["agent", "clock", "second_ledger", "table", "twin"]


@pytest.fixture
async def ledger(pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """A ledger as ``trails_app``."""
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def restarted(ledger: Ledger, pool: Pool, clock: SetClock) -> AsyncIterator[Opener]:
    """Opens a ledger that remembers nothing."""
    del ledger
    opened = []

    async def opener() -> Ledger:
        opened.append(await Ledger.open(pool, master_key=MASTER_KEY, clock=clock))
        return opened[-1]

    yield opener
    for one in opened:
        await one.close()
