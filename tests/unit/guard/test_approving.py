"""Who may approve what, how many must, and until when."""

from __future__ import annotations

import pytest

from app.chain.record import Draft
from app.chain.strict import JsonValue
from app.errors import ForbiddenError
from app.guard.decide import Allowed, Denied, PendingApproval
from tests.support.guard_chain import AGENT, GuardChain, policy_document


def chain(**members: JsonValue) -> GuardChain:
    return GuardChain(policy_document(**members))


# --- who ------------------------------------------------------------------------------------------------


def test_g08_a_key_does_not_approve_what_was_asked_for_with_it() -> None:
    c = chain()
    c.ask("email", actor="alice", key="alice-key")
    before = c.state
    with pytest.raises(ForbiddenError, match="act-1 was asked for with this key"):
        c.approve("act-1")
    assert c.state == before
    assert c.action("act-1").requested_with == "alice-key"
    assert c.approve("act-1", "bob") == Allowed("act-1", 5, 95)


def test_g08_the_key_counts_and_not_its_name() -> None:
    c = chain()
    c.ask("email", actor="alice", key="alice-key")
    with pytest.raises(ForbiddenError):
        c.approve("act-1", "renamed", key="alice-key")
    assert isinstance(c.approve("act-1", "alice", key="another-key"), Allowed)


def test_g08_whoever_joins_what_waits_does_not_approve_it_either() -> None:
    c = chain()
    c.ask("email")
    for _ in range(2):
        assert c.ask("email", actor="alice", key="alice-key") == PendingApproval("act-1")
    assert c.state.pending["act-1"].keys == ("alice-key",)
    with pytest.raises(ForbiddenError):
        c.approve("act-1")
    assert isinstance(c.approve("act-1", "bob"), Allowed)


def test_g08_rejecting_ones_own_is_allowed() -> None:
    c = chain()
    c.ask("email", actor="bob", key="bob-key")
    assert isinstance(c.reject("act-1"), Denied)


def test_g08_a_request_that_names_no_key_is_that_of_the_name_it_has() -> None:
    """As recorded before requests named their keys."""
    c = chain()
    asked: dict[str, JsonValue] = {"action_id": "act-1", "tool": "email", "input": None, "cost": 5}
    c.append(
        Draft(kind="action_requested", payload=asked, actor="operator"),
        Draft(kind="approval_required", payload={"action_id": "act-1"}, actor="operator"),
    )
    with pytest.raises(ForbiddenError):
        c.approve("act-1", "operator", key="operator")
    assert isinstance(c.approve("act-1"), Allowed)


def test_g08_an_agent_of_the_approvers_name_is_somebody_else() -> None:
    c = chain()
    c.ask("email")
    assert isinstance(c.approve("act-1", AGENT, key="operator"), Allowed)


def test_g08_the_approver_on_record_is_the_key_and_the_name_in_the_body_stands_apart() -> None:
    c = chain()
    c.ask("email", 1)
    c.ask("email", 2)
    c.approve("act-1")
    c.reject("act-2", "no")
    allowed, rejected = c.action("act-1"), c.action("act-2")
    assert (allowed.approved_by, allowed.approver_claimed) == ("alice", "claimed alice")
    assert rejected.reason == {"code": "rejected", "by": "bob", "reason": "no"}
    assert rejected.approver_claimed == "Bob"
    assert [record.payload["by_key"] for record in c.records[-2:]] == ["alice-key", "bob-key"]
