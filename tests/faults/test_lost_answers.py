"""The connection breaks while an act is written (case P19), or others are in its way (case P18)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

import db.ledger
import db.pool
from app.chain.canonical import canonical
from app.chain.record import Draft
from app.errors import StaleChainError, UnavailableError
from app.ledger import Ledger
from app.ledger.idempotency import Keyed, digest_of
from app.ledger.post import Entry
from db.pool import create_pool
from tests.support.ledgers import (
    MASTER_KEY,
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
from tests.support.proxy import Fault, Proxy

KEY = "retry-1"


async def until_answered(act: Callable[[], Awaitable[Any]]) -> Any:
    """What a client does: it tries again while the answer is "try again"."""
    for _ in range(20):
        try:
            return await act()
        except UnavailableError:
            continue
    raise AssertionError("still no answer after twenty tries")


@pytest.fixture
async def agents(ledger: Ledger) -> dict[Fault, Caller]:
    """An agent for each fault."""
    made = {fault: Caller(ledger, fault.name) for fault in Fault}
    for caller in made.values():
        await caller.create()
    return made


async def test_p19_a_retry_with_the_same_key_is_one_act_charged_once(
    agents: dict[Fault, Caller], second_ledger: Ledger, proxy: Proxy, table: Table, subtests: pytest.Subtests
) -> None:
    for fault, agent in agents.items():
        with subtests.test(fault=fault.name):
            fired = proxy.fired
            proxy.arm(fault, b'"kind":"action_allowed"')
            answer = json_of(await until_answered(lambda agent=agent: agent.ask("search", key=KEY)))  # type: ignore[misc]
            assert proxy.fired == fired + 1
            assert answer == {"decision": "allowed", "action_id": "act-1", "cost": 2, "remaining": 98}
            assert await table.kinds(fault.name, after=1) == ["action_requested", "action_allowed"]
            twin = agent.at(second_ledger)
            assert json_of(await twin.ask("search", key=KEY)) == answer
            assert (await twin.status())["spent"] == (await agent.status())["spent"] == 2


async def test_p19_the_caller_is_never_told_of_success_that_is_not_on_disk(
    agents: dict[Fault, Caller], proxy: Proxy, table: Table, subtests: pytest.Subtests
) -> None:
    for fault, agent in agents.items():
        with subtests.test(fault=fault.name):
            proxy.arm(fault, b'"kind":"action_allowed"')
            with pytest.raises(UnavailableError) as caught:
                await agent.ask("search")
            assert not isinstance(caught.value, StaleChainError)
            # The next ask waits for what the server may still be doing: the table is at rest behind it.
            remaining = json_of(await agent.ask("search"))["remaining"]
            kinds = await table.kinds(fault.name, after=1)
            acts = kinds.count("action_allowed")
            assert acts in {Fault.DROP: {1}, Fault.SWALLOW: {2}, Fault.CUT: {1, 2}}[fault]
            assert kinds == ["action_requested", "action_allowed"] * acts
            assert remaining == 100 - 2 * acts
            assert (await agent.verify())["ok"] is True


async def test_p19_acts_on_actions_survive_too(
    agents: dict[Fault, Caller], second_ledger: Ledger, proxy: Proxy, table: Table, subtests: pytest.Subtests
) -> None:
    for fault, agent in agents.items():
        with subtests.test(fault=fault.name):
            acts: dict[str, Callable[[Caller], Awaitable[Any]]] = {
                "action_allowed": lambda caller: caller.approve("act-1", key=KEY),
                "outcome": lambda caller: caller.report("act-1", "failure", key=KEY),
                "terminated": lambda caller: caller.terminate(key=KEY),
            }
            await agent.ask("email", {"to": "a"})
            for kind, act in acts.items():
                fired = proxy.fired
                proxy.arm(fault, f'"kind":"{kind}"'.encode())
                answer = await until_answered(lambda act=act, agent=agent: act(agent))  # type: ignore[misc]
                assert proxy.fired == fired + 1
                assert await act(agent.at(second_ledger)) == answer
            expected = ["action_allowed", "outcome", "scar", "terminated"]
            assert await table.kinds(fault.name, after=3) == expected


async def test_p19_creating_an_agent_survives_too(
    ledger: Ledger, proxy: Proxy, table: Table, subtests: pytest.Subtests
) -> None:
    for fault in Fault:
        with subtests.test(fault=fault.name):
            agent, fired = Caller(ledger, fault.name), proxy.fired
            proxy.arm(fault, b'"kind":"genesis"')
            status = await until_answered(lambda agent=agent: agent.create(key=KEY))  # type: ignore[misc]
            assert proxy.fired == fired + 1
            assert status == await agent.status()
            assert await table.kinds(fault.name) == ["genesis", "policy"]


@pytest.mark.parametrize("fault", Fault)
async def test_p19_a_lost_group_decides_none_of_its_members_twice(
    fault: Fault, ledger: Ledger, proxy: Proxy, table: Table, database: Database
) -> None:
    """Appends that waited together are lost together: trying them one by one could append them again."""
    callers = [Caller(ledger, f"agent-{number}") for number in range(5)]
    for caller in callers:
        await caller.create()
    one_writer(ledger)
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        first = asyncio.create_task(callers[0].ask("search", "first"))
        await table.until_waiting(1)
        others = [asyncio.create_task(caller.ask("search", "grouped")) for caller in callers[1:]]
        while len(ledger._committer._waiting) < len(others):
            await asyncio.sleep(0)
        proxy.arm(fault, b'"input":"grouped"')
        await blocker.execute("ROLLBACK")
        assert decisions([await first]) == ["allowed"]
        answers = await outcomes(*others)
    assert proxy.fired == 1
    for caller, answer in zip(callers[1:], answers, strict=True):
        acts = (await table.kinds(caller.agent)).count("action_requested")
        told = isinstance(answer, UnavailableError)
        assert told or acts == 1
        assert acts <= 1


async def test_p19_all_connections_cut_at_once_while_many_ask(
    ledger: Ledger, proxy: Proxy, table: Table
) -> None:
    callers = [Caller(ledger, f"agent-{number}") for number in range(6)]
    for caller in callers:
        await caller.create()

    async def client(caller: Caller) -> list[Any]:
        return [
            json_of(await until_answered(lambda turn=turn: caller.ask("search", turn, key=f"k{turn}")))  # type: ignore[misc]
            for turn in range(8)
        ]

    async def saboteur() -> None:
        for _ in range(6):
            seen = proxy.executed
            while proxy.executed < seen + 7:
                await asyncio.sleep(0)
            proxy.cut()

    cutting = asyncio.create_task(saboteur())
    answers = await asyncio.gather(*map(client, callers))
    cutting.cancel()
    for caller, given in zip(callers, answers, strict=True):
        assert [answer["remaining"] for answer in given] == [98 - 2 * turn for turn in range(8)]
        assert await table.kinds(caller.agent, after=1) == ["action_requested", "action_allowed"] * 8
        assert (await caller.verify())["ok"] is True


async def test_p18_a_writer_that_holds_the_next_place_costs_a_503_and_nothing_else(
    agent: Caller, twin: Caller, table: Table, database: Database
) -> None:
    async with holding(database.admin_url, await next_rows(agent, event())):
        with pytest.raises(UnavailableError):
            await agent.ask("search", key=KEY)
    assert json_of(await agent.ask("search", key=KEY))["remaining"] == 98
    assert json_of(await twin.ask("search", key=KEY))["remaining"] == 98
    assert await table.kinds(after=1) == ["action_requested", "action_allowed"]


async def test_p18_a_chain_that_is_locked_does_not_fail_those_that_wait_with_it(
    ledger: Ledger, database: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db.pool, "LOCK_MILLISECONDS", 200)
    async with await create_pool(database.app_url) as pool:
        impatient = await Ledger.open(pool, master_key=MASTER_KEY, clock=ledger._clock)
        one_writer(impatient)
        callers = [Caller(impatient, f"agent-{number}") for number in range(4)]
        for caller in callers:
            await caller.create()
        rows = [await next_rows(caller, event()) for caller in callers[:2]]
        async with holding(database.admin_url, rows[0] + rows[1]):
            tasks = [asyncio.create_task(caller.ask("search")) for caller in callers]
            answers = await outcomes(*tasks)
        await impatient.close()
    assert decisions(answers) == ["UnavailableError", "UnavailableError", "allowed", "allowed"]
    assert [len(await table.kinds(caller.agent, after=1)) for caller in callers] == [0, 0, 2, 2]


async def test_p18_a_deadlock_is_decided_again(
    ledger: Ledger, database: Database, table: Table, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '40ms'")
    async with await create_pool(database.app_url) as pool:
        one = await Ledger.open(pool, master_key=MASTER_KEY, clock=ledger._clock)
        one_writer(one)
        callers = [Caller(one, f"agent-{number}") for number in range(3)]
        for caller in callers:
            await caller.create()
        chains = [await one._chains.get(caller.tenant, caller.agent) for caller in callers]
        low, high = sorted(callers[1:], key=lambda c: chains[callers.index(c)].id.log_uuid)
        held, wanted = await next_rows(high, event()), await next_rows(low, event())
        async with (
            holding(database.admin_url, await next_rows(callers[0], event())) as gate,
            holding(database.admin_url, held) as other,
        ):
            first = asyncio.create_task(callers[0].ask("search"))
            await table.until_waiting(1)
            tasks = [asyncio.create_task(caller.ask("search")) for caller in (low, high)]
            while len(one._committer._waiting) < len(tasks):
                await asyncio.sleep(0)
            await gate.execute("ROLLBACK")
            assert decisions([await first]) == ["allowed"]
            # The group holds the place in the low chain and waits for the one in the high chain.
            await table.until_waiting(1)
            crossing = await outcomes(db.ledger.append(other, wanted))
            await other.execute("ROLLBACK")
            answers = await outcomes(*tasks)
        await one.close()
    assert isinstance(crossing[0], StaleChainError) or crossing == [None]
    assert decisions(answers) == ["allowed"] * 2
    for caller in callers:
        assert await table.kinds(caller.agent, after=1) == ["action_requested", "action_allowed"]


async def test_p18_serialization_failures_never_leave_half_an_act(
    ledger: Ledger, database: Database, table: Table, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await Caller(ledger).create(budget=10_000)
    async with (
        await create_pool(database.app_url) as first,
        await create_pool(database.app_url) as second,
    ):
        ledgers = [await Ledger.open(p, master_key=MASTER_KEY, clock=ledger._clock) for p in (first, second)]
        assert await first.fetchval("SHOW transaction_isolation") == "serializable"
        acts = [Caller(ledgers[n % 2]).ask("search", n, key=f"k{n}") for n in range(40)]
        answers = await outcomes(*acts)
        for opened in ledgers:
            await opened.close()
    assert set(decisions(answers)) <= {"allowed", "UnavailableError"}
    allowed = decisions(answers).count("allowed")
    assert allowed >= 20
    kinds = await table.kinds(after=1)
    assert kinds == ["action_requested", "action_allowed"] * (len(kinds) // 2)
    assert len(kinds) // 2 >= allowed


async def test_p19_a_batch_under_a_key_is_stored_once_and_whole(
    agents: dict[Fault, Caller], second_ledger: Ledger, proxy: Proxy, table: Table, subtests: pytest.Subtests
) -> None:
    drafts = [Draft("event", {"data": n}, "operator", canonical({"data": n})) for n in range(3)]
    digests = tuple(digest_of(str(draft.payload_text)) for draft in drafts)
    request = Keyed("events", KEY, digests, (0, 1, 2))
    for fault, agent in agents.items():
        with subtests.test(fault=fault.name):
            fired = proxy.fired
            proxy.arm(fault, b'"kind":"event"')
            receipts = await until_answered(
                lambda agent=agent: agent.post(*map(Entry, drafts), keyed=request)  # type: ignore[misc]
            )
            assert proxy.fired == fired + 1
            assert [receipt.seq for receipt in receipts] == [2, 3, 4]
            assert await agent.at(second_ledger).post(*map(Entry, drafts), keyed=request) == receipts
            assert await table.kinds(fault.name, after=1) == ["event"] * 3
