"""Cases P18, P19, H29: a network between service and database that cuts, delays, loses and goes silent."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable

import pytest

from tests.support.faults import rounds
from tests.support.load import Load, check_load
from tests.support.postgres import Database
from tests.support.proxy import Proxy, Storm
from tests.support.server import ServerProcess, server, start_server

__all__ = ["server", "start_server"]

COMMAND_SECS = 0.5
"""Longest wait for one statement here; some of the storm's delays are longer."""

ENOUGH = 4
"""Troubles that a storm has at least."""

AGENTS = [f"agent-{number}" for number in range(8)]
ENV = {"TRAILS_COMMAND_TIMEOUT_SECS": str(COMMAND_SECS), "TRAILS_LOG_LEVEL": "warning"}

_log = logging.getLogger(__name__)


@pytest.fixture
def seed() -> int:
    """``TRAILS_TEST_SEED``, else a new one; a failed test shows it among its logs."""
    chosen = int(os.environ.get("TRAILS_TEST_SEED") or secrets.randbits(32))
    _log.warning("TRAILS_TEST_SEED=%d", chosen)
    return chosen


@pytest.mark.parametrize("turn", range(rounds(1, 6)))
async def test_p19_a_storm_costs_answers_and_nothing_else(
    route: tuple[Proxy, str],
    start_server: Callable[..., ServerProcess],
    database: Database,
    seed: int,
    turn: int,
) -> None:
    seed += turn
    proxy, url = route
    server = await asyncio.to_thread(start_server, database_url=url, env=ENV)
    load = Load([server.base_url], AGENTS, seed=seed)
    await asyncio.to_thread(load.create)
    storm = proxy.storm = Storm(seed, every=15, delays=(0.1, 0.4, 2 * COMMAND_SECS))
    async with load.running(callers=8):
        await load.until(rounds(50, 600), secs=400)
        async with asyncio.timeout(300):
            while sum(storm.chosen.values()) < ENOUGH and not load.wrong:
                await load.until(20)
        storm.calm = True
    told = dict(storm.chosen), dict(load.tries), load.slowest_secs
    _log.warning("seed %d: troubles %s, answers by status %s, the slowest after %.1f s", seed, *told)
    assert load.wrong == [], load.wrong[:3]
    assert sum(storm.chosen.values()) >= ENOUGH
    await asyncio.to_thread(check_load, load, server.base_url, database.admin_url)
