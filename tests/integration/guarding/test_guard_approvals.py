"""Approvals: who waits, who may go, and what happens when nobody decides."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.client.decisions import ActionDenied, Allowed, Denied, Pending
from app.client.guard import Guard, Held
from tests.support.guarding import AGENT, Stage
from tests.support.lossy import lossy
from tests.support.standing import OPERATOR, database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]


def test_an_approved_call_runs(guard: Guard, stage: Stage) -> None:
    @guard.tool("send_email")
    def send(to: str) -> str:
        return f"sent to {to}"

    with stage.approver():
        assert send("a@example.com") == "sent to a@example.com"
    assert stage.outcomes() == [("act-1", "success", "")]
    assert stage.spent == 5


async def test_an_approved_coroutine_runs(guard: Guard, stage: Stage) -> None:
    @guard.tool("send_email")
    async def send(to: str) -> str:
        return f"sent to {to}"

    with stage.approver():
        assert await send("a@example.com") == "sent to a@example.com"
    assert stage.outcomes() == [("act-1", "success", "")]


def test_a_rejected_call_does_not_run(guard: Guard, stage: Stage) -> None:
    ran = []

    @guard.tool("send_email")
    def send(to: str) -> None:
        ran.append(to)

    with stage.approver(stage.reject), pytest.raises(ActionDenied, match="wrong address") as caught:
        send("a@example.com")
    assert caught.value.decision == Denied(
        "act-1", {"code": "rejected", "by": OPERATOR, "reason": "wrong address"}
    )
    assert ran == []


def test_when_nobody_decides_in_time_it_does_not_run(stage: Stage) -> None:
    guard = stage.guard(approval_timeout=0.0)
    ran = []

    @guard.tool("send_email")
    def send(to: str) -> None:
        ran.append(to)

    with pytest.raises(ActionDenied, match="still waits") as caught:
        send("a@example.com")
    assert caught.value.decision == Pending("act-1")
    assert caught.value.decision.code == "approval_timed_out"
    assert ran == []


async def test_a_call_that_is_told_not_to_wait_does_not(guard: Guard) -> None:
    ran = []

    @guard.tool("send_email", wait=False)
    async def send(to: str) -> None:
        ran.append(to)

    with pytest.raises(ActionDenied):
        await send("a@example.com")
    assert ran == []


def test_waiting_by_hand(guard: Guard, stage: Stage) -> None:
    assert guard.check("send_email") == Pending("act-1")
    assert guard.wait("act-1", timeout=0) == Pending("act-1")
    stage.approve("act-1")
    assert guard.wait("act-1", timeout=0) == Allowed("act-1", 5)
    unknown = guard.wait("act-9", timeout=0)
    assert isinstance(unknown, Denied)
    assert unknown.code == "not_found"


def test_an_approval_lets_one_caller_go(stage: Stage) -> None:
    """The same question joins the one that waits; one approval must not make two payments of it."""
    guards = [stage.guard(approval_timeout=20) for _ in range(3)]
    ran = []

    def send(guard: Guard) -> str:
        @guard.tool("send_email")
        def sending(to: str) -> str:
            ran.append(to)
            return "sent"

        try:
            return sending("a@example.com")
        except ActionDenied as denied:
            return str(denied.decision.code)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(send, guard) for guard in guards]
        stage.until(lambda: len(stage.records("approval_required")) == 3)
        assert stage.pending() == ["act-1"]
        stage.approve("act-1")
        results = [call.result() for call in calls]
    assert results.count("sent") == 1
    assert set(results) <= {"sent", "already_claimed", "completed"}
    assert ran == ["a@example.com"]
    [claim] = stage.records("action_claimed")
    assert claim["payload"]["action_id"] == "act-1"
    assert claim["payload"]["by"] == "worker"


def test_a_claim_whose_answer_was_lost_is_still_the_callers(stage: Stage) -> None:
    with lossy(stage.url) as way:
        guard = stage.guard(way.url, approval_timeout=20)
        assert guard.check("send_email") == Pending("act-1")
        stage.approve("act-1")
        way.lose = 2
        assert guard.wait("act-1") == Allowed("act-1", 5)
    assert len(stage.records("action_claimed")) == 1
    asked, *claims = way.keys
    assert len(claims) == 3
    assert len(set(claims)) == 1
    assert {asked, None}.isdisjoint(claims)


def test_a_claim_without_an_answer_runs_nothing_and_is_the_next_waits(stage: Stage) -> None:
    """Whoever waits for it again asks with the same key: the action is this guard's, and nobody else's."""
    with lossy(stage.url) as way:
        guard = stage.guard(way.url, attempts=2)
        told = {"to": "a"}
        assert guard.check("send_email", told) == Pending("act-1")
        stage.approve("act-1")
        way.lose = 2
        denied = guard.wait("act-1", 0, tool="send_email", input=told)
        assert isinstance(denied, Denied)
        assert (denied.action_id, denied.code) == ("act-1", "unavailable")
        assert len(stage.records("action_claimed")) == 1
        assert stage.outcomes() == []
        stranger = stage.guard().wait("act-1", 0, tool="send_email", input=told)
        assert stranger == Denied("act-1", {"code": "already_claimed", "by": "worker"})
        assert guard.wait("act-1", 0, tool="send_email", input=told) == Allowed("act-1", 5)
        again = guard.wait("act-1", 0, tool="send_email", input=told)
        assert isinstance(again, Denied), "one answer lets one caller go"
        assert again.code == "already_claimed"


def test_a_claim_that_is_waited_for_again_with_another_input_is_another_claim(stage: Stage) -> None:
    with lossy(stage.url) as way:
        guard = stage.guard(way.url, attempts=1)
        assert guard.check("send_email", {"to": "a"}) == Pending("act-1")
        stage.approve("act-1")
        way.lose = 1
        assert isinstance(guard.wait("act-1", 0, tool="send_email", input={"to": "a"}), Denied)
        other = guard.wait("act-1", 0, tool="send_email", input={"to": "b"})
        assert isinstance(other, Denied)
        assert other.code == "already_claimed"


def test_trouble_of_the_service_does_not_end_the_wait_for_a_claim(stage: Stage) -> None:
    with lossy(stage.url) as way:
        guard = stage.guard(way.url, approval_timeout=20, attempts=1)
        assert guard.check("send_email") == Pending("act-1")
        stage.approve("act-1")
        way.lose = 3
        assert guard.wait("act-1") == Allowed("act-1", 5), "looked again after each"
    assert len(set(way.keys[1:])) == 1


def test_g01_what_changed_between_approval_and_run_does_not_run(stage: Stage) -> None:
    """The input is read again when the approval is there: what runs is what the person has seen."""
    guard = stage.guard(approval_timeout=20)
    ran = []

    @guard.tool("send_email")
    def send(order: dict[str, int]) -> None:
        ran.append(order)

    order = {"amount": 82_000}

    def change_and_approve(action_id: str) -> None:
        order["amount"] = 820_000
        stage.approve(action_id)

    with stage.approver(change_and_approve), pytest.raises(ActionDenied, match="claim_mismatch") as caught:
        send(order)
    assert caught.value.decision.code == "claim_mismatch"
    assert ran == []
    [refused] = stage.records("claim_refused")
    assert {"allowed", "claimed"} <= set(refused["payload"]["reason"])
    assert stage.records("action_claimed", "outcome") == []


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("send_email", {"to": "a", "amount": 820_000}),
        ("search", {"to": "a", "amount": 82_000}),
        ("send_email", {"to": "a", "amount": 82_000, "copy": "b"}),
        ("send_email", {"to": "a"}),
        ("send_email", None),
    ],
)
def test_g01_another_call_is_refused_and_leaves_the_approval(
    guard: Guard, stage: Stage, tool: str, value: object
) -> None:
    approved = {"to": "a", "amount": 82_000}
    guard.check("send_email", approved)
    stage.approve("act-1")
    denied = guard.wait("act-1", 0, tool=tool, input=value)
    assert isinstance(denied, Denied)
    assert denied.code == "claim_mismatch"
    assert guard.wait("act-1", 0, tool="send_email", input=approved) == Allowed("act-1", 5)


def test_waiting_by_hand_claims_what_is_on_record(guard: Guard, stage: Stage) -> None:
    """Numbers, and the text that stands for what JSON cannot say, come back as they went."""
    guard.check("send_email", {"n": [1e21, 0.1, -0.0, 10**40], "text": "␛ \0 \ud800 ü", "date": b"x"})
    stage.approve("act-1")
    assert guard.wait("act-1", 0) == Allowed("act-1", 5)


def test_g04_an_approval_is_used_once_also_when_the_run_fails(stage: Stage) -> None:
    guard = stage.guard(approval_timeout=20)

    @guard.tool("send_email")
    def send(to: str) -> None:
        raise LookupError(to)

    with stage.approver(), pytest.raises(LookupError):
        send("a")
    again = stage.guard().wait("act-1", 0, tool="send_email", input={"to": "a"})
    assert again == Denied("act-1", {"code": "already_claimed", "by": "worker"})
    assert len(stage.records("action_claimed")) == 1


def test_g23_an_approval_of_a_terminated_agent_runs_nothing(guard: Guard, stage: Stage) -> None:
    guard.check("send_email")
    stage.approve("act-1")
    end = stage.operator.post(f"/v1/agents/{AGENT}/terminate", {"reason": "stop", "by": "Ada"})
    assert end.status == 200
    denied = guard.wait("act-1", 0)
    assert isinstance(denied, Denied)
    assert denied.code == "terminated"


def test_waiting_goes_on_while_the_service_is_away(stage: Stage) -> None:
    with lossy(stage.url) as way:
        guard = stage.guard(way.url, approval_timeout=20)
        assert guard.check("send_email") == Pending("act-1")
        way.away = True
        assert guard.wait("act-1", timeout=0) == Pending("act-1")
        stage.approve("act-1")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(guard.wait, "act-1")
            way.away = False
            assert waiting.result() == Allowed("act-1", 5)


async def test_whoever_is_cancelled_while_waiting_waits_no_more(guard: Guard) -> None:
    assert await guard.acheck("send_email") == Pending("act-1")
    waiting = asyncio.create_task(guard.await_("act-1"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await guard.await_("act-1", timeout=0) == Pending("act-1")


def test_a_wait_says_once_what_it_waits_for_and_how_to_approve_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Held] = []

    def approve(held: Held) -> None:
        told.append(held)
        stage.approve(held.action_id)
        raise LookupError("a hook that fails changes nothing")

    guard = stage.guard(approval_timeout=20, on_pending=approve)

    @guard.tool("send_email")
    def send(to: str) -> str:
        return f"sent to {to}"

    with caplog.at_level("INFO", "trails.client"):
        assert send("a@example.com") == "sent to a@example.com"
    [held] = told
    assert (held.action_id, held.tool, held.secs) == ("act-1", "send_email", 20)
    path = f"{stage.url}/v1/agents/worker/actions/act-1/approve"
    assert f"at {stage.url}/approvals, or by POST {path}" in held.how_to_approve
    said = [
        record.getMessage() for record in caplog.records if "waits for the approval" in record.getMessage()
    ]
    assert said == [
        f"send_email (act-1) waits for the approval of a person, 20 s at most; {held.how_to_approve}"
    ]


async def test_so_does_a_coroutine(stage: Stage) -> None:
    told: list[Held] = []
    guard = stage.guard(on_pending=told.append)
    assert isinstance(await guard.acheck("send_email"), Pending)
    waiting = asyncio.create_task(guard.await_("act-1", 20))
    while not told:
        await asyncio.sleep(0)
    await asyncio.to_thread(stage.approve, "act-1")
    assert isinstance(await waiting, Allowed)
    assert [held.tool for held in told] == ["send_email"]


def test_whoever_does_not_wait_is_not_told_and_who_waits_once(stage: Stage) -> None:
    told: list[Held] = []
    guard = stage.guard(on_pending=told.append)
    assert guard.decide("send_email", wait=False) == Pending("act-1")
    assert guard.wait("act-1", 0) == Pending("act-1")
    assert told == []
    assert guard.wait("act-1", 0.6) == Pending("act-1")
    assert len(told) == 1, "however often it looks"
