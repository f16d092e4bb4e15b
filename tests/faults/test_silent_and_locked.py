"""A database that stands still, cannot be reached or is locked is a 503 in bounded time (G27, H29, P18)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx2
import psycopg
import pytest

import db.ledger
from app.ledger.chain import LOCK_SECS
from db.pool import ACQUIRE_SECONDS, RELEASE_SECONDS, close_pool, create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.cluster import Cluster, running_cluster
from tests.support.faults import rounds
from tests.support.load import Load, check_load
from tests.support.postgres import Database
from tests.support.processes import family, paused
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess

COMMAND_SECS = 1.0
ENV = {"TRAILS_COMMAND_TIMEOUT_SECS": str(COMMAND_SECS), "TRAILS_LOG_LEVEL": "warning"}
BOUND_SECS = LOCK_SECS + ACQUIRE_SECONDS + COMMAND_SECS + RELEASE_SECONDS
"""What the guides promise for these settings."""

SLACK_SECS = 15.0
READY_SECS = 2.0
CALLERS = 6

StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


async def test_h29_g27_a_database_that_stands_still(cluster: Cluster, start_server: StartServer) -> None:
    server = await asyncio.to_thread(start_server, database_url=cluster.database.app_url, env=ENV)
    await _bear(server, cluster.admin_url, lambda: paused(family(cluster.pid)), "still")


async def test_h29_g27_a_network_that_swallows_everything(
    route: tuple[Proxy, str], database: Database, start_server: StartServer
) -> None:
    proxy, url = route
    server = await asyncio.to_thread(start_server, database_url=url, env=ENV)

    @contextmanager
    def silence() -> Iterator[None]:
        proxy.silent = True
        yield
        proxy.silent = False

    await _bear(server, database.admin_url, silence, "unheard")


async def test_h27_a_network_that_swallows_everything_keeps_no_service_from_stopping(
    route: tuple[Proxy, str], start_server: StartServer
) -> None:
    proxy, url = route
    server = await asyncio.to_thread(start_server, database_url=url, env=ENV)
    load = Load([server.base_url], ["last-1", "last-2"])
    await asyncio.to_thread(load.create)
    async with load.running(CALLERS):
        await load.until(10)
    proxy.silent = True
    assert await asyncio.to_thread(server.stop) == 0


async def test_h27_whoever_is_cancelled_while_the_database_is_silent_ends(route: tuple[Proxy, str]) -> None:
    """Cleaning up fails as well then; that must not be told in the place of the cancellation."""
    proxy, url = route
    pool = await create_pool(url, max_size=1, command_timeout=COMMAND_SECS)
    proxy.silent = True
    reading = asyncio.create_task(db.ledger.signing_keys(pool, DEFAULT_TENANT_ID))
    while pool.get_idle_size():
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading}, timeout=BOUND_SECS)
    assert reading.cancelled()
    await close_pool(pool)


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "SHARE"])
async def test_p18_a_table_that_somebody_locks(
    database: Database, start_server: StartServer, mode: str
) -> None:
    """The owner, or a migration by hand; in SHARE mode everybody may read."""
    server = await asyncio.to_thread(start_server, env=ENV)

    @contextmanager
    def locked() -> Iterator[None]:
        with psycopg.connect(database.admin_url) as connection:
            connection.execute("SET ROLE trails_owner")
            connection.execute(f"LOCK TABLE trails.agent_audit_trails IN {mode} MODE".encode())
            yield

    await _bear(server, database.admin_url, locked, mode.split(maxsplit=1)[0].lower())


async def test_p18_a_long_transaction_of_a_reader_is_in_nobodys_way(
    database: Database, start_server: StartServer
) -> None:
    server = await asyncio.to_thread(start_server, env=ENV)
    load = Load([server.base_url], ["long-1"])
    await asyncio.to_thread(load.create)
    with psycopg.connect(database.admin_url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        connection.execute("SELECT count(*) FROM trails.agent_audit_trails")
        async with load.running(CALLERS):
            await load.until(40)
    assert set(load.tries) == {200}
    await asyncio.to_thread(check_load, load, server.base_url, database.admin_url)


async def _bear(
    server: ServerProcess, admin_url: str, trouble: Callable[[], AbstractContextManager[None]], name: str
) -> None:
    load = Load([server.base_url], [f"{name}-{number}" for number in range(3)])
    await asyncio.to_thread(load.create)
    async with load.running(CALLERS), httpx2.AsyncClient(base_url=server.base_url, timeout=30) as client:
        for _ in range(rounds(1, 5)):
            await load.until(15)
            refused = load.tries[503]
            with trouble():
                await _until_ready_says(client, 503)
                async with asyncio.timeout(2 * BOUND_SECS + SLACK_SECS):
                    while load.tries[503] < refused + CALLERS:
                        alive = await client.get("/healthz")
                        assert (alive.status_code, alive.elapsed.total_seconds() < READY_SECS) == (200, True)
                        await asyncio.sleep(0.1)
            await _until_ready_says(client, 200)
        await load.until(15)
    assert load.slowest_secs < BOUND_SECS + SLACK_SECS
    await asyncio.to_thread(check_load, load, server.base_url, admin_url)


async def _until_ready_says(client: httpx2.AsyncClient, status: int) -> None:
    """Each answer is there within two seconds; what was said a moment ago may be said once more."""
    told = 0
    async with asyncio.timeout(40):
        while told != status:
            reply = await client.get("/readyz")
            assert reply.elapsed.total_seconds() < READY_SECS
            told = reply.status_code
            await asyncio.sleep(0.05)
