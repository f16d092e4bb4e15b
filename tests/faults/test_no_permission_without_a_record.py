"""Case G27: whatever is wrong with the database, nothing is allowed that is not on disk, and nobody hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres, postmaster
from app.errors import UnavailableError
from app.ledger import Ledger
from db import migrate
from db.pool import create_pool
from tests.support.cluster import chosen_binaries
from tests.support.ledgers import MASTER_KEY, TABLE, Caller, SetClock, Table, decisions, json_of, outcomes
from tests.support.postgres import APP_PASSWORD
from tests.support.processes import paused
from tests.support.proxy import Proxy

BOUND_SECONDS = 20
"""Far above what a time-out of one second may add up to; far below a caller who waits for ever."""


async def test_g27_without_the_privilege_to_insert_nothing_is_decided(agent: Caller, table: Table) -> None:
    await agent.ask("email")
    before = await table.kinds(), await agent.status()
    await table.admin.execute(f"REVOKE INSERT ON {TABLE} FROM trails_app")
    refused = await outcomes(
        agent.ask("search"),
        agent.ask("unheard-of"),
        agent.approve("act-1"),
        agent.scar(),
        agent.terminate(),
        Caller(agent.ledger, "new").create(),
        agent.ledger.probe(),
    )
    assert {type(error) for error in refused} == {UnavailableError}
    assert (await table.kinds(), await agent.status()) == before
    assert await table.rows("new") == []
    await table.admin.execute(f"GRANT INSERT ON {TABLE} TO trails_app")
    await agent.ledger.probe()
    assert json_of(await agent.ask("search"))["remaining"] == 98


async def test_g27_a_read_only_database_decides_nothing(
    agent: Caller, proxy: Proxy, table: Table, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    proxy.cut()
    refused = await outcomes(*(agent.ask("search") for _ in range(6)))
    assert {type(error) for error in refused} == {UnavailableError}
    with pytest.raises(UnavailableError):
        await agent.ledger.probe()
    await admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    proxy.cut()
    answers = [await _after_reconnecting(agent) for _ in range(2)]
    assert [answer["remaining"] for answer in answers] == [98, 96]
    assert await table.kinds(after=1) == ["action_requested", "action_allowed"] * 2


async def _after_reconnecting(agent: Caller) -> dict[str, object]:
    """Each of the pool's cut connections may answer once that it is gone."""
    for _ in range(20):
        answer = (await outcomes(agent.ask("search")))[0]
        if not isinstance(answer, UnavailableError):
            return json_of(answer)
    raise AssertionError("the pool does not come back")


async def test_a_server_process_that_is_ended_costs_one_answer(agent: Caller, table: Table) -> None:
    for _ in range(3):
        await table.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = 'trails_app' AND datname = current_database()"
        )
        assert (await _after_reconnecting(agent))["decision"] == "allowed"
    kinds = await table.kinds(after=1)
    assert kinds == ["action_requested", "action_allowed"] * 3
    assert (await agent.verify())["ok"] is True


# --- a server of their own: it is stopped, and its processes are paused ----------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that these tests may stop."""
    with tempfile.TemporaryDirectory(prefix="trails-test-") as folder, ExitStack() as stack:
        server = EmbeddedPostgres(Path(folder) / "data", binaries=chosen_binaries())
        server.start()
        stack.callback(server.stop)
        migrate.bootstrap(server.url, app_password=APP_PASSWORD)
        yield server


@pytest.fixture
async def own(own_server: EmbeddedPostgres) -> AsyncIterator[Caller]:
    """An agent on that server; a statement may take one second."""
    url = migrate.app_url(own_server.url, APP_PASSWORD)
    async with await create_pool(url, max_size=4, command_timeout=1.0, connect_timeout=2.0) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=SetClock())
        caller = Caller(ledger, uuid4().hex)
        await caller.create()
        yield caller
        await ledger.close()


async def test_g27_a_database_that_is_stopped_and_started_again(
    own: Caller, own_server: EmbeddedPostgres
) -> None:
    assert json_of(await own.ask("search", key="before"))["remaining"] == 98
    await asyncio.to_thread(own_server.stop)
    async with asyncio.timeout(BOUND_SECONDS):
        refused = await outcomes(
            *(own.ask("search", number, key=f"k{number}") for number in range(10)), own.status(), own.verify()
        )
    assert {type(error) for error in refused} == {UnavailableError}
    await asyncio.to_thread(own_server.start)
    assert json_of(await _until_up(own))["remaining"] == 96
    assert json_of(await own.ask("search", key="before"))["remaining"] == 98
    assert (await own.status())["spent"] == 4
    assert (await own.verify())["records"] == 6


async def _until_up(own: Caller) -> object:
    for _ in range(20):
        answer = (await outcomes(own.ask("search", 0, key="k0")))[0]
        if not isinstance(answer, UnavailableError):
            return answer
    raise AssertionError("the database is up and the ledger does not see it")


@pytest.mark.parametrize("whole", [False, True], ids=["its sessions", "the whole server"])
async def test_g27_a_database_that_stands_still_is_a_503_in_bounded_time(
    own: Caller, own_server: EmbeddedPostgres, whole: bool
) -> None:
    async with _superuser(own_server) as admin:
        await own.ask("search", key="before")
        pids = await admin.fetch("SELECT pid FROM pg_stat_activity WHERE usename = 'trails_app'")
        server = postmaster(own_server.cluster)
        assert server is not None
        with paused([row["pid"] for row in pids] + [server] * whole):
            async with asyncio.timeout(BOUND_SECONDS):
                refused, seen = await outcomes(own.ask("search", 0, key="k0"), own.status())
            assert isinstance(refused, UnavailableError)
            # A read may find its way on a new connection; what it says is what is on disk.
            assert isinstance(seen, UnavailableError) or (seen["spent"] == 2 and not whole)
        assert json_of(await _until_up(own))["decision"] == "allowed"
        kinds = await Table(admin).kinds(own.agent, after=1)
        assert kinds == ["action_requested", "action_allowed"] * 2
        assert (await own.status())["spent"] == 4


@asynccontextmanager
async def _superuser(server: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(server.url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_p29_after_a_crash_of_the_database_the_chain_goes_on_without_a_gap(
    own: Caller, own_server: EmbeddedPostgres
) -> None:
    """Immediate shutdown: recovery from the log, as after a power cut."""
    asking = [asyncio.create_task(own.ask("search", number, key=f"k{number}")) for number in range(12)]
    while not any(task.done() for task in asking):
        await asyncio.sleep(0)
    process = own_server._process
    assert process is not None
    os.kill(process.pid, signal.SIGQUIT)
    async with asyncio.timeout(BOUND_SECONDS * 2):
        answers = await outcomes(*asking)
        await asyncio.to_thread(process.wait)
    own_server._process = None
    await asyncio.to_thread(own_server.start)
    assert json_of(await _until_up(own))["decision"] == "allowed"
    again = [json_of(await own.ask("search", number, key=f"k{number}")) for number in range(12)]
    for before, after in zip(answers, again, strict=True):
        assert isinstance(before, UnavailableError) or json_of(before) == after
    assert "allowed" in decisions(answers)
    async with _superuser(own_server) as admin:
        rows = await Table(admin).rows(own.agent)
    assert [row["seq"] for row in rows] == list(range(2 + 24))
    assert (await own.verify())["ok"] is True
