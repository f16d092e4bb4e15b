"""Case G27: the database's disk is full. Nothing is allowed, and it goes on by itself when there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.integration.http.client import Client
from tests.support.cluster import Cluster, running_cluster, until
from tests.support.faults import rounds
from tests.support.load import Load, check_load
from tests.support.server import OPERATOR_TOKEN, ServerProcess
from tests.support.small_disk import SmallDisk, small_disk

ENV = {"TRAILS_COMMAND_TIMEOUT_SECS": "2", "TRAILS_LOG_LEVEL": "warning"}
CALLERS = 4
FULL_SECS = 60.0
"""How long it may take until the last free page is used up."""

_SETTINGS = {"min_wal_size": "32MB", "max_wal_size": "64MB", "autovacuum": "off"}

StartServer = Callable[..., ServerProcess]
Full = tuple[Cluster, SmallDisk]


@pytest.fixture
def full_of_data() -> Iterator[Full]:
    """The tables are on the small disk, the log of the database is not."""
    with small_disk(160) as disk, running_cluster(settings=_SETTINGS, at=disk.path) as cluster:
        log = disk.path.with_name(f"{disk.path.name}-wal")
        try:
            _move_log(cluster, log)
            yield cluster, disk
        finally:
            shutil.rmtree(log, ignore_errors=True)


@pytest.fixture
def full_of_log() -> Iterator[Full]:
    """The log of the database is on the small disk, the tables are not."""
    with running_cluster(settings=_SETTINGS) as cluster, small_disk(112) as disk:
        _move_log(cluster, disk.path / "wal")
        yield cluster, disk
        cluster.end(signal.SIGQUIT)  # before its disk is gone


def _move_log(cluster: Cluster, place: Path) -> None:
    cluster.end(signal.SIGINT)
    here, owner = cluster.folder / "pg_wal", cluster.folder.stat()
    shutil.copytree(here, place)
    for path in (place, *place.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    shutil.rmtree(here)
    here.symlink_to(place)
    cluster.start()


async def test_g27_no_room_for_a_record(full_of_data: Full, start_server: StartServer) -> None:
    cluster, disk = full_of_data
    await _bear(cluster, disk, start_server, "tables")
    assert "could not extend file" in cluster.log


async def test_g27_no_room_for_the_log_of_the_database(full_of_log: Full, start_server: StartServer) -> None:
    """PostgreSQL panics, recovers, and may end for good; whoever supervises it starts it again."""
    cluster, disk = full_of_log
    await _bear(cluster, disk, start_server, "log")
    assert "PANIC" in cluster.log


async def _bear(cluster: Cluster, disk: SmallDisk, start_server: StartServer, name: str) -> None:
    server = await asyncio.to_thread(start_server, database_url=cluster.database.app_url, env=ENV)
    load = Load([server.base_url], [f"{name}-{number}" for number in range(3)])
    await asyncio.to_thread(load.create)
    operator = Client(server.base_url, OPERATOR_TOKEN)
    operator.create("heavy", None)
    async with load.running(CALLERS):
        for _ in range(rounds(1, 3)):
            await load.until(15)
            await asyncio.to_thread(disk.fill)
            await asyncio.to_thread(_use_up, cluster, operator)
            counted = await asyncio.to_thread(_counted, server)
            async with asyncio.timeout(FULL_SECS):
                # What the other callers write may still fit into pages that there are.
                while await asyncio.to_thread(_counted, server) < counted + 2 * CALLERS:
                    await asyncio.to_thread(_use_up, cluster, operator)
            assert httpx2.get(f"{server.base_url}/healthz", timeout=10).status_code == 200
            await asyncio.to_thread(disk.clear)
            await asyncio.to_thread(cluster.start)
            await load.until(15)
    await asyncio.to_thread(
        until, lambda: httpx2.get(f"{server.base_url}/readyz", timeout=10).status_code == 200
    )
    await asyncio.to_thread(check_load, load, server.base_url, cluster.admin_url)


def _use_up(cluster: Cluster, operator: Client) -> None:
    """Writes until the database has no room left within what it has already."""
    body = {"type": "note", "data": "x" * 400_000}

    def is_full() -> bool:
        reply = operator.post("/v1/agents/heavy/events", body)
        assert reply.status == 200 or (reply.status == 503 and reply.headers["Retry-After"]), reply.raw
        with suppress(psycopg.Error):
            cluster.execute("SELECT pg_switch_wal()")
        return reply.status == 503

    until(is_full, secs=FULL_SECS)


def _counted(server: ServerProcess) -> float:
    """Requests that ended in a 5xx, as the metrics have them."""
    lines = httpx2.get(f"{server.base_url}/metrics", timeout=10).text.splitlines()
    told = [line for line in lines if line.startswith("trails_requests_total") and 'status="5xx"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in told)
