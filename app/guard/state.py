"""What the guard knows of an agent: a fold over verified records, and nothing else.

``evolve`` refuses a record that is not exactly the next one, a kind that this version does not know (the
guard then decides nothing on the chain, case G30) and a record that contradicts what came before it: an
action allowed after the termination or beyond the budget is no permission, whoever signed it.

Values are frozen and changed by copy; what a finished action leaves behind is counts, so that memory does
not grow with the chain's age.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from app.chain.canonical import canonical
from app.chain.record import GENESIS, KEY_ROTATED, SNAPSHOT, ZERO_HASH, Head, VerifiedRecord
from app.chain.strict import JsonObject, JsonValue
from app.errors import FormatError, InvalidPolicyError, LinkError, OrderError, UnknownKindError
from app.guard.action import Action, fold_action, sealed_input
from app.guard.fields import MAX_TOOL_CHARS, FieldError, as_object, integer, one_of, optional_text, text
from app.guard.kinds import (
    ACTION_ALLOWED,
    ACTION_CLAIMED,
    ACTION_DENIED,
    ACTION_REJECTED,
    ACTION_REQUESTED,
    ADMIN,
    APPROVAL_GIVEN,
    APPROVAL_REQUIRED,
    CLAIM_REFUSED,
    EVENT,
    OUTCOME,
    POLICY,
    SCAR,
    TERMINATED,
    TRACE,
)
from app.guard.policy import Policy
from app.guard.words import OutcomeStatus, Severity, add_scar

__all__ = [
    "EMPTY",
    "Action",
    "Approval",
    "GuardState",
    "Pending",
    "Requested",
    "ask_digest",
    "evolve",
    "fold",
    "fold_action",
    "inside_window",
    "next_action_id",
    "next_scar_digest",
]

CLAIM_WINDOW_US = 60_000_000
"""Refused claims are counted in a sliding window of a minute."""

_ACTION_ID = re.compile(r"act-([1-9][0-9]{0,17})")


class Approval(msgspec.Struct, frozen=True):
    """One of several approvals of an action: name and id of the key."""

    by: str
    key: str


class Pending(msgspec.Struct, frozen=True):
    """An action that waits for a person: where it was requested, and what exactly was asked.

    Attributes:
        size: length of the request's record in characters.
        joins: how often it was asked again.
        keys: the keys that asked for it, first or again; the agent's own token is none.
        names: of who asked, first or again.
        asked_us: time of the request's record, µs since the epoch.
        approvals: those that were given so far; the last one is in the record that allows.
    """

    seq: int
    hash: str
    tool: str
    cost: int
    digest: str
    size: int = 0
    joins: int = 0
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    asked_us: int = 0
    approvals: tuple[Approval, ...] = ()


class Requested(msgspec.Struct, frozen=True):
    """The action of the last ``action_requested`` record, kept until the next records decide it."""

    action_id: str
    seq: int
    hash: str
    tool: str
    cost: int
    input: JsonValue
    sealed: str | None
    size: int
    key: str | None
    actor: str
    asked_us: int


class GuardState(msgspec.Struct, frozen=True):
    """An agent's standing after the record at ``head``.

    Attributes:
        policy: None until the policy record, and for ever when the agent is observed, not guarded.
        spent: sum of the costs of allowed actions.
        scar_score: sum of scar weights, saturating at 2^32-1.
        scar_count: how many scars; the scars themselves are read from the table when asked for.
        scar_digest: chain of hashes over the scar records, which proves scars read later.
        terminated: why, or None while alive.
        action_count: actions requested so far; the next one is ``act-(count + 1)``.
        allowed: how many were allowed.
        denied: how many were denied or rejected.
        tool_calls: allowed calls by tool name, of tools whose rule has ``max_calls``.
        recent: record times (µs) of the allowed actions inside the rate window, oldest first.
        pending: actions that wait for a person, by id.
        requested: the action that the next record decides; None between acts.
        last_claim: place of the last ``action_claimed``; -1 when nothing was ever claimed.
        refused_claims: record times (µs) of the claims refused inside ``CLAIM_WINDOW_US``, oldest first.
        head: position of the last record folded.
    """

    policy: Policy | None = None
    spent: int = 0
    scar_score: int = 0
    scar_count: int = 0
    scar_digest: str = ZERO_HASH
    terminated: str | None = None
    action_count: int = 0
    allowed: int = 0
    denied: int = 0
    tool_calls: dict[str, int] = {}
    recent: tuple[int, ...] = ()
    pending: dict[str, Pending] = {}
    requested: Requested | None = None
    last_claim: int = -1
    refused_claims: tuple[int, ...] = ()
    head: Head | None = None

    @property
    def remaining(self) -> int:
        """What is left of the budget; 0 for an agent without a policy."""
        return 0 if self.policy is None else max(self.policy.budget - self.spent, 0)

    def time_us(self, now_us: int) -> int:
        """The chain's time at ``now_us``: what its next record would have, never before the last one's."""
        return now_us if self.head is None else max(now_us, self.head.timestamp_us)

    @property
    def alive(self) -> bool:
        """Whether no termination is on record."""
        return self.terminated is None

    def knows_action(self, action_id: str) -> bool:
        """Whether an action of this id was ever requested. Ids are numbered without gaps."""
        match = _ACTION_ID.fullmatch(action_id)
        return match is not None and int(match[1]) <= self.action_count


EMPTY = GuardState()
"""The state before any record."""


def evolve(state: GuardState, record: VerifiedRecord) -> GuardState:
    """The state after one more record. A snapshot changes nothing; ``app.guard.snapshot`` compares it.

    Raises:
        OrderError: ``seq`` is not the next one.
        LinkError: the record does not follow the head.
        UnknownKindError: this version does not know the kind.
        FormatError: the payload is malformed or contradicts what came before.
    """
    _require_next(state, record)
    step = _STEPS.get(record.kind)
    if step is None:
        raise UnknownKindError(
            f"records of kind {record.kind!r} are not known to this version", seq=record.seq
        )
    try:
        return step(state, record)
    except FieldError as error:
        raise FormatError(f"{record.kind}: {error}", seq=record.seq) from error


def fold(records: Iterable[VerifiedRecord], state: GuardState = EMPTY) -> GuardState:
    """Evolves ``state`` by each of ``records`` in turn. Raises as ``evolve``."""
    for record in records:
        state = evolve(state, record)
    return state


def ask_digest(tool: str, value: JsonValue, cost: int, sealed: str | None = None) -> str:
    """Identity of what is asked: SHA-256 (hex) of the canonical ``{"cost", "input", "tool"}``.

    Where something was taken out of the input, ``sealed`` stands for it: what differs in a secret differs.

    ``cost`` is the one that would be charged, so that 1.0 and 1 in the input are the same request, and
    another price is another one (case G10).
    """
    asked: JsonObject = {"tool": tool, "input": value, "cost": cost}
    if sealed is not None:
        asked["sealed"] = sealed
    return hashlib.sha256(canonical(asked).encode()).hexdigest()


def next_scar_digest(digest: str, record_hash: str) -> str:
    """``scar_digest`` after one more scar record of hash ``record_hash`` (both 64 hex)."""
    return hashlib.sha256(bytes.fromhex(digest) + bytes.fromhex(record_hash)).hexdigest()


def calls_counted(policy: Policy, tool: str) -> bool:
    """Whether calls of ``tool`` are counted: its rule limits them."""
    rule = policy.rule_for(tool)
    return rule is not None and rule.max_calls is not None


def inside_window(recent: tuple[int, ...], now_us: int, window_us: int) -> tuple[int, ...]:
    """The times t with ``t > now - window``. ``recent`` is in order: record times never go back."""
    return recent[bisect_right(recent, now_us - window_us) :]


def _require_next(state: GuardState, record: VerifiedRecord) -> None:
    expected = 0 if state.head is None else state.head.seq + 1
    if record.seq != expected:
        raise OrderError(f"the next record is {expected}", seq=record.seq)
    if record.prev_hash != (ZERO_HASH if state.head is None else state.head.hash):
        raise LinkError("prev_hash is not the hash of the record before", seq=record.seq)
    if (record.kind == GENESIS) != (record.seq == 0):
        raise FormatError("genesis is the first record, and only that", seq=record.seq)


def _moved(state: GuardState, record: VerifiedRecord) -> GuardState:
    return replace(state, head=record.head)


def _policy(state: GuardState, record: VerifiedRecord) -> GuardState:
    if record.seq != 1:
        raise FormatError("the policy is the second record, and only that", seq=record.seq)
    try:
        policy = Policy.parse(record.payload.get("policy"))
    except InvalidPolicyError as error:
        raise FormatError(str(error), seq=record.seq) from error
    return replace(state, policy=policy, head=record.head)


def _action_requested(state: GuardState, record: VerifiedRecord) -> GuardState:
    _policy_of(state, record)
    payload = record.payload
    action_id = text(payload, "action_id")
    if action_id != next_action_id(state):
        raise FormatError(f"action_requested: the next action is {next_action_id(state)}", seq=record.seq)
    requested = Requested(
        action_id=action_id,
        seq=record.seq,
        hash=record.hash,
        tool=text(payload, "tool", low=1, high=MAX_TOOL_CHARS),
        cost=integer(payload, "cost"),
        input=payload.get("input"),
        sealed=_sealed(payload),
        size=len(record.text),
        key=optional_text(payload, "requested_with"),
        actor=record.actor,
        asked_us=record.timestamp_us,
    )
    return replace(state, action_count=state.action_count + 1, requested=requested, head=record.head)


def _sealed(payload: JsonObject) -> str | None:
    redacted = payload.get("redacted")
    return None if redacted is None else sealed_input(as_object(redacted, "redacted"))


def _approval_required(state: GuardState, record: VerifiedRecord) -> GuardState:
    action_id = text(record.payload, "action_id")
    waiting = state.pending.get(action_id)
    if waiting is not None and record.payload.get("joined") is True:
        key = optional_text(record.payload, "requested_with")
        again = replace(
            waiting,
            joins=waiting.joins + 1,
            keys=_with_key(waiting.keys, key),
            names=_with_key(waiting.names, record.actor),
        )
        return replace(state, pending={**state.pending, action_id: again}, head=record.head)
    asked = state.requested
    if asked is None or asked.action_id != action_id:
        raise _contradiction(record, action_id)
    pending = Pending(
        seq=asked.seq,
        hash=asked.hash,
        tool=asked.tool,
        cost=asked.cost,
        digest=ask_digest(asked.tool, asked.input, asked.cost, asked.sealed),
        size=asked.size,
        keys=_with_key((), asked.key),
        names=(asked.actor,),
        asked_us=asked.asked_us,
    )
    return replace(state, pending={**state.pending, action_id: pending}, requested=None, head=record.head)


def _action_allowed(state: GuardState, record: VerifiedRecord) -> GuardState:
    policy = _policy_of(state, record)
    action_id, asked = _undecided(state, record)
    approved = not isinstance(asked, Pending) or _is_approved(policy, asked, record)
    if not state.alive or asked.cost > state.remaining or not approved:
        raise FormatError(f"{action_id} is allowed against the policy", seq=record.seq)
    return replace(
        _decided(state, action_id, record),
        spent=state.spent + asked.cost,
        allowed=state.allowed + 1,
        tool_calls=_with_call(policy, state.tool_calls, asked.tool),
        recent=_with_time(policy, state.recent, record.timestamp_us),
    )


def _is_approved(policy: Policy, pending: Pending, record: VerifiedRecord) -> bool:
    """Whether with ``record`` enough keys approved, and in time."""
    until_us = policy.approved_until_us(pending.tool, pending.asked_us)
    in_time = until_us is None or record.timestamp_us <= until_us
    return in_time and len(pending.approvals) + 1 >= policy.approvers(pending.tool)


def _approval_given(state: GuardState, record: VerifiedRecord) -> GuardState:
    policy = _policy_of(state, record)
    action_id = text(record.payload, "action_id")
    pending = state.pending.get(action_id)
    given = Approval(text(record.payload, "approved_by"), text(record.payload, "by_key"))
    if pending is None or given.key in [before.key for before in pending.approvals]:
        raise _contradiction(record, action_id)
    after = replace(pending, approvals=(*pending.approvals, given))
    if len(after.approvals) >= policy.approvers(pending.tool):
        raise _contradiction(record, action_id)
    return replace(state, pending={**state.pending, action_id: after}, head=record.head)


def _action_denied(state: GuardState, record: VerifiedRecord) -> GuardState:
    action_id, _ = _undecided(state, record)
    return replace(_decided(state, action_id, record), denied=state.denied + 1)


def _action_rejected(state: GuardState, record: VerifiedRecord) -> GuardState:
    action_id = text(record.payload, "action_id")
    if action_id not in state.pending:
        raise _contradiction(record, action_id)
    return replace(_decided(state, action_id, record), denied=state.denied + 1)


def _outcome(state: GuardState, record: VerifiedRecord) -> GuardState:
    _known_action(state, record, text(record.payload, "action_id"))
    one_of(record.payload, "status", OutcomeStatus)
    return _moved(state, record)


def _action_claimed(state: GuardState, record: VerifiedRecord) -> GuardState:
    _known_action(state, record, text(record.payload, "action_id"))
    return replace(state, last_claim=record.seq, head=record.head)


def _claim_refused(state: GuardState, record: VerifiedRecord) -> GuardState:
    _known_action(state, record, text(record.payload, "action_id"))
    before = inside_window(state.refused_claims, record.timestamp_us, CLAIM_WINDOW_US)
    return replace(state, refused_claims=(*before, record.timestamp_us), head=record.head)


def _scar(state: GuardState, record: VerifiedRecord) -> GuardState:
    _policy_of(state, record)
    severity = one_of(record.payload, "severity", Severity)
    text(record.payload, "reason")
    action_id = optional_text(record.payload, "action_id")
    if action_id is not None:
        _known_action(state, record, action_id)
    return replace(
        state,
        scar_score=add_scar(state.scar_score, severity),
        scar_count=state.scar_count + 1,
        scar_digest=next_scar_digest(state.scar_digest, record.hash),
        head=record.head,
    )


def _terminated(state: GuardState, record: VerifiedRecord) -> GuardState:
    _policy_of(state, record)
    text(record.payload, "by")
    if not state.alive:
        raise FormatError("terminated: the agent was terminated before", seq=record.seq)
    return replace(state, terminated=text(record.payload, "reason"), head=record.head)


_STEPS: dict[str, Callable[[GuardState, VerifiedRecord], GuardState]] = {
    GENESIS: _moved,
    KEY_ROTATED: _moved,
    SNAPSHOT: _moved,
    TRACE: _moved,
    EVENT: _moved,
    ADMIN: _moved,
    POLICY: _policy,
    ACTION_REQUESTED: _action_requested,
    APPROVAL_REQUIRED: _approval_required,
    APPROVAL_GIVEN: _approval_given,
    ACTION_ALLOWED: _action_allowed,
    ACTION_DENIED: _action_denied,
    ACTION_REJECTED: _action_rejected,
    OUTCOME: _outcome,
    ACTION_CLAIMED: _action_claimed,
    CLAIM_REFUSED: _claim_refused,
    SCAR: _scar,
    TERMINATED: _terminated,
}


def next_action_id(state: GuardState) -> str:
    """The id of the next action that is requested."""
    return f"act-{state.action_count + 1}"


def _policy_of(state: GuardState, record: VerifiedRecord) -> Policy:
    if state.policy is None:
        raise FormatError(f"{record.kind} without a policy before it", seq=record.seq)
    return state.policy


def _undecided(state: GuardState, record: VerifiedRecord) -> tuple[str, Requested | Pending]:
    """The action that ``record`` decides: requested just now, or pending."""
    action_id = text(record.payload, "action_id")
    asked = state.requested
    if asked is not None and asked.action_id == action_id:
        return action_id, asked
    pending = state.pending.get(action_id)
    if pending is None:
        raise _contradiction(record, action_id)
    return action_id, pending


def _decided(state: GuardState, action_id: str, record: VerifiedRecord) -> GuardState:
    """The state without the undecided action ``action_id``."""
    if action_id not in state.pending:
        return replace(state, requested=None, head=record.head)
    pending = {key: value for key, value in state.pending.items() if key != action_id}
    return replace(state, pending=pending, head=record.head)


def _known_action(state: GuardState, record: VerifiedRecord, action_id: str) -> None:
    if not state.knows_action(action_id):
        raise _contradiction(record, action_id)


def _contradiction(record: VerifiedRecord, action_id: str) -> FormatError:
    return FormatError(f"{record.kind}: no action {action_id} is in a state for this", seq=record.seq)


def _with_key(keys: tuple[str, ...], key: str | None) -> tuple[str, ...]:
    return keys if key is None or key in keys else (*keys, key)


def _with_call(policy: Policy, calls: dict[str, int], tool: str) -> dict[str, int]:
    return {**calls, tool: calls.get(tool, 0) + 1} if calls_counted(policy, tool) else calls


def _with_time(policy: Policy, recent: tuple[int, ...], now_us: int) -> tuple[int, ...]:
    limit = policy.rate_limit
    if limit is None:
        return recent
    return (*inside_window(recent, now_us, limit.window_us), now_us)
