"""Verifications in the background: one run a chain, few at once, on record for each who asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.chain.strict import JsonObject
from app.errors import TooManyRequestsError
from app.ledger import Ledger
from app.ledger.watch.verifications import AT_ONCE, MOST_WAITING, Progress, Run, Verifications
from app.principal import ADMINISTRATION, Grant, Permission
from tests.support.ledgers import Caller, Table

SECONDS = 20.0


class Gated:
    """A ledger's verifications that begin when the test says so, and how many went on at once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.gate = asyncio.Event()
        self.running = 0
        self.most = 0
        self.verifications = Verifications(self.verify, ledger.put_verdict_on_record)

    async def verify(self, grant: Grant, progress: Progress) -> JsonObject:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        return await self.ledger.verify(grant, progress)


@pytest.fixture
async def gated(ledger: Ledger) -> AsyncIterator[Gated]:
    gated = Gated(ledger)
    yield gated
    await gated.verifications.close()


async def over(run: Run) -> Run:
    async with asyncio.timeout(SECONDS):
        while not run.is_over:
            await asyncio.sleep(0.01)
    return run


async def told(table: Table) -> list[Any]:
    return [
        record["actor"]
        for record in await table.records(ADMINISTRATION)
        if record["payload"].get("act") == "verified"
    ]


async def test_two_who_ask_at_once_share_a_run_and_are_both_on_record(
    agent: Caller, gated: Gated, table: Table
) -> None:
    asked = [agent.may(Permission.READ_LOG, key_of=name) for name in ("ada", "grace", "ada")]
    runs = [gated.verifications.start(grant, 2) for grant in asked]
    assert runs[0] is runs[1] is runs[2]
    assert (runs[0].done, runs[0].total, runs[0].is_over) == (0, 2, False)
    gated.gate.set()
    run = await over(runs[0])
    assert run.verdict is not None
    assert run.verdict["ok"] is True
    assert run.done == 2
    assert await told(table) == ["ada", "grace"]
    assert gated.verifications.last(asked[0]) is run
    assert gated.verifications.start(asked[0], 2) is not run


async def test_few_go_on_at_once_some_wait_and_more_are_refused(agent: Caller, gated: Gated) -> None:
    callers = [Caller(agent.ledger, f"agent-{number}") for number in range(2, MOST_WAITING + 3)]
    for caller in callers:
        await caller.create()
    runs = [gated.verifications.start(one.may(Permission.READ_LOG), 2) for one in callers[:MOST_WAITING]]
    with pytest.raises(TooManyRequestsError):
        gated.verifications.start(callers[-1].may(Permission.READ_LOG), 2)
    async with asyncio.timeout(SECONDS):
        while gated.running < AT_ONCE:
            await asyncio.sleep(0)
    gated.gate.set()
    assert [(await over(run)).trouble for run in runs] == [None] * MOST_WAITING
    assert gated.most == AT_ONCE
    gated.verifications.start(callers[-1].may(Permission.READ_LOG), 2)


async def test_what_goes_wrong_ends_the_run_and_says_so(agent: Caller, gated: Gated) -> None:
    nobody = Caller(agent.ledger, "nobody")
    run = gated.verifications.start(nobody.may(Permission.READ_LOG), 0)
    gated.gate.set()
    assert (await over(run)).trouble == "agent not found"
    assert run.verdict is None


async def test_a_service_that_stops_ends_what_goes_on(agent: Caller, gated: Gated) -> None:
    run = gated.verifications.start(agent.may(Permission.READ_LOG), 2)
    await asyncio.sleep(0)
    await gated.verifications.close()
    assert run.is_over
    assert run.trouble is not None
    assert "stopped" in run.trouble
