"""Case G32: tenants share nothing, and an old agent costs no more than a young one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from math import inf
from uuid import UUID, uuid4

import pytest

import db.ledger
from app.chain.record import Draft
from app.errors import NotFoundError
from app.ledger import Ledger
from db.pool import Pool, create_pool
from tests.support.ledgers import MASTER_KEY, Caller, Table, json_of, next_rows
from tests.support.postgres import Database
from tests.support.proxy import proxied


@pytest.fixture
async def acme(ledger: Ledger) -> UUID:
    """A second tenant."""
    tenant = uuid4()
    await ledger.create_tenant(tenant, "acme", "Acme")
    return tenant


async def test_g32_the_same_agent_id_in_two_tenants_shares_nothing(
    agent: Caller, twin: Caller, acme: UUID, table: Table
) -> None:
    foreign = Caller(agent.ledger, agent.agent, acme)
    await foreign.create(budget=7)
    assert (await foreign.status())["public_key"] != (await agent.status())["public_key"]
    await foreign.ask("email", {"to": "a"})
    await foreign.ask("unheard-of")
    await foreign.ask("search")
    await foreign.scar("moderate", "theirs")
    untouched = await agent.status()
    assert (untouched["spent"], untouched["scar_score"], untouched["actions_pending"]) == (0, 0, 0)
    assert await agent.pending() == []
    with pytest.raises(NotFoundError):
        await agent.action("act-1")
    assert json_of(await twin.ask("email", {"to": "a"}))["action_id"] == "act-1"
    await foreign.terminate()
    assert json_of(await agent.ask("search"))["decision"] == "allowed"
    elsewhere = foreign.at(twin.ledger)
    assert await elsewhere.status() == await foreign.status()
    assert (await elsewhere.verify())["ok"] is (await agent.verify())["ok"] is True
    assert len(await table.rows(agent.agent, acme)) == (await foreign.verify())["records"]


async def test_g32_another_tenants_agent_is_as_unknown_as_any(agent: Caller, acme: UUID) -> None:
    said = set()
    for caller in (Caller(agent.ledger, agent.agent, acme), Caller(agent.ledger, "nobody", acme)):
        for asking in (
            caller.status,
            caller.ask,
            caller.scar,
            caller.terminate,
            caller.verify,
            caller.pending,
        ):
            with pytest.raises(NotFoundError) as caught:
                await asking()
            said.add((type(caught.value), str(caught.value)))
        with pytest.raises(NotFoundError) as caught:
            await caller.approve("act-1")
        said.add((type(caught.value), str(caught.value)))
    assert said == {(NotFoundError, "agent not found")}


async def test_g32_a_decision_reads_no_more_after_two_thousand_scars(
    ledger: Ledger, pool: Pool, database: Database
) -> None:
    young, old = Caller(ledger, "young"), Caller(ledger, "old")
    scars = [
        Draft("scar", {"severity": "minor", "reason": f"scar {n}", "action_id": None}, "monitor")
        for n in range(2_000)
    ]
    for caller in (young, old):
        await caller.create(scar_limit=3_000, budget=10_000)
    await db.ledger.append(pool, await next_rows(old, *scars))
    async with (
        proxied(database.app_url) as (proxy, url),
        await create_pool(url) as counted,
        AsyncExitStack() as stack,
    ):
        other = await Ledger.open(counted, master_key=MASTER_KEY, clock=ledger._clock)
        stack.push_async_callback(other.close)
        # What is read again each second is not the decisions' cost.
        other._keystore._known.secs = other._standings._known.secs = inf
        cost = []
        for caller in (young.at(other), old.at(other)):
            await caller.ask("search")
            before = proxy.executed, proxy.received
            for number in range(5):
                assert json_of(await caller.ask("search", number))["decision"] == "allowed"
            cost.append((proxy.executed - before[0], proxy.received - before[1]))
        assert cost[0][0] == cost[1][0]
        assert cost[1][1] < 2 * cost[0][1]
        status = await old.at(other).status()
        assert (status["scar_score"], len(status["scars"])) == (2_000, 2_000)  # type: ignore[arg-type]
