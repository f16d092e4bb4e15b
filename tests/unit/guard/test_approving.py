"""Who may approve what, how many must, and until when."""

from __future__ import annotations

import pytest

from app.chain.link import seal_all
from app.chain.record import Draft, format_timestamp
from app.chain.strict import JsonValue
from app.errors import ConflictError, ForbiddenError, FormatError
from app.guard import decide
from app.guard.decide import Allowed, Denied, PendingApproval, decision_of
from app.guard.standing import standing
from app.guard.state import evolve
from app.guard.words import Severity
from tests.support.guard_chain import AGENT, KEY, START, GuardChain, policy_document


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


def test_g08_neither_the_key_that_asked_nor_another_of_its_name_approves() -> None:
    c = chain()
    c.ask("email", actor="alice", key="alice-key")
    for actor, key in (("renamed", "alice-key"), ("alice", "another-key")):
        with pytest.raises(ForbiddenError):
            c.approve("act-1", actor, key=key)
    assert isinstance(c.approve("act-1", "bob", key="another-key"), Allowed)


def test_g08_a_name_that_joined_what_waits_is_of_those_who_asked() -> None:
    c = chain()
    c.ask("email", actor="bob", key="bob-key")
    c.ask("email", actor="alice", key="alice-key")
    with pytest.raises(ForbiddenError):
        c.approve("act-1", "alice", key="another-key")


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


# --- until when -----------------------------------------------------------------------------------------


def short(secs: int = 60, **rule: JsonValue) -> GuardChain:
    """A chain whose approvals count for so long."""
    mail: JsonValue = {"cost": 5, "requires_approval": True, "approval_ttl_secs": secs, **rule}
    return chain(tools={"email": mail, "look": {"cost": 0}})


EXPIRED = {"code": "approval_expired", "approval_ttl_secs": 60, "requested_at": format_timestamp(START)}


def test_g06_an_approval_that_comes_too_late_is_a_denial_without_a_scar() -> None:
    c = short()
    c.ask("email")
    c.wait(60.000001)
    assert c.approve("act-1") == Denied("act-1", EXPIRED)
    assert c.kinds(last=2) == ["approval_required", "action_denied"]
    assert c.records[-1].payload["reason"] == EXPIRED
    assert (c.state.spent, c.state.denied, c.state.scar_count, dict(c.state.pending)) == (0, 1, 0, {})
    with pytest.raises(ConflictError):
        c.approve("act-1")


def test_g06_in_the_last_microsecond_it_counts() -> None:
    c = short()
    c.ask("email")
    c.wait(60)
    assert c.approve("act-1") == Allowed("act-1", 5, 95)


def test_g06_what_waited_too_long_is_shown_as_expired_and_asking_again_is_a_new_request() -> None:
    c = short()
    c.ask("email")
    told = {"expires_at": format_timestamp(START + 60_000_000)}
    assert standing(c.state, c.action("act-1"), c.now_us) == told
    c.wait(61)
    assert standing(c.state, c.action("act-1"), c.now_us) == {**told, "expired": True}
    assert c.ask("email") == PendingApproval("act-2")
    assert c.kinds(last=3) == ["action_requested", "approval_required", "action_denied"]
    assert c.action("act-1").reason == EXPIRED
    assert list(c.state.pending) == ["act-2"]
    assert standing(c.state, c.action("act-1"), c.now_us) == {}


def test_g06_the_answer_to_an_ask_is_its_own_whatever_lapses_with_it() -> None:
    c = short()
    c.ask("email", 1)
    for tool in ("look", "shell", "email"):
        c.ask("email", tool)
        c.wait(61)
        before = len(c.records)
        answer = c.ask(tool, 2)
        assert decision_of(c.records[before:]) == answer
        assert answer.action_id == f"act-{c.state.action_count}"
        assert c.records[-1].kind == "action_denied"


def test_g06_what_lapsed_does_not_fill_up_what_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MAX_PENDING", 20)
    c = short()
    for number in range(60):
        c.wait(31 if number % 20 == 0 else 0)
        if number % 20 == 0:
            c.wait(61)
        assert c.ask("email", number) == PendingApproval(f"act-{number + 1}")
        assert len(c.state.pending) <= 40


def test_g06_one_that_may_still_be_approved_is_joined_and_keeps_its_time() -> None:
    c = short()
    c.ask("email")
    c.wait(59)
    assert c.ask("email") == PendingApproval("act-1")
    c.wait(2)
    assert isinstance(c.approve("act-1"), Denied)


def test_g06_what_lapsed_may_still_be_rejected() -> None:
    c = short()
    c.ask("email")
    c.wait(61)
    assert c.reject("act-1") == Denied("act-1", {"code": "rejected", "by": "bob", "reason": "no"})


def test_g07_the_chains_own_time_counts_and_not_a_clock_that_is_behind() -> None:
    c = short()
    c.ask("email")
    c.wait(61)
    c.scar(Severity.MINOR)  # a record of a process whose clock is right
    c.wait(-180)
    assert c.approve("act-1") == Denied("act-1", EXPIRED)


def test_g07_what_only_a_clock_said_has_not_ended_and_what_a_record_says_has() -> None:
    """Expiry is final with the first record of a later time, of whatever kind, and before that is no fact.

    As the guides say: nobody writes a record by looking, so where nothing was recorded meanwhile a clock that
    steps back makes what it showed as expired wait again. No approval on record is later than its time.
    """
    c = short()
    c.ask("email")
    c.wait(61)
    assert standing(c.state, c.action("act-1"), c.now_us)["expired"] is True
    c.wait(-30)
    assert "expired" not in standing(c.state, c.action("act-1"), c.now_us)
    assert c.approve("act-1") == Allowed("act-1", 5, 95)
    for kind in ("event", "trace", "snapshot"):
        c = short()
        c.ask("email")
        c.wait(61)
        c.append(Draft(kind=kind, payload={}, actor=AGENT))
        c.wait(-30)
        assert standing(c.state, c.action("act-1"), c.now_us)["expired"] is True
        assert c.approve("act-1") == Denied("act-1", EXPIRED)


def test_g06_a_record_that_allows_too_late_does_not_fold() -> None:
    c = short()
    c.ask("email")
    allowed = Draft(kind="action_allowed", payload={"action_id": "act-1", "approved_by": "a"}, actor="a")
    [late] = seal_all((allowed,), c.state.head, START + 60_000_001, KEY)
    with pytest.raises(FormatError, match="act-1 is allowed against the policy"):
        evolve(c.state, late)


# --- how many -------------------------------------------------------------------------------------------


def test_several_approvers_are_several_keys_and_the_last_one_lets_it_go() -> None:
    c = short(approvers=3)
    c.ask("email")
    assert standing(c.state, c.action("act-1"), c.now_us)["approvals"] == 0
    for number, by in enumerate(("alice", "carol"), start=1):
        answer = c.approve("act-1", by, note=f"note {number}")
        assert answer == PendingApproval("act-1", number, 3)
        assert answer.to_json() == {
            "decision": "pending_approval",
            "action_id": "act-1",
            "approvals": number,
            "approvers": 3,
        }
        assert decision_of(c.records[-1:]) == answer
        assert standing(c.state, c.action("act-1"), c.now_us)["approvals"] == number
        with pytest.raises(ConflictError, match="act-1 was approved with this key"):
            c.approve("act-1", f"{by} again", key=f"{by}-key")
    assert (c.state.spent, c.kinds(last=2)) == (0, ["approval_given"] * 2)
    assert c.records[-1].payload == {
        "action_id": "act-1",
        "approved_by": "carol",
        "approver_claimed": "claimed carol",
        "by_key": "carol-key",
        "note": "note 2",
        "approvals": 2,
        "approvers": 3,
    }
    assert c.approve("act-1", "dave") == Allowed("act-1", 5, 95)
    done = c.action("act-1")
    assert done.approved_by == "dave"
    assert done.also_approved_by == [
        {"approved_by": "alice", "by_key": "alice-key"},
        {"approved_by": "carol", "by_key": "carol-key"},
    ]


def test_one_rejection_ends_what_others_approved() -> None:
    c = short(approvers=2)
    c.ask("email")
    c.approve("act-1")
    assert isinstance(c.reject("act-1"), Denied)
    with pytest.raises(ConflictError):
        c.approve("act-1", "carol")


def test_g08_whoever_asked_is_none_of_several_approvers() -> None:
    c = short(approvers=2)
    c.ask("email", actor="alice", key="alice-key")
    c.approve("act-1", "carol")
    with pytest.raises(ForbiddenError):
        c.approve("act-1")
    assert isinstance(c.approve("act-1", "dave"), Allowed)


def test_g06_the_last_of_several_approvals_must_come_in_time_too() -> None:
    c = short(approvers=2)
    c.ask("email")
    c.approve("act-1")
    c.wait(61)
    assert c.approve("act-1", "carol") == Denied("act-1", EXPIRED)


def test_asking_again_joins_what_others_approved_in_part() -> None:
    c = short(approvers=2)
    c.ask("email")
    c.approve("act-1")
    assert c.ask("email") == PendingApproval("act-1")
    assert isinstance(c.approve("act-1", "carol"), Allowed)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("action_allowed", {"approved_by": "carol"}),
        ("approval_given", {"approved_by": "a", "by_key": "alice-key"}),
        ("approval_given", {"approved_by": "a"}),
        ("approval_given", {"action_id": "act-9", "approved_by": "a", "by_key": "a"}),
    ],
)
def test_records_against_the_number_of_approvers_do_not_fold(
    kind: str, payload: dict[str, JsonValue]
) -> None:
    c = short(approvers=3)
    c.ask("email")
    c.approve("act-1")
    draft = Draft(kind=kind, payload={"action_id": "act-1", **payload}, actor="a")
    [record] = seal_all((draft,), c.state.head, c.now_us, KEY)
    with pytest.raises(FormatError):
        evolve(c.state, record)


def test_the_last_approval_is_the_record_that_allows() -> None:
    c = short(approvers=2)
    c.ask("email")
    c.approve("act-1")
    given: dict[str, JsonValue] = {"action_id": "act-1", "approved_by": "carol", "by_key": "carol-key"}
    [record] = seal_all((Draft("approval_given", given, "carol"),), c.state.head, c.now_us, KEY)
    with pytest.raises(FormatError):
        evolve(c.state, record)
