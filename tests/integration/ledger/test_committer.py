"""Appends that wait together: one caller's trouble is not another's, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import UnavailableError
from app.ledger import Ledger, commit
from app.ledger.commit import Committer
from db.pool import create_pool
from tests.support.ledgers import (
    MASTER_KEY,
    TABLE,
    Caller,
    Table,
    decisions,
    event,
    holding,
    json_of,
    next_rows,
    one_writer,
    outcomes,
)
from tests.support.postgres import Database


@pytest.fixture
async def callers(ledger: Ledger) -> list[Caller]:
    """Four agents of a ledger that writes on one connection."""
    one_writer(ledger)
    made = [Caller(ledger, f"agent-{number}") for number in range(4)]
    for caller in made:
        await caller.create()
    return made


async def until_queued(ledger: Ledger, count: int) -> None:
    """Returns when ``count`` appends wait behind the one that is being written."""
    async with asyncio.timeout(20):
        while len(ledger._committer._waiting) < count:
            await asyncio.sleep(0)


async def test_a_stale_member_does_not_fail_its_group(
    callers: list[Caller], second_ledger: Ledger, database: Database, table: Table
) -> None:
    ledger = callers[0].ledger
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        first = asyncio.create_task(callers[0].ask("search"))
        await table.until_waiting(1)
        await callers[2].at(second_ledger).ask("search", "elsewhere")
        others = [asyncio.create_task(caller.ask("search", "grouped")) for caller in callers[1:]]
        await until_queued(ledger, 3)
        await blocker.execute("ROLLBACK")
        answers = [json_of(await task) for task in (first, *others)]
    assert [answer["remaining"] for answer in answers] == [98, 98, 96, 98]
    for caller in callers:
        assert (await caller.verify())["ok"] is True


async def test_a_member_that_the_database_refuses_does_not_fail_its_group(
    callers: list[Caller], database: Database, table: Table
) -> None:
    await table.admin.execute(
        f"ALTER TABLE {TABLE} ADD CONSTRAINT t CHECK (signed_text NOT LIKE '%forbidden%') NOT VALID"
    )
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        first = asyncio.create_task(callers[0].ask("search"))
        await table.until_waiting(1)
        words = ("fine", "forbidden", "fine")
        others = [
            asyncio.create_task(caller.ask("search", word))
            for caller, word in zip(callers[1:], words, strict=True)
        ]
        await until_queued(callers[0].ledger, 3)
        await blocker.execute("ROLLBACK")
        answers = await outcomes(first, *others)
    assert decisions(answers) == ["allowed", "allowed", "CheckViolationError", "allowed"]
    assert [len(await table.rows(caller.agent)) for caller in callers] == [4, 4, 2, 4]


async def test_a_caller_that_goes_away_leaves_the_chain_usable(
    callers: list[Caller], database: Database, table: Table
) -> None:
    agent, queued = callers[:2]
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        tasks = [asyncio.create_task(agent.ask("search", "writing"))]
        await table.until_waiting(1)
        tasks.append(asyncio.create_task(queued.ask("search", "queued")))
        await until_queued(agent.ledger, 1)
        for task in tasks:
            task.cancel()
        assert [type(error) for error in await outcomes(*tasks)] == [asyncio.CancelledError] * 2
        again = [asyncio.create_task(caller.ask("search", "again")) for caller in (agent, queued)]
        await until_queued(agent.ledger, 3)
        await blocker.execute("ROLLBACK")
        # What was handed over is written all the same; the next decision counts it.
        assert [json_of(await task)["remaining"] for task in again] == [96, 96]
    for caller in (agent, queued):
        kinds = await table.kinds(caller.agent, after=1)
        assert kinds == ["action_requested", "action_allowed"] * 2
        assert (await caller.verify())["ok"] is True


async def test_too_many_waiting_appends_are_refused_at_once(
    callers: list[Caller], database: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MAX_WAITING", 2)
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        tasks = [asyncio.create_task(callers[0].ask("search"))]
        await table.until_waiting(1)
        tasks += [asyncio.create_task(caller.ask("search")) for caller in callers[1:3]]
        await until_queued(callers[0].ledger, 2)
        with pytest.raises(UnavailableError, match="too many"):
            await callers[3].ask("search")
        await blocker.execute("ROLLBACK")
        assert decisions(await outcomes(*tasks)) == ["allowed"] * 3
    assert await table.kinds(callers[3].agent, after=1) == []
    assert json_of(await callers[3].ask("search"))["remaining"] == 98


async def test_closing_settles_what_was_accepted_and_takes_no_more(
    callers: list[Caller], database: Database, table: Table
) -> None:
    ledger = callers[0].ledger
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        tasks = [asyncio.create_task(callers[0].ask("search"))]
        await table.until_waiting(1)
        tasks += [asyncio.create_task(caller.ask("search")) for caller in callers[1:3]]
        await until_queued(ledger, 2)
        closing = asyncio.create_task(ledger.close())
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="stopping"):
            await callers[3].ask("search")
        assert not closing.done()
        await blocker.execute("ROLLBACK")
        await closing
        assert not ledger._committer._waiting
        assert decisions(await outcomes(*tasks)) == ["allowed"] * 3
    assert len(await table.rows(callers[3].agent)) == 2


@pytest.mark.parametrize("connections", [1, 2, 8])
async def test_an_append_at_the_moment_a_writer_comes_to_rest_is_written(
    callers: list[Caller], database: Database, connections: int
) -> None:
    """Whenever an append comes: at each turn of the event loop around the end of the one before."""
    async with await create_pool(database.app_url, min_size=1, max_size=connections) as pool:
        committer = Committer(pool, writers=1)
        for turns in range(14):
            first, second = [await next_rows(caller, event(n=turns)) for caller in callers[:2]]
            writing = asyncio.create_task(committer.append(first))
            await asyncio.sleep(0)
            settled = committer._waiting[0].done
            while not settled.done():
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await committer.append(second)
                await writing
        await committer.close()


@pytest.mark.parametrize("connections", [1, 2, 3])
async def test_a_small_pool_starves_nobody(ledger: Ledger, database: Database, connections: int) -> None:
    del ledger
    async with await create_pool(database.app_url, min_size=1, max_size=connections) as pool:
        small = await Ledger.open(pool, master_key=MASTER_KEY)
        callers = [Caller(small, f"agent-{number}") for number in range(6)]
        async with asyncio.timeout(60):
            for caller in callers:
                await caller.create()
            for _ in range(3):
                acts = [c.ask("search") for c in callers] + [c.ask("email") for c in callers]
                answers = await outcomes(*acts, *(c.status() for c in callers))
                assert not [a for a in answers if isinstance(a, Exception)]
        await small.close()


async def test_a_cache_smaller_than_the_number_of_agents_is_still_right(
    ledger: Ledger, second_ledger: Ledger, database: Database
) -> None:
    async with await create_pool(database.app_url) as pool:
        small = await Ledger.open(pool, master_key=MASTER_KEY, clock=ledger._clock, chains=2)
        callers = [Caller(small, f"agent-{number}") for number in range(5)]
        for caller in callers:
            await caller.create()
        for turn in range(3):
            answers = await outcomes(*(caller.ask("search", turn) for caller in callers for _ in range(2)))
            assert decisions(answers) == ["allowed"] * 10
            assert len(small._chains._chains) <= 7
        for caller in callers:
            await caller.at(second_ledger).ask("search")
            status = await caller.status()
            assert status["spent"] == 14
            assert (await caller.listed())["status"] == status == await caller.at(second_ledger).status()
        assert len(small._chains._chains) == 2
        await small.close()


async def test_appends_behind_a_statement_share_the_next_one(
    ledger: Ledger, database: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though further writers are idle, they begin only when there is enough to write."""
    monkeypatch.setattr(commit, "PATIENCE_SECS", 60.0)
    monkeypatch.setattr(commit, "WORTH_APPENDS", 3)
    callers = [Caller(ledger, f"agent-{number}") for number in range(4)]
    for caller in callers:
        await caller.create()
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        first = asyncio.create_task(callers[0].ask("search"))
        await table.until_waiting(1)
        others = [asyncio.create_task(caller.ask("search")) for caller in callers[1:3]]
        await until_queued(ledger, 2)
        groups = ledger.meter.groups.total, sum(ledger.meter.groups.counts)
        others.append(asyncio.create_task(callers[3].ask("search")))
        async with asyncio.timeout(20):  # well below the patience: the third is what begins the statement
            assert decisions([await task for task in others]) == ["allowed"] * 3
        assert not first.done()
        after = ledger.meter.groups.total, sum(ledger.meter.groups.counts)
        assert (after[0] - groups[0], after[1] - groups[1]) == (3, 1)
        await blocker.execute("ROLLBACK")
        await first


async def test_an_append_does_not_wait_for_a_statement_that_hangs(
    ledger: Ledger, database: Database, table: Table
) -> None:
    callers = [Caller(ledger, f"agent-{number}") for number in range(2)]
    for caller in callers:
        await caller.create()
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        first = asyncio.create_task(callers[0].ask("search"))
        await table.until_waiting(1)
        async with asyncio.timeout(20):
            assert json_of(await callers[1].ask("search"))["remaining"] == 98
        assert not first.done()
        await blocker.execute("ROLLBACK")
        await first
