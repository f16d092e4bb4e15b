"""Several processes on the same chains at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from app.errors import InvalidStateError, UnavailableError
from app.ledger import Ledger
from app.ledger.pace import LONGEST_BREAK_SECS, LONGEST_SECS, give_way
from db.pool import create_pool
from tests.support.ledgers import Caller, Table, decisions, json_of, outcomes
from tests.support.postgres import Database

MOST_BEFORE = 300
"""Acts of a busy process before the other's turn: what it does between two breaks, on a quick machine."""


async def test_a_break_in_which_the_database_was_away_is_no_part_of_the_act_behind_it(
    ledger: Ledger, database: Database
) -> None:
    scout = Caller(ledger, "scout")
    await scout.create()
    chain = ledger._chains.at_hand(scout.tenant, "scout")
    assert chain is not None
    keys = await ledger._keystore.of(scout.tenant)
    away = await create_pool(database.app_url, max_size=1)
    await away.close()
    chain.pace.come(time.monotonic() - 3 * LONGEST_SECS)
    assert chain.pace.needs_break(time.monotonic())
    with pytest.raises(UnavailableError):
        await give_way(away, chain, keys)
    assert not chain.pace.needs_break(time.monotonic())
    chain.pace.leave(time.monotonic())
    assert chain.pace.pause < LONGEST_BREAK_SECS
    assert json_of(await scout.ask("search"))["decision"] == "allowed"


@pytest.mark.parametrize("spread", [1, 3])
async def test_c16_two_processes_leave_no_gap_and_no_fork(
    ledger: Ledger, second_ledger: Ledger, table: Table, spread: int
) -> None:
    names = [f"agent-{number}" for number in range(spread)]
    for name in names:
        await Caller(ledger, name).create(budget=100_000)

    async def client(number: int) -> None:
        at = (ledger, second_ledger)[number % 2]
        for turn in range(15):
            answer = await Caller(at, names[(number // 2 + turn) % spread]).ask("search", [number, turn])
            assert json_of(answer)["decision"] == "allowed"

    await asyncio.gather(*map(client, range(6)))
    asked = []
    for name in names:
        rows = await table.rows(name)
        assert [row["seq"] for row in rows] == list(range(len(rows)))
        assert len({row["prev_hash"] for row in rows}) == len(rows)
        asked += [r["payload"]["input"] for r in await table.records(name) if r["kind"] == "action_requested"]
        for at in (ledger, second_ledger):
            assert (await Caller(at, name).verify())["ok"] is True
    assert sorted(asked) == [[number, turn] for number in range(6) for turn in range(15)]


async def test_g11_parallel_asks_on_two_processes_never_overspend(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    await Caller(ledger).create(budget=3, tools={"t": {"cost": 1}})
    answers = await outcomes(*(Caller((ledger, second_ledger)[n % 2]).ask("t", n) for n in range(8)))
    assert Counter(decisions(answers)) == {"allowed": 3, "denied": 5}
    spent = [r["payload"]["cost"] for r in await table.records() if r["kind"] == "action_allowed"]
    assert spent == [1, 1, 1]
    assert (await table.folded()).remaining == 0


async def test_g11_parallel_approvals_on_two_processes_never_overspend(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    await Caller(ledger).create(budget=12)
    for number in range(6):
        await Caller(ledger).ask("email", number)
    answers = await outcomes(
        *(Caller((ledger, second_ledger)[n % 2]).approve(f"act-{n + 1}") for n in range(6))
    )
    assert Counter(decisions(answers)) == {"allowed": 2, "denied": 4}
    assert (await table.folded()).spent == 10


async def test_g10_approve_and_reject_at_once_leave_one_decision(
    agent: Caller, twin: Caller, table: Table
) -> None:
    await agent.ask("email", {"to": "a"})
    acts = [
        ((agent, twin)[n % 2].approve if n % 3 else (agent, twin)[n % 2].reject)("act-1") for n in range(20)
    ]
    answers = await outcomes(*acts)
    won = [answer for answer in answers if not isinstance(answer, Exception)]
    lost = [answer for answer in answers if isinstance(answer, Exception)]
    assert (len(won), len(lost)) == (1, 19)
    decided = json_of(won[0])["decision"]
    for error in lost:
        assert isinstance(error, InvalidStateError)
        assert error.status == decided
    assert len(await table.kinds(after=3)) == 1


async def test_g10_asking_again_while_pending_joins(agent: Caller, twin: Caller, table: Table) -> None:
    answers = await outcomes(*((agent, twin)[n % 2].ask("email", {"to": "a", "n": 1.0}) for n in range(10)))
    assert {json_of(answer)["action_id"] for answer in answers} == {"act-1"}
    assert json_of(await twin.ask("email", {"n": 1, "to": "a"}))["action_id"] == "act-1"
    assert json_of(await twin.ask("email", {"n": 2, "to": "a"}))["action_id"] == "act-2"
    kinds = Counter(await table.kinds(after=1))
    assert kinds == {"action_requested": 2, "approval_required": 12}
    assert len(await agent.pending()) == 2
    await agent.approve("act-1")
    assert json_of(await twin.ask("email", {"to": "a", "n": 1}))["action_id"] == "act-3"


async def test_agents_created_at_once_in_two_processes_exist_once(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    answers = await outcomes(*(Caller((ledger, second_ledger)[n % 2]).create() for n in range(8)))
    assert Counter(type(answer).__name__ for answer in answers) == {"dict": 1, "AgentExistsError": 7}
    assert await table.kinds() == ["genesis", "policy"]


async def test_c16_who_comes_later_is_served_although_the_other_process_never_pauses(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    """Whoever appended last is the first who can append again, so the other one would never be that."""
    await Caller(ledger).create(budget=1_000_000)
    busy, late = Caller(ledger), Caller(second_ledger)
    done, asked = asyncio.Event(), Counter[str]()
    waits: list[int] = []

    async def ask_on(number: int) -> None:
        while not done.is_set():
            await busy.ask("search", [number, asked["busy"]])
            asked["busy"] += 1

    async def ask_now_and_then() -> None:
        try:
            for turn in range(6):
                before = asked["busy"]
                await late.ask("search", ["late", turn])
                waits.append(asked["busy"] - before)
                while asked["busy"] < before + waits[-1] + 10:
                    await asyncio.sleep(0)
        finally:
            done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(ask_now_and_then(), *map(ask_on, range(4)))
    assert sorted(waits)[len(waits) // 2] < MOST_BEFORE
    assert (await table.kinds()).count("action_allowed") == len(waits) + asked["busy"]
