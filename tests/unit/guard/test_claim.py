"""A claim: exactly what was allowed, once, while the agent is alive and the approval counts."""

from __future__ import annotations

import pytest

from app.chain.record import Draft
from app.chain.strict import JsonValue
from app.errors import ClaimRefusedError, ConflictError, FormatError, TooManyRequestsError
from app.guard.answers import Claimed, decision_of, refusal_of
from app.guard.claim import MAX_REFUSED, claim_digest
from app.guard.state import fold
from app.guard.words import OutcomeStatus, Severity
from tests.support.guard_chain import GuardChain, policy_document

PAY: dict[str, JsonValue] = {"amount": 82000, "to": "acme"}


def chain(**members: JsonValue) -> GuardChain:
    return GuardChain(policy_document(**members))


def paying(**rule: JsonValue) -> GuardChain:
    """One payment that alice approved."""
    c = chain(tools={"pay": {"cost": 5, "requires_approval": True, **rule}, "look": {"cost": 0}})
    c.ask("pay", PAY)
    c.approve("act-1")
    return c


def refused(c: GuardChain, action_id: str = "act-1", tool: str = "pay", value: JsonValue = None) -> JsonValue:
    """The reason on record and in the answer, which are one."""
    with pytest.raises(ClaimRefusedError) as caught:
        c.claim(action_id, tool, PAY if value is None else value)
    record = c.records[-1]
    assert record.kind == "claim_refused"
    assert record.payload["reason"] == caught.value.reason
    again = refusal_of([record])
    assert isinstance(again, ClaimRefusedError)
    assert (again.code, str(again)) == (caught.value.code, str(caught.value))
    assert decision_of([record]) is None
    return record.payload["reason"]


def test_a_claim_is_on_record_with_who_claims_and_what() -> None:
    c = paying()
    assert c.claim("act-1", "pay", PAY) == Claimed("act-1")
    assert c.records[-1].payload == {
        "action_id": "act-1",
        "by": "backend",
        "by_key": "backend-key",
        "digest": claim_digest("pay", PAY),
    }
    assert decision_of(c.records[-1:]) == Claimed("act-1")
    assert c.action("act-1").claimed_by == "backend"
    assert c.state.last_claim == c.records[-1].seq


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("pay", {**PAY, "amount": 820000}),
        ("look", PAY),
        ("Pay", PAY),
        ("pay", {**PAY, "note": None}),
        ("pay", {"amount": 82000}),
        ("pay", {**PAY, "amount": "82000"}),
        ("pay", [PAY]),
    ],
)
def test_g01_nothing_but_what_was_approved_is_claimed(tool: str, value: JsonValue) -> None:
    c = paying()
    assert refused(c, "act-1", tool, value) == {
        "code": "claim_mismatch",
        "allowed": claim_digest("pay", PAY),
        "claimed": claim_digest(tool, value),
    }
    assert "820000" not in c.records[-1].text
    assert c.action("act-1").claimed_by is None
    assert c.claim("act-1", "pay", PAY) == Claimed("act-1"), "the approval was not used up"


def test_g01_the_same_json_value_is_the_same_however_it_is_written() -> None:
    c = paying()
    assert c.claim("act-1", "pay", {"to": "acme", "amount": 82000.0}) == Claimed("act-1")


def test_g04_a_second_claim_is_refused_for_a_stable_reason() -> None:
    c = paying()
    c.claim("act-1", "pay", PAY)
    for _ in range(2):
        assert refused(c) == {"code": "already_claimed", "by": "backend"}
    assert refused(c, "act-1", "pay", {"amount": 1}) == {"code": "already_claimed", "by": "backend"}


@pytest.mark.parametrize("status", list(OutcomeStatus))
def test_g04_an_execution_that_failed_has_used_up_its_claim(status: OutcomeStatus) -> None:
    c = paying()
    c.claim("act-1", "pay", PAY)
    c.report("act-1", status)
    assert refused(c) == {"code": "completed"}
    assert c.action("act-1").claimed_by == "backend"


def test_after_an_outcome_without_a_claim_there_is_none() -> None:
    c = paying()
    c.report("act-1", OutcomeStatus.SUCCESS)
    assert refused(c) == {"code": "completed"}


def test_only_what_is_allowed_is_claimed() -> None:
    c = chain()
    c.ask("email", PAY)
    assert refused(c, "act-1", "email") == {"code": "not_allowed", "status": "pending_approval"}
    c.reject("act-1")
    assert refused(c, "act-1", "email") == {"code": "not_allowed", "status": "denied"}
    c.ask("shell", PAY)
    assert refused(c, "act-2", "shell") == {"code": "not_allowed", "status": "denied"}


def test_what_needed_no_approval_is_claimed_too_and_never_expires() -> None:
    c = chain(default_rule={"cost": 0, "requires_approval": True, "approval_ttl_secs": 1})
    c.ask("search", PAY)
    c.wait(1000)
    assert c.claim("act-1", "search", PAY) == Claimed("act-1")


def test_g06_an_approval_given_at_59_seconds_is_not_carried_out_at_61() -> None:
    c = chain(tools={"pay": {"cost": 5, "requires_approval": True, "approval_ttl_secs": 60}})
    c.ask("pay", PAY)
    c.ask("pay", [PAY])
    c.wait(59)
    c.approve("act-1")
    c.approve("act-2")
    assert c.claim("act-2", "pay", [PAY]) == Claimed("act-2"), "at 59 s it counts"
    c.wait(2)  # who began to prepare at 59 s is done now
    reason = refused(c)
    assert isinstance(reason, dict)
    assert (reason["code"], reason["approval_ttl_secs"]) == ("approval_expired", 60)


def test_a_terminated_agents_actions_are_not_carried_out() -> None:
    c = paying()
    c.terminate("incident")
    assert refused(c) == {"code": "terminated", "reason": "incident"}


def test_what_was_allowed_for_the_last_credit_is_carried_out() -> None:
    c = chain(budget=5)
    c.ask("email", PAY)
    c.approve("act-1")
    assert c.state.terminated == "budget exhausted"
    assert c.claim("act-1", "email", PAY) == Claimed("act-1")


def test_scars_end_an_agent_that_spent_its_budget() -> None:
    c = chain(budget=5)
    c.ask("email", PAY)
    c.approve("act-1")
    c.scar(Severity.FATAL)
    assert refused(c, "act-1", "email") == {"code": "terminated", "reason": "budget exhausted"}


def test_refused_claims_do_not_flood_the_chain_and_hinder_no_right_one() -> None:
    c = paying()
    for _ in range(MAX_REFUSED):
        refused(c, "act-1", "look")
    before = c.state
    with pytest.raises(TooManyRequestsError, match="not recorded"):
        c.claim("act-1", "look", PAY)
    assert c.state == before
    c.wait(59)
    with pytest.raises(TooManyRequestsError):
        c.claim("act-1", "look", PAY)
    assert c.claim("act-1", "pay", PAY) == Claimed("act-1")
    c.wait(1)
    assert refused(c, "act-1", "look") == {"code": "already_claimed", "by": "backend"}
    assert len(c.state.refused_claims) == 1
    assert fold(c.records) == c.state


def test_a_second_claim_on_record_does_not_fold() -> None:
    c = paying()
    c.claim("act-1", "pay", PAY)
    c.append(Draft(kind="action_claimed", payload={"action_id": "act-1", "by": "b"}, actor="b"))
    with pytest.raises(FormatError, match="a second claim of act-1"):
        c.action("act-1")


@pytest.mark.parametrize("kind", ["action_claimed", "claim_refused"])
def test_a_claim_of_an_action_that_never_was_does_not_fold(kind: str) -> None:
    c = paying()
    with pytest.raises(FormatError, match="no action act-2"):
        c.append(Draft(kind=kind, payload={"action_id": "act-2", "by": "b"}, actor="b"))


def test_an_observed_agent_has_nothing_to_claim() -> None:
    c, other = GuardChain(None), paying()
    c.records = other.records
    with pytest.raises(ConflictError, match="observed"):
        c.claim("act-1", "pay", PAY)
