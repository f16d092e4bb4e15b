"""Held actions: until when an approval counts, how many it takes, and whose clock says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from app.errors import ConflictError, ForbiddenError, InvalidStateError
from app.ledger import Ledger
from app.principal import Permission
from db.pool import create_pool
from tests.support.ledgers import (
    MASTER_KEY,
    Caller,
    Json,
    Opener,
    SetClock,
    Table,
    decisions,
    json_of,
    outcomes,
)
from tests.support.postgres import Database

MAIL: Json = {"cost": 5, "requires_approval": True, "approval_ttl_secs": 60}


@pytest.fixture
async def ahead(ledger: Ledger, database: Database, clock: SetClock) -> AsyncIterator[Ledger]:
    """Another process's ledger, whose clock is three minutes ahead of the first one's."""
    del ledger  # it is opened first

    def clock_ahead() -> int:
        return clock() + 180_000_000

    async with await create_pool(database.app_url, max_size=4) as pool:
        opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock_ahead)
        yield opened
        await opened.close()


async def held(ledger: Ledger, **rule: object) -> Caller:
    agent = Caller(ledger)
    await agent.create(tools={"email": {**MAIL, **rule}, "look": {"cost": 0}})
    await agent.ask("email", {"to": "a"})
    return agent


async def test_g06_an_approval_at_61_seconds_is_denied_on_record(
    ledger: Ledger, second_ledger: Ledger, clock: SetClock, table: Table
) -> None:
    agent = await held(ledger)
    [waiting] = await agent.pending()
    assert "expired" not in waiting
    clock.move(61)
    for caller in (agent, agent.at(second_ledger)):
        [waiting] = await caller.pending()
        assert waiting["expired"] is (await caller.action("act-1"))["expired"] is True
        assert waiting["expires_at"] == (await caller.action("act-1"))["expires_at"]
    answer = json_of(await agent.at(second_ledger).approve("act-1", key="k"))
    assert (answer["decision"], answer["reason"]["code"]) == ("denied", "approval_expired")
    assert json_of(await agent.approve("act-1", key="k")) == answer
    assert await table.kinds(after=3) == ["action_denied"]
    status = await agent.status()
    assert (status["actions_denied"], status["scar_score"], status["spent"]) == (1, 0, 0)
    row = await table.admin.fetchrow("SELECT status, reason_code FROM trails.actions")
    assert row is not None
    assert tuple(row) == ("denied", "approval_expired")
    with pytest.raises(InvalidStateError):
        await agent.approve("act-1")
    assert json_of(await agent.ask("email", {"to": "a"}))["action_id"] == "act-2"


async def test_g06_asking_again_is_a_new_request_and_ends_the_old_one(
    ledger: Ledger, clock: SetClock, restarted: Opener, table: Table
) -> None:
    agent = await held(ledger)
    clock.move(61)
    again = agent.at(await restarted())
    first = json_of(await again.ask("email", {"to": "a"}, key="k"))
    assert first == {"decision": "pending_approval", "action_id": "act-2"}
    assert json_of(await agent.ask("email", {"to": "a"}, key="k")) == first
    assert await table.kinds(after=3) == ["action_requested", "approval_required", "action_denied"]
    assert (await agent.action("act-1"))["reason"]["code"] == "approval_expired"  # type: ignore[index,call-overload]
    assert [entry["action"]["action_id"] for entry in await agent.pending()] == ["act-2"]  # type: ignore[index,call-overload]
    assert json_of(await agent.approve("act-2"))["decision"] == "allowed"
    assert (await agent.verify())["ok"] is True


async def test_g07_what_one_process_found_expired_is_expired_for_one_whose_clock_is_behind(
    ledger: Ledger, ahead: Ledger, table: Table
) -> None:
    agent = await held(ledger)
    await agent.at(ahead).scar("minor")  # the chain's time is that of the clock that is ahead
    answer = json_of(await agent.approve("act-1"))
    assert (answer["decision"], answer["reason"]["code"]) == ("denied", "approval_expired")
    times = [record["timestamp"] for record in await table.records()]
    assert times == sorted(times)


async def test_g07_what_one_process_asked_is_approved_by_one_whose_clock_is_behind(
    ledger: Ledger, ahead: Ledger
) -> None:
    agent = Caller(ahead)
    await agent.create(tools={"email": MAIL})
    await agent.ask("email")
    assert json_of(await agent.at(ledger).approve("act-1"))["decision"] == "allowed"


async def test_g07_no_window_of_record_time_holds_more_than_its_limit_whichever_process_answers(
    ledger: Ledger, ahead: Ledger, clock: SetClock, table: Table
) -> None:
    agent = Caller(ledger)
    await agent.create(rate_limit={"max_actions": 10, "window_secs": 60}, scar_limit=1000)
    answers = []
    for number in range(40):
        clock.move(1)
        at = agent if number < 12 or number % 2 else agent.at(ahead)
        answers.append(json_of(await at.ask("look"))["decision"])
    assert answers[:12] == ["allowed"] * 10 + ["denied"] * 2
    allowed = [row["created_at"].timestamp() for row in await table.rows() if row["kind"] == "action_allowed"]
    assert len(allowed) == 20
    assert max(len([t for t in allowed if end - 60 < t <= end]) for end in allowed) == 10
    assert await agent.status() == await agent.at(ahead).status()


async def test_several_approvers_in_two_processes(
    ledger: Ledger, second_ledger: Ledger, restarted: Opener, table: Table
) -> None:
    agent = await held(ledger, approvers=3)
    twin = agent.at(second_ledger)
    first = json_of(await agent.approve("act-1", key="k"))
    assert first == {"decision": "pending_approval", "action_id": "act-1", "approvals": 1, "approvers": 3}
    assert json_of(await twin.approve("act-1", key="k")) == first
    with pytest.raises(ConflictError, match="approved with this key"):
        await twin.approve("act-1")
    assert json_of(await twin.approve("act-1", by="carol"))["approvals"] == 2
    third = agent.at(await restarted())
    shown = await third.action("act-1")
    assert (shown["status"], shown["approvals"], shown["approvers"]) == ("pending_approval", 2, 3)
    assert json_of(await third.approve("act-1", by="dave"))["decision"] == "allowed"
    assert await table.kinds(after=3) == ["approval_given", "approval_given", "action_allowed"]
    view = await table.admin.fetchrow("SELECT status, approved_by FROM trails.actions")
    assert view is not None
    assert tuple(view) == ("allowed", "dave")
    assert (await third.verify())["ok"] is True


async def test_g10_many_approvals_at_once_allow_once(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    agent = await held(ledger, approvers=3)
    twin = agent.at(second_ledger)
    answers = await outcomes(*((agent, twin)[n % 2].approve("act-1", by=f"key-{n % 5}") for n in range(20)))
    assert Counter(decisions(answers))["allowed"] == 1
    assert Counter(decisions(answers))["pending_approval"] == 2
    kinds = Counter(await table.kinds(after=3))
    assert kinds == {"approval_given": 2, "action_allowed": 1}
    by = [r["payload"]["by_key"] for r in await table.records() if "by_key" in r["payload"]]
    assert len(set(by)) == 3


async def test_g08_the_same_key_is_refused_in_every_process(
    ledger: Ledger, second_ledger: Ledger, restarted: Opener, table: Table
) -> None:
    agent = Caller(ledger)
    await agent.create()
    await agent.ask("email")  # with the operator's token
    for caller in (agent, agent.at(second_ledger), agent.at(await restarted())):
        with pytest.raises(ForbiddenError):
            await caller.approve("act-1", by=None)
    assert await table.kinds(after=3) == []
    assert agent.may(Permission.DECIDE).key == "operator"
    assert json_of(await agent.approve("act-1"))["decision"] == "allowed"
