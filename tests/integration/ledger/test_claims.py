"""Claims on the table: once, whichever process is asked, and on record whether they succeed or not."""

from __future__ import annotations

from collections import Counter

import pytest

from app.errors import ClaimRefusedError, IdempotencyConflictError, TooManyRequestsError, UnknownActionError
from app.guard.claim import MAX_REFUSED
from app.ledger import Ledger
from tests.support.ledgers import Caller, Json, Opener, SetClock, Table, json_of, outcomes

MAIL: Json = {"to": "a", "n": 1.5}


@pytest.fixture
async def approved(agent: Caller) -> Caller:
    """The agent, with its first action approved."""
    await agent.ask("email", MAIL)
    await agent.approve("act-1")
    return agent


async def refusal(caller: Caller, action_id: str = "act-1", value: object = MAIL, **rest: str) -> str:
    with pytest.raises(ClaimRefusedError) as caught:
        await caller.claim(action_id, rest.pop("tool", "email"), value, **rest)
    return caught.value.code


async def test_g04_a_claim_counts_once_in_every_process_and_after_a_restart(
    approved: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    claimed = await approved.claim("act-1", "email", {"n": 1.5, "to": "a"})
    assert claimed == {"claimed": True, "action_id": "act-1", "tool": "email", "input": MAIL, "cost": 5}
    third = approved.at(await restarted())
    for caller in (approved, twin, third):
        assert await refusal(caller) == "already_claimed"
        assert (await caller.action("act-1"))["claimed_by"] == "backend"
    await approved.report("act-1", "failure", "bounced")
    for caller in (approved, twin, third):
        assert await refusal(caller) == "completed"
        assert (await caller.action("act-1"))["claimed_by"] == "backend"
    kinds = Counter(await table.kinds(after=4))
    assert kinds == {"action_claimed": 1, "claim_refused": 6, "outcome": 1, "scar": 1}
    assert (await third.verify())["ok"] is True


async def test_g04_many_claims_at_once_in_two_processes_give_the_action_to_one(
    approved: Caller, twin: Caller, table: Table
) -> None:
    answers = await outcomes(
        *((approved, twin)[n % 2].claim("act-1", "email", MAIL, by=f"backend-{n}") for n in range(16))
    )
    assert Counter(type(answer).__name__ for answer in answers) == {"dict": 1, "ClaimRefusedError": 15}
    assert Counter(await table.kinds(after=4)) == {"action_claimed": 1, "claim_refused": 15}


async def test_g01_another_action_is_refused_with_both_digests_and_the_approval_stays(
    approved: Caller, twin: Caller, table: Table
) -> None:
    others = [
        ("email", {**MAIL, "n": 15}),
        ("search", MAIL),
        ("email", {**MAIL, "x": 1}),
        ("email", {"to": "a"}),
    ]
    for tool, value in others:
        assert await refusal(twin, value=value, tool=tool) == "claim_mismatch"
    refused = [r["payload"]["reason"] for r in await table.records() if r["kind"] == "claim_refused"]
    assert len({reason["claimed"] for reason in refused}) == len(others)
    assert len({reason["allowed"] for reason in refused}) == 1
    assert (await approved.claim("act-1", "email", MAIL))["claimed"] is True
    [done] = [r["payload"] for r in await table.records() if r["kind"] == "action_claimed"]
    assert done["digest"] == refused[0]["allowed"]


async def test_p21_a_claim_is_answered_again_under_its_key(
    approved: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    first = await approved.claim("act-1", "email", MAIL, key="k")
    head = (await approved.status())["head"]
    await approved.report("act-1", "success")
    for caller in (approved, twin, approved.at(await restarted())):
        assert await caller.claim("act-1", "email", MAIL, key="k") == first
        with pytest.raises(IdempotencyConflictError):
            await caller.claim("act-1", "email", {}, key="k")
    assert await table.kinds(after=4) == ["action_claimed", "outcome"]
    assert head == {"seq": 5, "hash": (await table.rows())[5]["hash"]}


async def test_p21_a_refused_claim_is_refused_again_under_its_key(
    approved: Caller, twin: Caller, table: Table
) -> None:
    for caller in (approved, twin, twin):
        assert await refusal(caller, value={}, key="k") == "claim_mismatch"
    assert await table.kinds(after=4) == ["claim_refused"]
    assert (await twin.claim("act-1", "email", MAIL, key="another"))["claimed"] is True


async def test_g06_the_claim_of_an_old_approval_is_refused(
    ledger: Ledger, clock: SetClock, second_ledger: Ledger
) -> None:
    agent = Caller(ledger)
    rule = {"cost": 5, "requires_approval": True, "approval_ttl_secs": 60}
    await agent.create(tools={"email": rule})
    await agent.ask("email", MAIL)
    clock.move(59)
    await agent.approve("act-1")
    assert "expired" not in await agent.action("act-1")
    clock.move(2)
    shown = await agent.action("act-1")
    assert (shown["status"], shown["expired"]) == ("allowed", True)
    assert await refusal(agent.at(second_ledger)) == "approval_expired"
    assert json_of(await agent.ask("email", MAIL))["action_id"] == "act-2"


async def test_g23_the_claim_of_a_terminated_agents_action_is_refused(approved: Caller, twin: Caller) -> None:
    await twin.terminate("over")
    assert await refusal(approved) == "terminated"


async def test_claims_find_their_action_among_those_of_many(agent: Caller, twin: Caller) -> None:
    for number in range(12):
        await agent.ask("search", number)
    for number in (10, 3, 7, 0):
        await twin.claim(f"act-{number + 1}", "search", number)
    await agent.report("act-8", "success")
    shown = [await agent.action(f"act-{number + 1}") for number in range(12)]
    assert [number for number, action in enumerate(shown) if "claimed_by" in action] == [0, 3, 7, 10]
    for number in (3, 10):
        assert await refusal(twin, f"act-{number + 1}", number, tool="search") == "already_claimed"


async def test_refused_claims_are_bounded(
    approved: Caller, twin: Caller, clock: SetClock, table: Table
) -> None:
    for number in range(MAX_REFUSED):
        assert await refusal((approved, twin)[number % 2], value=number) == "claim_mismatch"
    for caller in (approved, twin):
        with pytest.raises(TooManyRequestsError):
            await caller.claim("act-1", "email", None)
    assert Counter(await table.kinds(after=4)) == {"claim_refused": MAX_REFUSED}
    assert (await twin.claim("act-1", "email", MAIL))["claimed"] is True
    clock.move(60)
    assert await refusal(approved) == "already_claimed"


async def test_an_unknown_action_is_not_claimed(agent: Caller, table: Table) -> None:
    with pytest.raises(UnknownActionError):
        await agent.claim("act-1")
    assert await table.kinds(after=1) == []
