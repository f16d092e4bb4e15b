"""The database restarts, reloads, ends our sessions and changes its password (P15, P19, H29)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator

import httpx2
import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.faults import rounds
from tests.support.load import Load, check_load
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import APP_PASSWORD
from tests.support.server import ServerProcess

ENV = {"TRAILS_COMMAND_TIMEOUT_SECS": "2", "TRAILS_LOG_LEVEL": "warning"}
READY_SECS = 2.0
"""What is promised of ``/readyz``."""

_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'trails_app'"
_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'trails_app'"

StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


@pytest.fixture
def service(cluster: Cluster, start_server: StartServer) -> ServerProcess:
    return start_server(database_url=cluster.database.app_url, env=ENV)


def _load(*servers: ServerProcess, name: str) -> Load:
    load = Load([server.base_url for server in servers], [f"{name}-{n}" for n in range(3)])
    load.create()
    return load


@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], ids=["fast", "immediate", "crash"]
)
async def test_p19_a_restart_costs_answers_and_nothing_else(
    cluster: Cluster, service: ServerProcess, how: signal.Signals
) -> None:
    load = await asyncio.to_thread(_load, service, name=how.name)
    async with load.running(callers=6):
        for _ in range(rounds(1, 6)):
            await load.until(25)
            await asyncio.to_thread(cluster.end, how)
            await asyncio.to_thread(cluster.start)
        await load.until(25)
    assert load.tries[503] > 0
    await asyncio.to_thread(check_load, load, service.base_url, cluster.admin_url)


async def test_p15_a_restart_behind_a_pooler_costs_answers_and_nothing_else(
    cluster: Cluster, start_server: StartServer
) -> None:
    with running_pooler(cluster.database, size=4) as pooler:
        env = {**ENV, "TRAILS_POOLER": "transaction"}
        both = [await asyncio.to_thread(start_server, database_url=pooler.app_url, env=env) for _ in range(2)]
        load = await asyncio.to_thread(_load, *both, name="pooled")
        async with load.running(callers=6):
            for how in [signal.SIGINT, signal.SIGQUIT] * rounds(1, 3):
                await load.until(25)
                await asyncio.to_thread(cluster.end, how)
                await asyncio.to_thread(cluster.start)
            await load.until(25)
        for server in both:
            await asyncio.to_thread(check_load, load, server.base_url, cluster.admin_url)


async def test_p19_ended_and_cancelled_sessions_cost_answers_and_nothing_else(
    cluster: Cluster, service: ServerProcess
) -> None:
    load = await asyncio.to_thread(_load, service, name="ended")
    async with load.running(callers=6):
        for turn in range(rounds(6, 60)):
            await load.until(8)
            statement = (_TERMINATE, _CANCEL, "SELECT pg_reload_conf()")[turn % 3]
            await asyncio.to_thread(cluster.execute, statement)
    await asyncio.to_thread(check_load, load, service.base_url, cluster.admin_url)


def test_h29_a_password_that_was_rotated_is_told_and_forgotten_when_it_is_set_back(
    cluster: Cluster, service: ServerProcess
) -> None:
    """Sessions that are open go on; none is opened any more, so that the next break would be the end."""
    try:
        cluster.execute("ALTER ROLE trails_app PASSWORD 'another-password'", _TERMINATE)
        _until_ready_says(service, 503)
        assert httpx2.get(f"{service.base_url}/healthz", timeout=READY_SECS).status_code == 200
        assert "another-password" not in service.log
        assert APP_PASSWORD not in service.log
    finally:
        cluster.execute(f"ALTER ROLE trails_app PASSWORD '{APP_PASSWORD}'")
    _until_ready_says(service, 200)


def _until_ready_says(service: ServerProcess, status: int) -> None:
    """What was said a moment ago may be said once more; each answer comes in time."""
    deadline = time.monotonic() + 20
    told = 0
    while told != status:
        assert time.monotonic() < deadline
        reply = httpx2.get(f"{service.base_url}/readyz", timeout=30)
        assert reply.elapsed.total_seconds() < READY_SECS
        assert reply.status_code == 200 or "retry-after" in reply.headers
        told = reply.status_code
        time.sleep(0.1)
