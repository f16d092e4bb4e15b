"""What a ledger counts: what is on disk, once, whatever was tried on the way."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import QuarantinedError, UnavailableError
from tests.support.ledgers import TABLE, Caller, Table, event, posted


async def test_a_retry_after_another_process_is_counted_and_its_decision_once(
    agent: Caller, twin: Caller
) -> None:
    await agent.ask("search")
    await twin.ask("search")
    meter = agent.ledger.meter
    before = meter.records
    await agent.ask("search")
    assert meter.stale == 1
    assert meter.decisions == {("default", "allowed", ""): 2}
    assert meter.records - before == 2
    assert twin.ledger.meter.decisions == {("default", "allowed", ""): 1}


async def test_an_answer_that_is_told_again_is_counted_once(agent: Caller) -> None:
    for _ in range(3):
        await agent.ask("search", key="once")
    assert agent.ledger.meter.decisions == {("default", "allowed", ""): 1}


async def test_what_is_not_on_disk_is_not_counted(agent: Caller, table: Table) -> None:
    meter = agent.ledger.meter
    before = meter.records, sum(meter.appends.counts)
    await table.admin.execute(f"REVOKE INSERT ON {TABLE} FROM trails_app")
    with pytest.raises(UnavailableError):
        await agent.ask("search")
    assert (meter.records, sum(meter.appends.counts), meter.decisions) == (*before, {})


async def test_posts_are_counted_by_their_records(agent: Caller) -> None:
    meter = agent.ledger.meter
    before = meter.records
    await agent.post(*[posted(event(n=number).payload) for number in range(7)])
    assert meter.records - before == 7
    assert sum(meter.appends.counts) == sum(meter.groups.counts) == 1


async def test_appends_of_many_agents_share_a_statement(agent: Caller) -> None:
    others = [Caller(agent.ledger, f"agent-{number}") for number in range(2, 22)]
    for other in others:
        await other.create()
    await asyncio.gather(*(other.ask("search") for other in others))
    groups = agent.ledger.meter.groups
    assert groups.total == 20
    assert sum(groups.counts) < 20


async def test_a_quarantined_chain_is_told(agent: Caller, table: Table) -> None:
    await agent.ask("search")
    assert agent.ledger.load().quarantined == 0
    await table.unlock()
    await table.admin.execute(f"UPDATE {TABLE} SET signature = repeat('0', 128) WHERE seq = 3")
    assert (await agent.verify())["ok"] is False
    with pytest.raises(QuarantinedError):
        await agent.ask("search")
    load = agent.ledger.load()
    assert (load.quarantined, load.waiting) == (1, 0)
