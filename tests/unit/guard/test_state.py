"""The fold takes exactly the next verified record, and refuses what it does not know or cannot be."""

from __future__ import annotations

import hashlib

import pytest

from app.chain.link import seal
from app.chain.record import ZERO_HASH, Draft, VerifiedRecord
from app.chain.strict import JsonValue
from app.errors import FormatError, LinkError, OrderError, UnknownKindError
from app.guard.state import EMPTY, GuardState, ask_digest, evolve, fold, next_scar_digest
from app.guard.words import OutcomeStatus, Severity
from tests.support.guard_chain import AGENT, KEY, SECOND, START, GuardChain, policy_document


def after(state: GuardState, kind: str, payload: dict[str, JsonValue]) -> VerifiedRecord:
    """A validly sealed next record of any kind."""
    return seal(Draft(kind=kind, payload=payload, actor=AGENT), state.head, START, KEY)


def busy() -> GuardChain:
    """act-1 allowed, act-2 pending, act-3 denied with a scar."""
    c = GuardChain(policy_document())
    c.ask("search")
    c.ask("email")
    c.ask("shell")
    return c


# --- exactly the next -----------------------------------------------------------------------------------


def test_a_gap_a_repeat_and_a_late_start_are_refused() -> None:
    records = busy().records
    state = fold(records[:4])
    for wrong in (records[5], records[3], records[0]):
        with pytest.raises(OrderError):
            evolve(state, wrong)
    with pytest.raises(OrderError):
        evolve(EMPTY, records[1])


def test_a_record_of_another_branch_is_refused() -> None:
    ours, other = busy(), GuardChain(policy_document(budget=99))
    with pytest.raises(LinkError):
        evolve(fold(ours.records[:2]), after(other.state, "event", {}))


def test_a_refused_record_leaves_the_state_as_it_was() -> None:
    c = busy()
    before = c.state
    with pytest.raises(UnknownKindError):
        evolve(c.state, after(c.state, "agent.quarantined", {"v": 9}))
    assert c.state == before == fold(c.records)


# --- kinds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["agent.quarantined", "administered", "Trace", "policy2"])
def test_g30_an_unknown_kind_stops_the_fold(kind: str) -> None:
    c = busy()
    with pytest.raises(UnknownKindError, match=f"kind '{kind}' are not known") as caught:
        evolve(c.state, after(c.state, kind, {}))
    assert caught.value.seq == len(c.records)


@pytest.mark.parametrize("kind", ["trace", "event", "admin", "key_rotated"])
@pytest.mark.parametrize("policy", [policy_document(), None])
def test_other_kinds_move_only_the_head(kind: str, policy: dict[str, JsonValue] | None) -> None:
    c = GuardChain(policy)
    record = after(c.state, kind, {"policy": 1, "action_id": "act-1"})
    moved = evolve(c.state, record)
    assert moved.head == record.head
    assert moved != c.state
    assert {f: getattr(moved, f) for f in moved.__struct_fields__ if f != "head"} == {
        f: getattr(c.state, f) for f in c.state.__struct_fields__ if f != "head"
    }


def test_the_policy_is_the_second_record_and_only_that() -> None:
    document = policy_document()
    c = GuardChain(document)
    with pytest.raises(FormatError, match="second record"):
        evolve(c.state, after(c.state, "policy", {"policy": document}))
    observed = GuardChain(None)
    observed.append(Draft(kind="event", payload={}, actor=AGENT))
    with pytest.raises(FormatError, match="second record"):
        evolve(observed.state, after(observed.state, "policy", {"policy": document}))


@pytest.mark.parametrize("policy", [None, {}, {"budget": -1, "scar_limit": 1, "tools": {}}])
def test_a_policy_with_a_flaw_is_no_policy(policy: JsonValue) -> None:
    state = GuardChain(None).state
    with pytest.raises(FormatError, match="policy: "):
        evolve(state, after(state, "policy", {"policy": policy}))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("action_requested", {"action_id": "act-1", "tool": "look", "input": None, "cost": 0}),
        ("scar", {"severity": "minor", "reason": "r", "action_id": None}),
        ("terminated", {"reason": "r", "by": "b"}),
    ],
)
def test_an_observed_agent_has_none_of_the_guards_records(kind: str, payload: dict[str, JsonValue]) -> None:
    state = GuardChain(None).state
    with pytest.raises(FormatError, match="without a policy"):
        evolve(state, after(state, kind, payload))


# --- payloads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("action_requested", {"tool": "look", "input": None, "cost": 0}),
        ("action_requested", {"action_id": "act-3", "tool": "look", "cost": 0}),
        ("action_requested", {"action_id": "act-5", "tool": "look", "cost": 0}),
        ("action_requested", {"action_id": "act-4", "tool": "", "cost": 0}),
        ("action_requested", {"action_id": "act-4", "tool": "look", "cost": -1}),
        ("action_requested", {"action_id": "act-4", "tool": "look", "cost": 2**63}),
        ("action_requested", {"action_id": "act-4", "tool": "look", "cost": True}),
        ("action_requested", {"action_id": "act-4", "tool": "look"}),
        ("approval_required", {}),
        ("approval_required", {"action_id": "act-1"}),
        ("approval_required", {"action_id": "act-2"}),
        ("approval_required", {"action_id": "act-1", "joined": True}),
        ("action_allowed", {"action_id": 2}),
        ("action_allowed", {"action_id": "act-1"}),
        ("action_allowed", {"action_id": "act-9"}),
        ("action_denied", {"action_id": "act-3"}),
        ("action_rejected", {"action_id": "act-1"}),
        ("outcome", {"action_id": "act-4", "status": "success"}),
        ("outcome", {"action_id": "act-1", "status": "great"}),
        ("outcome", {"status": "success"}),
        ("scar", {"severity": "huge", "reason": "r"}),
        ("scar", {"severity": "minor"}),
        ("scar", {"severity": "minor", "reason": "r", "action_id": "act-4"}),
        ("terminated", {"reason": "r"}),
        ("terminated", {"by": "b"}),
        ("terminated", {"reason": None, "by": "b"}),
    ],
)
def test_a_payload_that_is_malformed_or_contradicts_the_past_is_refused(
    kind: str, payload: dict[str, JsonValue]
) -> None:
    state = busy().state
    with pytest.raises(FormatError) as caught:
        evolve(state, after(state, kind, payload))
    assert caught.value.seq == 9


def test_g23_no_record_allows_a_terminated_agent_anything() -> None:
    c = busy()
    c.terminate()
    with pytest.raises(FormatError, match="act-2 is allowed against the policy"):
        evolve(c.state, after(c.state, "action_allowed", {"action_id": "act-2", "approved_by": "a"}))
    with pytest.raises(FormatError, match="terminated before"):
        evolve(c.state, after(c.state, "terminated", {"reason": "r", "by": "b"}))


def test_no_record_overspends_the_budget() -> None:
    c = GuardChain(policy_document(budget=6))
    c.ask("email")
    c.ask("search")
    with pytest.raises(FormatError, match="against the policy"):
        evolve(c.state, after(c.state, "action_allowed", {"action_id": "act-1", "approved_by": "a"}))


def test_a_rejection_needs_a_pending_action() -> None:
    c = busy()
    request: dict[str, JsonValue] = {"action_id": "act-4", "tool": "look", "input": None, "cost": 0}
    state = evolve(c.state, after(c.state, "action_requested", request))
    with pytest.raises(FormatError):
        evolve(state, after(state, "action_rejected", {"action_id": "act-4", "by": "b", "reason": "r"}))


def test_records_of_the_bare_format_fold_as_well() -> None:
    """A chain with no more members than the format names gives the same standing."""
    rich = busy()
    rich.approve("act-2")
    bare_members = {
        "action_allowed": ("action_id", "approved_by"),
        "action_denied": ("action_id", "reason"),
    }
    state = EMPTY
    for record in rich.records:
        names = bare_members.get(record.kind, tuple(record.payload))
        payload = {name: record.payload[name] for name in names}
        state = evolve(state, after(state, record.kind, payload))
    assert (state.spent, state.allowed, state.denied) == (
        rich.state.spent,
        rich.state.allowed,
        rich.state.denied,
    )


# --- what is kept ---------------------------------------------------------------------------------------


def test_g15_the_state_is_equal_to_a_replay_of_the_records() -> None:
    c = busy()
    c.approve("act-2")
    c.report("act-2", OutcomeStatus.FAILURE)
    c.ask("email", "waits")
    c.terminate()
    for cut in range(len(c.records) + 1):
        assert fold(c.records[cut:], fold(c.records[:cut])) == c.state


def test_scars_are_proven_by_a_chain_of_their_hashes() -> None:
    c = GuardChain(policy_document())
    assert c.state.scar_digest == ZERO_HASH
    c.scar(Severity.MINOR)
    first = hashlib.sha256(bytes(32) + bytes.fromhex(c.records[-1].hash)).hexdigest()
    assert c.state.scar_digest == first
    c.ask("look")
    c.scar(Severity.MODERATE)
    assert c.state.scar_digest == next_scar_digest(first, c.records[-1].hash)


def test_memory_does_not_grow_with_finished_actions() -> None:
    c = GuardChain(
        policy_document(
            budget=10_000,
            rate_limit={"max_actions": 3, "window_secs": 1},
            tools={"look": {"cost": 1, "max_calls": 1000}, "email": {"cost": 1, "requires_approval": True}},
        )
    )
    for turn in range(50):
        c.wait(0.5)
        c.ask("look", {"big": "x" * 1000})
        c.wait(0.5)
        c.ask("email", turn)
        c.reject(f"act-{2 * turn + 2}")
    assert c.state.tool_calls == {"look": 50}
    assert len(c.state.recent) == 1
    assert c.state.pending == {}
    assert c.state.requested is None


def test_times_and_calls_are_kept_only_where_the_policy_counts_them() -> None:
    c = GuardChain(policy_document())
    c.ask("look")
    assert (c.state.recent, c.state.tool_calls) == ((), {})


def test_times_are_those_of_the_records() -> None:
    c = GuardChain(policy_document(rate_limit={"max_actions": 9, "window_secs": 10}))
    c.ask("look")
    c.wait(-5)
    c.ask("look")
    c.wait(5 + 9)
    c.ask("look")
    c.ask("look")
    ninth = START + 9 * SECOND
    assert list(c.state.recent) == [START, START, ninth, ninth]
    c.wait(1)
    c.ask("look")
    assert list(c.state.recent) == [ninth, ninth, ninth + SECOND]


def test_the_same_question_has_one_digest() -> None:
    same = {ask_digest("t", {"a": 1, "b": [1.0]}, 2), ask_digest("t", {"b": [1], "a": 1.0}, 2)}
    assert same == {hashlib.sha256(b'{"cost":2,"input":{"a":1,"b":[1]},"tool":"t"}').hexdigest()}
    others = {
        ask_digest("T", {}, 2),
        ask_digest("t", {}, 3),
        ask_digest("t", None, 2),
        ask_digest("t", [], 2),
    }
    assert len(others | same) == 5
