"""The guard decides step by step, and the first step that fails decides."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec.structs import replace

from app.chain.strict import JsonValue
from app.errors import (
    AlreadyTerminatedError,
    ConflictError,
    InvalidStateError,
    MirrorError,
    TooManyRequestsError,
    UnknownActionError,
)
from app.guard import decide
from app.guard.decide import MAX_PENDING, Allowed, Ask, Decision, Denied, PendingApproval, decision_of
from app.guard.state import GuardState, Pending, fold
from app.guard.words import ActionStatus, OutcomeStatus, Severity
from app.trace.node import action_node_id
from tests.support.guard_chain import AGENT, LOG, SECOND, START, GuardChain, policy_document

SESSION = UUID("123e4567-e89b-12d3-a456-426614174000")
PARENT = UUID("00000000-0000-4000-8000-000000000001")


def chain(**members: JsonValue) -> GuardChain:
    return GuardChain(policy_document(**members))


def denied(answer: object) -> Denied:
    assert isinstance(answer, Denied)
    return answer


# --- asking ---------------------------------------------------------------------------------------------


def test_an_allowed_action_is_charged_the_rules_cost() -> None:
    c = chain()
    assert c.ask("search", {"q": "x"}) == Allowed("act-1", cost=2, remaining=98)
    assert c.kinds(last=2) == ["action_requested", "action_allowed"]
    assert c.records[-2].payload == {"action_id": "act-1", "tool": "search", "input": {"q": "x"}, "cost": 2}
    assert c.records[-1].payload == {"action_id": "act-1", "approved_by": None, "cost": 2, "remaining": 98}
    assert (c.state.spent, c.state.allowed, c.state.denied) == (2, 1, 0)


@pytest.mark.parametrize(("declared", "charged"), [(None, 2), (0, 2), (1, 2), (2, 2), (3, 3)])
def test_a_declared_cost_raises_the_charge_and_never_lowers_it(declared: int | None, charged: int) -> None:
    assert chain().ask("search", cost=declared) == Allowed("act-1", charged, 100 - charged)


def test_step_3_an_unlisted_tool_is_denied_and_scars() -> None:
    c = chain()
    answer = denied(c.ask("shell", "rm", 1))
    assert answer == Denied("act-1", {"code": "tool_not_allowed", "tool": "shell"})
    assert c.kinds(last=3) == ["action_requested", "action_denied", "scar"]
    assert c.records[-1].payload == {
        "severity": "moderate",
        "reason": "tool 'shell' is not allowed",
        "action_id": "act-1",
    }
    assert (c.state.spent, c.state.denied, c.state.scar_score, c.state.scar_count) == (0, 1, 3, 1)


@pytest.mark.parametrize("name", ["d\u0435lete_file", "\uff44elete_file", "delete\u200b_file", "DELETE_FILE"])
def test_g19_a_lookalike_of_a_listed_tool_is_unknown_and_stays_as_it_was_written(name: str) -> None:
    c = chain(tools={"delete_file": {"cost": 0, "max_calls": 0}})
    assert denied(c.ask(name)).reason == {"code": "tool_not_allowed", "tool": name}
    assert c.records[-3].payload["tool"] == name


def test_step_4_a_tools_call_limit_counts_allowed_calls_only() -> None:
    c = chain(tools={"pay": {"cost": 60, "max_calls": 1}}, budget=100)
    assert isinstance(c.ask("pay", cost=101), Denied)
    assert isinstance(c.ask("pay"), Allowed)
    assert denied(c.ask("pay")).reason == {"code": "tool_call_limit", "tool": "pay", "max_calls": 1}
    assert c.records[-1].payload["reason"] == "tool 'pay' reached its limit of 1 calls"
    assert c.records[-1].payload["severity"] == "minor"


def test_the_default_rules_call_limit_is_each_tools_own() -> None:
    c = chain(tools={}, default_rule={"cost": 1, "max_calls": 1})
    assert isinstance(c.ask("a"), Allowed)
    assert isinstance(c.ask("b"), Allowed)
    assert denied(c.ask("a")).reason["code"] == "tool_call_limit"


def test_step_5_the_rate_limit_denies_and_scars() -> None:
    c = chain(rate_limit={"max_actions": 2, "window_secs": 60})
    c.ask("look")
    c.wait(10)
    c.ask("look")
    c.wait(10.5)
    answer = denied(c.ask("look"))
    assert answer.reason == {"code": "rate_limited", "max_actions": 2, "window_secs": 60}
    assert answer.retry_after_secs == 40
    assert answer.to_json()["retry_after_secs"] == 40
    assert c.records[-1].payload["reason"] == "rate limit of 2 actions per 60s exceeded"
    assert c.state.scar_score == 1


def test_g17_no_double_burst_at_the_border_of_a_minute() -> None:
    c = GuardChain(policy_document(rate_limit={"max_actions": 10, "window_secs": 60}), now_us=START - 100_000)
    answers = [c.ask("look") for _ in range(10)]
    c.wait(0.2)
    answers += [c.ask("look") for _ in range(10)]
    assert [isinstance(answer, Allowed) for answer in answers] == [True] * 10 + [False] * 10


def test_g17_retry_after_leads_to_success_and_not_a_second_later() -> None:
    c = chain(rate_limit={"max_actions": 3, "window_secs": 10})
    for pause in (0.25, 0.25, 0.25):
        c.ask("look")
        c.wait(pause)
    wait = denied(c.ask("look")).retry_after_secs
    assert wait == 10
    c.wait(wait - 1)
    assert denied(c.ask("look")).retry_after_secs == 1
    c.wait(1)
    assert isinstance(c.ask("look"), Allowed)


def test_an_allowed_time_leaves_the_window_exactly_at_its_end() -> None:
    c = chain(rate_limit={"max_actions": 1, "window_secs": 1})
    c.ask("look")
    c.now_us = START + SECOND - 1
    assert denied(c.ask("look")).retry_after_secs == 1
    c.now_us = START + SECOND
    assert isinstance(c.ask("look"), Allowed)


def test_c15_a_clock_that_steps_back_reopens_no_window() -> None:
    c = chain(rate_limit={"max_actions": 1, "window_secs": 60})
    c.ask("look")
    c.wait(-600)
    assert denied(c.ask("look")).retry_after_secs == 60
    c.wait(600 + 59)
    assert isinstance(c.ask("look"), Denied)


def test_a_rate_of_zero_never_has_room() -> None:
    answer = denied(chain(rate_limit={"max_actions": 0, "window_secs": 1}).ask("look"))
    assert answer.retry_after_secs is None
    assert "retry_after_secs" not in answer.to_json()


def test_retry_after_waits_for_as_many_as_are_too_many() -> None:
    c = chain(rate_limit={"max_actions": 1, "window_secs": 10})
    fuller = replace(c.state, recent=(START - 9 * SECOND, START - 5 * SECOND, START - 2 * SECOND))
    act = decide.request(fuller, Ask("look"), agent_id=AGENT, log_uuid=LOG, actor=AGENT, now_us=START)
    assert denied(act.answer).retry_after_secs == 8


def test_whom_a_denial_terminates_is_not_told_to_wait() -> None:
    c = chain(rate_limit={"max_actions": 1, "window_secs": 60}, scar_limit=1)
    c.ask("look")
    assert denied(c.ask("look")).retry_after_secs is None
    assert c.state.terminated == "scar limit reached (1 >= 1)"


def test_step_6_a_cost_above_the_budget_is_denied_without_a_scar() -> None:
    c = chain(budget=3)
    c.ask("search")
    answer = denied(c.ask("search"))
    assert answer.reason == {"code": "insufficient_budget", "cost": 2, "remaining": 1}
    assert c.kinds(last=2) == ["action_requested", "action_denied"]
    assert c.state.alive


def test_g14_ten_tenths_are_ten_and_the_eleventh_is_denied() -> None:
    # Costs are integers: whoever counts tenths sets a budget of tenths.
    c = chain(budget=10, tools={"t": {"cost": 1}}, scar_limit=50)
    assert [isinstance(c.ask("t"), Allowed) for _ in range(11)] == [True] * 10 + [False]
    assert c.state.remaining == 0


def test_g14_the_largest_budget_is_spent_to_the_last_credit() -> None:
    whole = 2**63 - 1
    c = chain(budget=whole)
    assert c.ask("look", cost=whole - 1) == Allowed("act-1", whole - 1, 1)
    assert denied(c.ask("search")).reason == {"code": "insufficient_budget", "cost": 2, "remaining": 1}
    assert c.ask("look", cost=1) == Allowed("act-3", 1, 0)
    assert c.state.spent == whole


def test_the_first_failure_wins_in_the_order_of_the_table() -> None:
    def codes(c: GuardChain, tool: str = "pay") -> JsonValue:
        return denied(c.ask(tool, cost=1000)).reason["code"]

    limits: dict[str, JsonValue] = {
        "tools": {"pay": {"cost": 1, "max_calls": 0, "requires_approval": True}},
        "rate_limit": {"max_actions": 0, "window_secs": 1},
        "budget": 1,
        "scar_limit": 1000,
    }
    c = chain(**limits)
    assert codes(c) == "tool_call_limit"
    assert codes(c, "other") == "tool_not_allowed"
    limits["tools"] = {"pay": {"cost": 1, "requires_approval": True}}
    assert codes(chain(**limits)) == "rate_limited"
    limits["rate_limit"] = None
    assert codes(chain(**limits)) == "insufficient_budget"
    c.terminate()
    assert codes(c, "other") == "terminated"


def test_spending_the_last_credit_terminates() -> None:
    c = chain(budget=2)
    assert c.ask("search") == Allowed("act-1", 2, 0)
    assert c.kinds(last=2) == ["action_allowed", "terminated"]
    assert c.records[-1].payload == {"reason": "budget exhausted", "by": "guard"}
    answer = denied(c.ask("look"))
    assert answer == Denied("act-2", {"code": "terminated", "reason": "budget exhausted"})
    assert c.kinds(last=2) == ["action_requested", "action_denied"]


def test_a_budget_of_zero_lasts_for_one_free_action() -> None:
    c = chain(budget=0)
    assert c.state.alive
    assert c.ask("look") == Allowed("act-1", 0, 0)
    assert c.state.terminated == "budget exhausted"


def test_denials_count_up_the_ids_too() -> None:
    c = chain()
    ids = [c.ask(tool).action_id for tool in ("look", "shell", "email", "search")]
    assert ids == ["act-1", "act-2", "act-3", "act-4"]


def test_a_denial_carries_its_node_and_session() -> None:
    c = chain()
    c.ask("shell", {"x": 1}, session_id=SESSION, parent_id=PARENT, thought_process="try")
    assert c.records[-3].payload == {
        "action_id": "act-1",
        "tool": "shell",
        "input": {"x": 1},
        "cost": 0,
        "session_id": str(SESSION),
        "parent_id": str(PARENT),
        "thought_process": "try",
    }
    assert c.records[-2].payload == {
        "action_id": "act-1",
        "reason": {"code": "tool_not_allowed", "tool": "shell"},
        "session_id": str(SESSION),
        "total_nodes": 1,
        "trace_tree": [
            {
                "node_id": str(action_node_id(LOG, "act-1")),
                "parent_id": str(PARENT),
                "node_type": "TOOL_CALL",
                "name": "shell",
                "inputs": {"x": 1},
                "thought_process": "try",
                "outputs": {"status": "denied", "reason": {"code": "tool_not_allowed", "tool": "shell"}},
                "metadata": {
                    "action_id": "act-1",
                    "timestamp": c.records[-2].timestamp,
                    "cost": 0,
                    "agent_id": AGENT,
                },
            }
        ],
    }


# --- holding and deciding -------------------------------------------------------------------------------


def test_a_held_action_charges_nothing_until_it_is_approved() -> None:
    c = chain()
    assert c.ask("email", {"to": "x"}) == PendingApproval("act-1")
    assert c.kinds(last=2) == ["action_requested", "approval_required"]
    assert c.records[-1].payload == {"action_id": "act-1"}
    assert (c.state.spent, c.state.remaining, list(c.state.pending)) == (0, 100, ["act-1"])
    assert c.approve("act-1", note="fine") == Allowed("act-1", 5, 95)
    assert c.records[-1].payload == {
        "action_id": "act-1",
        "approved_by": "alice",
        "approver_claimed": "claimed alice",
        "by_key": "alice-key",
        "note": "fine",
        "cost": 5,
        "remaining": 95,
    }
    assert (c.state.spent, c.state.pending) == (5, {})


def test_a_pending_action_knows_where_it_was_asked() -> None:
    c = chain()
    c.ask("email")
    asked = c.records[-2]
    pending = c.state.pending["act-1"]
    assert isinstance(pending, Pending)
    assert (pending.seq, pending.hash, pending.tool, pending.cost) == (asked.seq, asked.hash, "email", 5)


def test_g10_asking_the_same_again_joins_the_pending_action() -> None:
    c = chain()
    c.ask("email", {"to": "x", "n": 1})
    before = c.state
    assert c.ask("email", {"n": 1.0, "to": "x"}, session_id=SESSION) == PendingApproval("act-1")
    assert c.kinds(last=2) == ["approval_required", "approval_required"]
    assert c.records[-1].payload == {"action_id": "act-1", "joined": True, "session_id": str(SESSION)}
    assert c.state.pending == {"act-1": replace(before.pending["act-1"], joins=1)}
    assert c.state.action_count == 1


@pytest.mark.parametrize(("value", "cost"), [({"to": "y"}, None), ({"to": "x"}, 6), (None, None)])
def test_g10_asking_for_something_else_does_not_join(value: JsonValue, cost: int | None) -> None:
    c = chain()
    c.ask("email", {"to": "x"})
    assert c.ask("email", value, cost) == PendingApproval("act-2")


def test_g10_asking_again_after_the_decision_is_a_new_action() -> None:
    c = chain()
    c.ask("email", "a")
    c.approve("act-1")
    assert c.ask("email", "a") == PendingApproval("act-2")
    c.reject("act-2")
    assert c.ask("email", "a") == PendingApproval("act-3")


def test_g10_the_second_decision_learns_the_first() -> None:
    c = chain()
    c.ask("email")
    c.approve("act-1")
    for decide_again in (c.approve, c.reject):
        with pytest.raises(InvalidStateError, match="act-1 is allowed"):
            decide_again("act-1")
    c.ask("email")
    c.reject("act-2")
    with pytest.raises(InvalidStateError) as caught:
        c.approve("act-2")
    assert caught.value.status == "denied"


def test_approving_checks_everything_again() -> None:
    c = chain(budget=6)
    c.ask("email", "a")
    c.ask("search")
    assert denied(c.approve("act-1")).reason == {"code": "insufficient_budget", "cost": 5, "remaining": 4}
    assert c.state.pending == {}
    with pytest.raises(InvalidStateError, match="act-1 is denied"):
        c.approve("act-1")


def test_approving_counts_against_call_and_rate_limits() -> None:
    rule: JsonValue = {"cost": 1, "requires_approval": True, "max_calls": 1}
    c = chain(tools={"email": rule})
    c.ask("email", "a")
    c.ask("email", "b")
    assert isinstance(c.approve("act-1"), Allowed)
    assert denied(c.approve("act-2")).reason["code"] == "tool_call_limit"
    assert c.state.scar_score == 1

    c = chain(rate_limit={"max_actions": 1, "window_secs": 60})
    c.ask("email")
    c.ask("look")
    assert denied(c.approve("act-1")).reason["code"] == "rate_limited"


def test_an_approval_that_spends_the_last_credit_terminates() -> None:
    c = chain(budget=5)
    c.ask("email")
    assert c.approve("act-1") == Allowed("act-1", 5, 0)
    assert c.state.terminated == "budget exhausted"


def test_g01_an_approval_is_only_for_what_was_asked() -> None:
    c = chain()
    c.ask("email", {"amount": 82000})
    swaps: list[dict[str, JsonValue]] = [
        {"input": {"amount": 820000}},
        {"input": None},
        {"tool": "pay"},
        {"cost": 4},
    ]
    for swap in swaps:
        forged = replace(c.action("act-1"), **swap)
        with pytest.raises(MirrorError):
            decide.approve(
                c.state,
                forged,
                approver="a",
                actor="ops",
                key="ops-key",
                agent_id=AGENT,
                log_uuid=LOG,
                now_us=START,
            )


def test_rejecting_says_who_and_why_and_scars_only_when_asked_to() -> None:
    c = chain()
    c.ask("email", session_id=SESSION)
    why: dict[str, JsonValue] = {"code": "rejected", "by": "bob", "reason": "no"}
    assert c.reject("act-1") == Denied("act-1", why)
    payload = c.records[-1].payload
    assert (payload["action_id"], payload["by"], payload["reason"]) == ("act-1", "bob", "no")
    assert payload["session_id"] == str(SESSION)
    assert c.state.scar_count == 0

    c.ask("email", "again")
    c.reject("act-2", "spam", Severity.SEVERE)
    assert c.kinds(last=2) == ["action_rejected", "scar"]
    assert c.records[-1].payload == {
        "severity": "severe",
        "reason": "rejected by bob: spam",
        "action_id": "act-2",
    }
    assert (c.state.denied, c.state.scar_score) == (2, 10)


def test_a_rejection_that_scars_to_the_limit_terminates() -> None:
    c = chain(scar_limit=1)
    c.ask("email")
    c.reject("act-1", "spam", Severity.MINOR)
    assert c.kinds(last=3) == ["action_rejected", "scar", "terminated"]


def test_waiting_actions_are_bounded() -> None:
    c = chain()
    pending = {
        f"act-{n + 1}": Pending(seq=n, hash="0" * 64, tool="email", cost=5, digest=f"{n:064x}")
        for n in range(MAX_PENDING)
    }
    full = c.state.__class__(
        policy=c.state.policy, pending=pending, action_count=MAX_PENDING, head=c.state.head
    )
    with pytest.raises(TooManyRequestsError, match="1000 actions"):
        decide.request(full, Ask("email"), agent_id=AGENT, log_uuid=LOG, actor=AGENT, now_us=START)


# --- outcomes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "node_status", "scar"),
    [
        (OutcomeStatus.SUCCESS, "success", None),
        (OutcomeStatus.FAILURE, "failed", ("minor", "action failed: d")),
        (OutcomeStatus.HARMFUL, "harmful", ("severe", "action caused harm: d")),
        (OutcomeStatus.UNKNOWN, "unknown", None),
    ],
)
def test_outcomes(status: OutcomeStatus, node_status: str, scar: tuple[str, str] | None) -> None:
    c = chain()
    c.ask("search", {"q": 1}, session_id=SESSION)
    c.report("act-1", status, "d")
    outcome = next(r for r in c.records if r.kind == "outcome").payload
    assert (outcome["action_id"], outcome["status"], outcome["detail"]) == ("act-1", status.value, "d")
    assert outcome["session_id"] == str(SESSION)
    assert "late" not in outcome
    tree = outcome["trace_tree"]
    assert isinstance(tree, list)
    assert isinstance(tree[0], dict)
    assert (len(tree), outcome["total_nodes"]) == (1, 1)
    assert tree[0]["outputs"] == {"status": node_status, "detail": "d"}
    scars = [(r.payload["severity"], r.payload["reason"]) for r in c.records if r.kind == "scar"]
    assert scars == ([] if scar is None else [scar])
    assert c.action("act-1").status is ActionStatus.COMPLETED
    assert c.action("act-1").outcome is status


@pytest.mark.parametrize("first", [OutcomeStatus.SUCCESS, OutcomeStatus.FAILURE, OutcomeStatus.HARMFUL])
@pytest.mark.parametrize("second", list(OutcomeStatus))
def test_g25_an_outcome_counts_once(first: OutcomeStatus, second: OutcomeStatus) -> None:
    c = chain()
    c.ask("search")
    c.report("act-1", first)
    before, length = c.state, len(c.records)
    with pytest.raises(InvalidStateError, match="act-1 is completed"):
        c.report("act-1", second)
    assert replace(c.state, head=before.head) == before
    contradicts = second not in {first, OutcomeStatus.UNKNOWN}
    assert [record.kind for record in c.records[length:]] == ["event"] * contradicts


@pytest.mark.parametrize("then", [OutcomeStatus.SUCCESS, OutcomeStatus.FAILURE, OutcomeStatus.HARMFUL])
def test_g25_after_unknown_one_that_knows_may_follow_once(then: OutcomeStatus) -> None:
    c = chain()
    c.ask("search")
    c.report("act-1", OutcomeStatus.UNKNOWN)
    with pytest.raises(InvalidStateError):
        c.report("act-1", OutcomeStatus.UNKNOWN)
    c.report("act-1", then)
    assert c.action("act-1").outcome is then
    for again in OutcomeStatus:
        with pytest.raises(InvalidStateError):
            c.report("act-1", again)


def test_only_allowed_actions_have_outcomes() -> None:
    c = chain()
    c.ask("shell")
    c.ask("email")
    for action_id in ("act-1", "act-2"):
        with pytest.raises(InvalidStateError):
            c.report(action_id, OutcomeStatus.SUCCESS)


# --- scars and termination ------------------------------------------------------------------------------


def test_scar_weights_and_the_limit() -> None:
    c = chain(scar_limit=14)
    for severity, score in ((Severity.MINOR, 1), (Severity.MODERATE, 4)):
        c.scar(severity)
        assert c.state.scar_score == score
    assert c.state.alive
    c.scar(Severity.SEVERE)
    assert c.state.terminated == "scar limit reached (14 >= 14)"
    assert c.records[-1].payload == {"reason": "scar limit reached (14 >= 14)", "by": "guard"}


def test_the_score_saturates_and_later_scars_terminate_no_more() -> None:
    c = chain(scar_limit=2**32 - 1)
    c.scar(Severity.MINOR)
    assert c.state.alive
    c.scar(Severity.FATAL)
    assert c.state.terminated == "scar limit reached (4294967295 >= 4294967295)"
    c.scar(Severity.FATAL)
    assert c.kinds(last=2) == ["terminated", "scar"]
    assert (c.state.scar_score, c.state.scar_count) == (2**32 - 1, 3)


def test_a_scar_limit_of_zero_ends_with_the_first_scar_not_before() -> None:
    c = chain(scar_limit=0)
    assert isinstance(c.ask("look"), Allowed)
    c.scar(Severity.MINOR)
    assert c.state.terminated == "scar limit reached (1 >= 0)"


def test_a_scar_may_name_only_an_action_that_was_asked() -> None:
    c = chain()
    c.ask("look")
    c.scar(Severity.MINOR, "seen", "act-1")
    assert c.records[-1].payload == {"severity": "minor", "reason": "seen", "action_id": "act-1"}
    for unknown in ("act-2", "act-0", "act-01", "act-1 ", "ACT-1", ""):
        with pytest.raises(UnknownActionError):
            c.scar(Severity.MINOR, "seen", unknown)


def test_g32_many_scars_leave_a_count_and_a_digest_only() -> None:
    c = chain(scar_limit=2**32 - 1)
    for _ in range(200):
        c.scar(Severity.MINOR)
    assert (c.state.scar_count, c.state.scar_score, len(c.state.scar_digest)) == (200, 200, 64)


def test_the_kill_switch_works_once() -> None:
    c = chain()
    c.terminate("INC-42", "carol")
    assert c.records[-1].payload == {"reason": "INC-42", "by": "carol"}
    with pytest.raises(AlreadyTerminatedError, match="INC-42"):
        c.terminate("again")


def test_g23_a_terminated_agent_acts_on_no_old_approval() -> None:
    c = chain()
    c.ask("email")
    c.terminate()
    assert denied(c.approve("act-1")).reason == {"code": "terminated", "reason": "incident"}
    assert c.kinds(last=2) == ["terminated", "action_denied"]
    assert denied(c.ask("look")).reason["code"] == "terminated"
    assert denied(c.ask("email")).reason["code"] == "terminated"


def test_g23_a_late_outcome_is_recorded_and_flagged() -> None:
    c = chain(scar_limit=1)
    c.ask("search")
    c.terminate()
    c.report("act-1", OutcomeStatus.FAILURE, "x")
    assert c.kinds(last=2) == ["outcome", "scar"]
    assert c.records[-2].payload["late"] is True


def test_g23_rejecting_after_termination_still_closes_the_action() -> None:
    c = chain()
    c.ask("email")
    c.terminate()
    assert isinstance(c.reject("act-1"), Denied)
    assert c.state.pending == {}


@pytest.mark.parametrize("act", ["ask", "scar", "terminate"])
def test_an_observed_agent_is_not_guarded(act: str) -> None:
    c = GuardChain(None)
    acts: dict[str, Callable[[], object]] = {
        "ask": lambda: c.ask("look"),
        "scar": lambda: c.scar(Severity.MINOR),
        "terminate": c.terminate,
    }
    with pytest.raises(ConflictError, match="observed, not guarded"):
        acts[act]()


# --- the missing termination ----------------------------------------------------------------------------


def cut(c: GuardChain) -> GuardState:
    """The state of the chain without its last record, which is a sound chain too."""
    assert c.records[-1].kind == "terminated"
    return fold(c.records[:-1])


def test_a_cut_off_termination_by_scars_is_made_up_for() -> None:
    c = chain(scar_limit=3)
    c.ask("shell")
    act = decide.missing_termination(cut(c), agent_id=AGENT)
    assert act is not None
    assert [(d.kind, d.actor) for d in act.drafts] == [("terminated", AGENT)]
    assert act.drafts[0].payload == {
        "reason": "scar limit reached (3 >= 3); termination record missing from the log",
        "by": "guard (replay)",
    }


def test_a_cut_off_termination_by_budget_is_made_up_for() -> None:
    c = chain(budget=2)
    c.ask("search")
    act = decide.missing_termination(cut(c), agent_id=AGENT)
    assert act is not None
    reason = act.drafts[0].payload["reason"]
    assert reason == "budget exhausted; termination record missing from the log"


def test_no_termination_is_missing_from_a_sound_chain() -> None:
    fresh = chain(budget=0, scar_limit=0)
    ended = chain()
    ended.terminate()
    for c in (fresh, ended, GuardChain(None), chain()):
        assert decide.missing_termination(c.state, agent_id=AGENT) is None


# --- answers --------------------------------------------------------------------------------------------


def test_answers_have_the_shape_of_the_api() -> None:
    c = chain()
    assert c.ask("search").to_json() == {
        "decision": "allowed",
        "action_id": "act-1",
        "cost": 2,
        "remaining": 98,
    }
    assert c.ask("email").to_json() == {"decision": "pending_approval", "action_id": "act-2"}
    assert c.ask("shell").to_json() == {
        "decision": "denied",
        "action_id": "act-3",
        "reason": {"code": "tool_not_allowed", "tool": "shell"},
    }


def test_the_records_of_an_act_tell_its_answer_again() -> None:
    c = chain(rate_limit={"max_actions": 2, "window_secs": 60})
    acts: list[Callable[[], Decision]] = [
        lambda: c.ask("search"),
        lambda: c.ask("email", 1),
        lambda: c.ask("email", 1),
        lambda: c.ask("email", 2),
        lambda: c.approve("act-2"),
        lambda: c.reject("act-3", "no", Severity.MINOR),
        lambda: c.ask("look"),
        lambda: c.ask("shell"),
    ]
    for act in acts:
        before = len(c.records)
        assert decision_of(c.records[before:]) is None
        answer = act()
        assert decision_of(c.records[before:]) == answer


def test_an_act_without_a_decision_tells_none() -> None:
    c = chain()
    c.terminate()
    assert decision_of(c.records) is None
