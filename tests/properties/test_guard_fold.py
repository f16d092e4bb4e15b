"""The guard's fold and decisions, whatever is asked of it, against a second model.

The machine drives the real guard (decide, seal, fold) and ``GuardModel``, which keeps a plain list and
answers each question from its beginning. After every step both must say the same, and what may never
happen must not have happened.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.chain.canonical import canonical
from app.chain.link import seal_all
from app.chain.strict import JsonValue, parse
from app.errors import (
    AlreadyTerminatedError,
    ClaimRefusedError,
    ConflictError,
    InvalidStateError,
    TooManyRequestsError,
)
from app.guard import decide
from app.guard.decide import Act, Ask, Decision
from app.guard.snapshot import state_from_json, state_to_json
from app.guard.state import EMPTY, GuardState, fold
from app.guard.words import OutcomeStatus, Severity
from tests.support.guard_chain import AGENT, KEY, LOG, GuardChain
from tests.support.guard_model import GuardModel

TOOLS = ("free", "paid", "held", "held", "short", "both", "capped", "held-capped", "other", "\u043ether")

costs = st.integers(0, 6)
rules = st.fixed_dictionaries(
    {"cost": costs},
    optional={
        "requires_approval": st.booleans(),
        "max_calls": st.none() | st.integers(0, 3),
    },
)
policies = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([200, 200, 30, 12, 5, 0]),
        "scar_limit": st.sampled_from([2**32 - 1, 1000, 60, 20, 5, 0]),
        "tools": st.fixed_dictionaries(
            {
                "free": st.just({"cost": 0}),
                "paid": st.builds(lambda cost: {"cost": cost}, costs),
                "held": st.builds(lambda cost: {"cost": cost, "requires_approval": True}, costs),
                "short": st.builds(
                    lambda secs: {"cost": 1, "requires_approval": True, "approval_ttl_secs": secs},
                    st.integers(1, 4),
                ),
                "both": st.builds(
                    lambda secs, n: {
                        "cost": 2,
                        "requires_approval": True,
                        "approval_ttl_secs": secs,
                        "approvers": n,
                    },
                    st.integers(3, 6),
                    st.integers(1, 3),
                ),
                "capped": st.builds(lambda n: {"cost": 1, "max_calls": n}, st.integers(0, 3)),
            },
            optional={"held-capped": st.just({"cost": 1, "requires_approval": True, "max_calls": 1})},
        ),
    },
    optional={
        "rate_limit": st.none()
        | st.fixed_dictionaries({"max_actions": st.integers(0, 4), "window_secs": st.integers(1, 5)}),
        "default_rule": st.none() | rules,
    },
)
inputs = st.sampled_from([None, 1, {"a": 1}, {"a": [1, "x"], "b": None}])
# Weighted to small steps, so that windows fill; backwards too, as clocks do.
pauses = st.sampled_from([0, 0, 1, 400_000, 999_999, 1_000_000, 3_000_000, -2_000_000])
# An agent that is terminated early shows little else.
often_mild = st.sampled_from([Severity.MINOR] * 12 + [Severity.MODERATE, Severity.SEVERE, Severity.FATAL])
outcomes = st.sampled_from([*OutcomeStatus, OutcomeStatus.UNKNOWN])


class GuardMachine(RuleBasedStateMachine):
    """The guard beside its model."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = GuardChain(None)
        self.model = GuardModel({})

    @initialize(policy=policies)
    def begin(self, policy: dict[str, Any]) -> None:
        self.chain = GuardChain(policy)
        self.model = GuardModel(policy)
        self.terminated: str | None = None

    def now(self) -> int:
        """The time of the next record: the clock, but never before the last one."""
        head = self.chain.state.head
        assert head is not None
        return max(self.chain.now_us, head.timestamp_us)

    def answered(self, answer: Decision | None, expected: dict[str, Any]) -> None:
        assert answer is not None
        said = answer.to_json()
        said.pop("retry_after_secs", None)
        assert said == expected

    def pick(self, data: st.DataObject, likely: list[str]) -> str:
        """Any action, but mostly one of the ``likely``."""
        ids: list[str] = [e[1] for e in self.model.asked()]
        return data.draw(st.sampled_from(likely * len(ids) + ids), label="action")

    @rule(tool=st.sampled_from(TOOLS), value=inputs, cost=st.none() | costs, pause=pauses)
    def ask(self, tool: str, value: Any, cost: int | None, pause: int) -> None:
        self.chain.now_us += pause
        expected = self.model.ask(tool, value, cost, self.now())
        self.answered(self.chain.ask(tool, value, cost), expected)

    @precondition(lambda self: self.model.asked())
    @rule(data=st.data(), pause=pauses)
    def ask_again(self, data: st.DataObject, pause: int) -> None:
        _, _, tool, value, cost, _ = self.model.of(self.pick(data, self.model.pending()))
        self.ask(tool, value, cost, pause)

    @precondition(lambda self: self.model.asked())
    @rule(data=st.data(), by=st.sampled_from(["alice", "carol", "dave"]), pause=pauses)
    def approve(self, data: st.DataObject, by: str, pause: int) -> None:
        action_id = self.pick(data, self.model.pending())
        self.chain.now_us += pause
        refused: type[ConflictError] | None = None
        if action_id not in self.model.pending():
            refused = InvalidStateError
        elif by in self.model.approvals(action_id):
            refused = ConflictError
        if refused is None:
            expected = self.model.approve(action_id, by, self.now())
            self.answered(self.chain.approve(action_id, by), expected)
        else:
            with pytest.raises(refused):
                self.chain.approve(action_id, by)

    @precondition(lambda self: self.model.asked())
    @rule(data=st.data(), scar=st.none() | often_mild)
    def reject(self, data: st.DataObject, scar: Severity | None) -> None:
        action_id = self.pick(data, self.model.pending())
        if action_id in self.model.pending():
            expected = self.model.reject(action_id, "bob", "no", scar)
            self.answered(self.chain.reject(action_id, "no", scar), expected)
        else:
            with pytest.raises(InvalidStateError):
                self.chain.reject(action_id, "no", scar)

    @precondition(lambda self: self.model.asked())
    @rule(data=st.data(), status=outcomes)
    def report(self, data: st.DataObject, status: OutcomeStatus) -> None:
        done = [e[1] for e in self.model.allowed()]
        action_id = self.pick(data, done)
        if self.model.may_report(action_id, status):
            self.model.report(action_id, status)
            self.chain.report(action_id, status)
        else:
            with pytest.raises(InvalidStateError):
                self.chain.report(action_id, status)

    @precondition(lambda self: self.model.asked())
    @rule(data=st.data(), exactly=st.sampled_from([True, True, False]), times=st.sampled_from([1, 2, 22]))
    def claim(self, data: st.DataObject, exactly: bool, times: int) -> None:
        done = [e[1] for e in self.model.allowed() if not self.model.outcomes(e[1])]
        action_id = self.pick(data, done)
        _, _, tool, value, _, _ = self.model.of(action_id)
        if not exactly:
            value = {"swapped": value}
        for _ in range(times):
            why_not = self.model.why_not_claim(action_id, tool, value, self.now())
            if not self.model.claim(action_id, why_not, self.now()):
                with pytest.raises(TooManyRequestsError):
                    self.chain.claim(action_id, tool, value)
            elif why_not is None:
                assert self.chain.claim(action_id, tool, value).to_json()["claimed"] is True
            else:
                with pytest.raises(ClaimRefusedError) as caught:
                    self.chain.claim(action_id, tool, value)
                assert caught.value.code == why_not

    @rule(severity=often_mild)
    def scar(self, severity: Severity) -> None:
        self.model.scar(severity)
        self.chain.scar(severity)

    @rule(really=st.integers(0, 29))
    def terminate(self, really: int) -> None:
        if self.model.termination() is not None:
            with pytest.raises(AlreadyTerminatedError):
                self.chain.terminate()
        elif really == 17:  # seldom, or little else is seen
            self.model.terminate("incident")
            self.chain.terminate()

    @invariant()
    def both_say_the_same(self) -> None:
        state, model = self.chain.state, self.model
        if state.policy is None:
            return
        assert state.spent == model.spent()
        assert state.remaining == model.remaining()
        assert state.scar_score == model.score()
        assert state.scar_count == len([e for e in model.events if e[0] == "scar"])
        assert state.terminated == model.termination()
        assert state.action_count == len(model.asked())
        assert state.allowed == len(model.allowed())
        assert state.denied == len(model.denied())
        assert list(state.pending) == model.pending()
        for action_id, pending in state.pending.items():
            assert [given.by for given in pending.approvals] == model.approvals(action_id)
        assert state.requested is None
        assert len(state.refused_claims) <= 20
        claimed = [r.payload["action_id"] for r in self.chain.records if r.kind == "action_claimed"]
        assert len(set(claimed)) == len(claimed)

    @invariant()
    def the_budget_is_never_overspent(self) -> None:
        policy = self.chain.state.policy
        assert policy is None or 0 <= self.chain.state.spent <= policy.budget

    @invariant()
    def terminated_is_for_ever(self) -> None:
        before = getattr(self, "terminated", None)
        if before is not None:
            assert self.chain.state.terminated == before
            last = self.chain.records[-1]
            assert last.kind not in {"action_allowed", "terminated"} or last.payload.get("reason") == before
        self.terminated = self.chain.state.terminated

    @invariant()
    def no_termination_is_missing(self) -> None:
        assert decide.missing_termination(self.chain.state, agent_id=AGENT) is None

    @invariant()
    def a_snapshot_says_all_of_the_state(self) -> None:
        state = self.chain.state
        if state.head is not None:
            text = canonical(state_to_json(state))
            assert state_from_json(parse(text.encode()).value, state.head) == state

    def teardown(self) -> None:
        records, state = self.chain.records, self.chain.state
        assert fold(records) == state
        middle = len(records) // 2
        assert fold(records[middle:], fold(records[:middle])) == state


TestGuardMachine = GuardMachine.TestCase
TestGuardMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


# --- decisions do not change what they are made on ------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(TOOLS), inputs, st.none() | costs, pauses), min_size=1, max_size=12
)


def _request(state: GuardState, ask: Ask, now_us: int) -> Act:
    return decide.request(state, ask, agent_id=AGENT, log_uuid=LOG, actor=AGENT, now_us=now_us)


@settings(max_examples=60, deadline=None)
@given(policy=policies, asked=steps)
def test_deciding_changes_no_state_and_twice_gives_the_same(
    policy: dict[str, Any], asked: list[tuple[str, Any, int | None, int]]
) -> None:
    chain = GuardChain(policy)
    for tool, value, cost, pause in asked:
        chain.now_us += pause
        before, copy = chain.state, fold(chain.records)
        first, second = (_request(before, Ask(tool, value, cost), chain.now_us) for _ in range(2))
        assert first == second
        assert before == copy
        chain.do(first)
        assert before == copy


@settings(max_examples=60, deadline=None)
@given(policy=policies, asked=steps, cut=st.integers(0, 60))
def test_g15_a_prefix_and_then_the_rest_fold_to_the_same_state(
    policy: dict[str, Any], asked: list[tuple[str, Any, int | None, int]], cut: int
) -> None:
    chain = GuardChain(policy)
    for tool, value, cost, pause in asked:
        chain.now_us += pause
        chain.ask(tool, value, cost)
    assert fold(chain.records[cut:], fold(chain.records[:cut])) == fold(chain.records) == chain.state


@settings(max_examples=60, deadline=None)
@given(policy=policies, asked=steps)
def test_sealed_drafts_give_the_state_that_the_answers_claimed(
    policy: dict[str, Any], asked: list[tuple[str, Any, int | None, int]]
) -> None:
    chain = GuardChain(policy)
    for tool, value, cost, pause in asked:
        chain.now_us += pause
        act = _request(chain.state, Ask(tool, value, cost), chain.now_us)
        after = fold(seal_all(act.drafts, chain.state.head, chain.now_us, KEY), chain.state)
        claimed = act.answer
        match claimed:
            case decide.Allowed(cost=charged, remaining=remaining):
                assert (after.remaining, after.spent) == (remaining, chain.state.spent + charged)
            case decide.Denied():
                assert (after.spent, after.denied) == (chain.state.spent, chain.state.denied + 1)
            case decide.PendingApproval(action_id=action_id):
                assert action_id in after.pending
                assert after.spent == chain.state.spent
        assert decide.decision_of(chain.append(*act.drafts)) == claimed


@settings(max_examples=60, deadline=None)
@given(
    max_actions=st.integers(1, 5),
    window_secs=st.integers(1, 10),
    pauses=st.lists(st.integers(-500_000, 4_000_000), min_size=1, max_size=30),
)
def test_g17_no_window_ever_holds_more_than_its_limit_and_retry_after_is_right(
    max_actions: int, window_secs: int, pauses: list[int]
) -> None:
    limit: JsonValue = {"max_actions": max_actions, "window_secs": window_secs}
    chain = GuardChain(
        {"budget": 1, "scar_limit": 2**32 - 1, "tools": {"t": {"cost": 0}}, "rate_limit": limit}
    )
    for pause in pauses:
        chain.now_us += pause
        answer = chain.ask("t")
        if isinstance(answer, decide.Denied):
            assert answer.retry_after_secs is not None
            head = chain.state.head
            assert head is not None
            later = head.timestamp_us + answer.retry_after_secs * 1_000_000
            assert isinstance(_request(chain.state, Ask("t"), later).answer, decide.Allowed)
            assert not isinstance(_request(chain.state, Ask("t"), later - 1_000_000).answer, decide.Allowed)
    times = [r.timestamp_us for r in chain.records if r.kind == "action_allowed"]
    for end in times:
        assert len([t for t in times if end - window_secs * 1_000_000 < t <= end]) <= max_actions


def test_nothing_before_the_first_record() -> None:
    assert fold([]) == EMPTY
