"""What goes wrong in the database reaches the ledger as one of our errors, told by class and name."""

from __future__ import annotations

import asyncio
import socket
from uuid import uuid4

import asyncpg
import pytest

import db.ledger
from app.errors import BadRequestError, MirrorError, StaleChainError, UnavailableError
from db.errors import translate
from db.pool import Pool, create_pool, tenant_transaction
from tests.support.postgres import Database
from tests.support.rows import Maker

RAISED = {
    "40001": StaleChainError,
    "40P01": StaleChainError,
    "TR002": StaleChainError,
    "08006": UnavailableError,
    "25006": UnavailableError,
    "42501": UnavailableError,
    "53100": UnavailableError,
    "53200": UnavailableError,
    "53300": UnavailableError,
    "55000": UnavailableError,
    "55P03": UnavailableError,
    "57014": UnavailableError,
    "57P01": UnavailableError,
    "57P03": UnavailableError,
    "58030": UnavailableError,
    "XX000": UnavailableError,
    "XX001": UnavailableError,
    "54000": BadRequestError,
    "TR003": MirrorError,
}


async def test_an_error_of_the_server_is_told_by_its_sqlstate(
    app: asyncpg.Connection, subtests: pytest.Subtests
) -> None:
    for state, told in RAISED.items():
        with subtests.test(state=state):
            with pytest.raises(told) as caught, translate():
                await app.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
            assert type(caught.value) is told
            assert isinstance(caught.value.__cause__, asyncpg.PostgresError)


@pytest.mark.parametrize("state", ["23514", "TR001", "22P02", "42P01"])
async def test_a_defect_is_not_dressed_as_passing_trouble(app: asyncpg.Connection, state: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught, translate():
        await app.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
    assert caught.value.sqlstate == state


async def test_a_wrong_argument_is_a_defect(app: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.DataError), translate():
        await app.execute("SELECT $1::integer", "one")


async def test_a_connection_that_is_cut_is_unavailable(
    pool: Pool, admin: asyncpg.Connection, maker: Maker
) -> None:
    async with pool.acquire() as connection:
        pid = connection.get_server_pid()
        await admin.execute("SELECT pg_terminate_backend($1, 5000)", pid)
        with pytest.raises(UnavailableError):
            await db.ledger.append(connection, [maker.row()])


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError):
            await create_pool(f"postgresql://trails_app:x@127.0.0.1:{closed.getsockname()[1]}/trails")


async def test_a_closed_pool_is_unavailable(database: Database, maker: Maker) -> None:
    closed = await create_pool(database.app_url)
    await closed.close()
    with pytest.raises(UnavailableError):
        await db.ledger.append(closed, [maker.row()])
    with pytest.raises(UnavailableError):
        await db.ledger.head(closed, maker.tenant_id, maker.log_uuid)


async def test_a_writer_that_waits_for_another_one_gives_up(
    database: Database, pool: Pool, maker: Maker
) -> None:
    """The other one holds the same seq without committing: our side's time-out comes first here."""
    row = maker.row()
    hasty = await create_pool(database.app_url, command_timeout=0.2)
    try:
        async with tenant_transaction(pool, maker.tenant_id) as connection:
            await db.ledger.append(connection, [row])
            with pytest.raises(UnavailableError):
                await db.ledger.append(hasty, [row])
        with pytest.raises(StaleChainError):
            await db.ledger.append(hasty, [row])
    finally:
        await hasty.close()


async def test_a_cancelled_caller_stays_cancelled(app: asyncpg.Connection) -> None:
    async def work() -> None:
        with translate():
            await app.execute("SELECT pg_sleep(60)")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_caller_that_gives_up_leaves_the_pool_usable(pool: Pool, maker: Maker) -> None:
    task = asyncio.create_task(db.ledger.append(pool, [maker.row()]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    head = await db.ledger.head(pool, maker.tenant_id, maker.log_uuid)
    assert head is not None


async def test_a_domain_error_passes_unchanged(pool: Pool) -> None:
    with pytest.raises(BadRequestError, match="mine"):
        async with tenant_transaction(pool):
            raise BadRequestError("mine")


async def test_whoever_is_cancelled_at_any_step_of_a_transaction_leaves_none_open(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while BEGIN is under way, when the driver does not know yet that there is a transaction."""
    pool = await create_pool(database.app_url, min_size=1, max_size=1)
    tenant = uuid4()

    async def work() -> None:
        async with tenant_transaction(pool, tenant) as connection:
            await connection.fetchval("SELECT 1")

    for turns in range(24):
        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with tenant_transaction(pool, tenant) as connection:
        assert await connection.fetchval("SELECT 1") == 1
    await pool.close()
    assert [record.message for record in caplog.records if "transaction" in record.message] == []
