"""One action is folded from its own records, and from nothing that contradicts them."""

from __future__ import annotations

from uuid import UUID

import pytest

from app.chain.link import seal
from app.chain.record import Draft, VerifiedRecord
from app.chain.strict import JsonValue
from app.errors import FormatError, OrderError
from app.guard.state import Action, fold_action
from app.guard.words import ActionStatus, OutcomeStatus
from tests.support.guard_chain import AGENT, KEY, START, GuardChain, policy_document

SESSION = UUID("123e4567-e89b-12d3-a456-426614174000")


def record(c: GuardChain, kind: str, **payload: JsonValue) -> VerifiedRecord:
    """A sealed record after the chain's head, of any content; the chain does not take it."""
    return seal(Draft(kind=kind, payload=payload, actor=AGENT), c.state.head, c.now_us, KEY)


def own(c: GuardChain, action_id: str = "act-1") -> list[VerifiedRecord]:
    return [r for r in c.records if r.payload.get("action_id") == action_id and r.kind != "scar"]


def test_an_actions_life_to_its_end() -> None:
    c = GuardChain(policy_document())
    c.ask("email", {"to": "x"}, session_id=SESSION, thought_process="why")
    asked = Action(
        action_id="act-1",
        tool="email",
        input={"to": "x"},
        cost=5,
        status=ActionStatus.PENDING_APPROVAL,
        session_id=SESSION,
        thought_process="why",
        asked_us=START,
    )
    assert c.action("act-1") == asked
    c.ask("email", {"to": "x"})
    assert c.action("act-1") == asked
    c.approve("act-1")
    assert c.action("act-1").status is ActionStatus.ALLOWED
    c.report("act-1", OutcomeStatus.UNKNOWN)
    assert (c.action("act-1").status, c.action("act-1").outcome) == (
        ActionStatus.COMPLETED,
        OutcomeStatus.UNKNOWN,
    )
    c.report("act-1", OutcomeStatus.HARMFUL)
    assert c.action("act-1").outcome is OutcomeStatus.HARMFUL


def test_denied_and_rejected_are_denied() -> None:
    c = GuardChain(policy_document())
    c.ask("shell")
    c.ask("email")
    c.reject("act-2")
    assert c.action("act-1").status is c.action("act-2").status is ActionStatus.DENIED


def test_a_request_alone_is_requested() -> None:
    c = GuardChain(policy_document())
    c.ask("look")
    assert fold_action(own(c)[:1]).status is ActionStatus.REQUESTED


def test_the_shape_of_the_api() -> None:
    c = GuardChain(policy_document())
    c.ask("search", [1])
    c.ask("search", parent_id=SESSION, session_id=SESSION)
    c.report("act-1", OutcomeStatus.SUCCESS)
    assert c.action("act-1").to_json() == {
        "action_id": "act-1",
        "tool": "search",
        "input": [1],
        "cost": 2,
        "status": "completed",
        "outcome": "success",
    }
    assert c.action("act-2").to_json() == {
        "action_id": "act-2",
        "tool": "search",
        "input": None,
        "cost": 2,
        "status": "allowed",
        "outcome": None,
        "session_id": str(SESSION),
        "parent_id": str(SESSION),
    }


def test_no_records_are_no_action() -> None:
    with pytest.raises(FormatError):
        fold_action([])


def test_the_request_must_come_first_and_the_order_hold() -> None:
    c = GuardChain(policy_document())
    c.ask("look")
    with pytest.raises(FormatError, match="request is missing"):
        fold_action(own(c)[1:])
    with pytest.raises(OrderError):
        fold_action([own(c)[0], own(c)[0]])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("action_allowed", {"action_id": "act-1"}),
        ("action_denied", {"action_id": "act-1"}),
        ("action_rejected", {"action_id": "act-1"}),
        ("approval_required", {"action_id": "act-1"}),
        ("action_requested", {"action_id": "act-1", "tool": "look", "cost": 0}),
        ("outcome", {"action_id": "act-2", "status": "success"}),
        ("outcome", {"action_id": "act-1", "status": "good"}),
        ("outcome", {"status": "success"}),
        ("scar", {"action_id": "act-1", "severity": "minor", "reason": "r"}),
    ],
)
def test_what_cannot_follow_is_refused(kind: str, payload: dict[str, JsonValue]) -> None:
    c = GuardChain(policy_document())
    c.ask("look")
    with pytest.raises(FormatError):
        fold_action([*own(c), record(c, kind, **payload)])


@pytest.mark.parametrize("again", ["success", "failure", "unknown"])
def test_g25_two_outcomes_on_record_are_a_contradiction(again: str) -> None:
    c = GuardChain(policy_document())
    c.ask("look")
    c.report("act-1", OutcomeStatus.SUCCESS)
    with pytest.raises(FormatError, match="second outcome"):
        fold_action([*own(c), record(c, "outcome", action_id="act-1", status=again)])
