"""One action, as its records tell it. Finished actions are not kept in memory but folded when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec
from msgspec.structs import replace

from app.chain.record import VerifiedRecord
from app.chain.strict import JsonObject, JsonValue
from app.errors import FormatError, OrderError
from app.guard.fields import (
    FieldError,
    as_object,
    integer,
    one_of,
    optional_text,
    optional_uuid,
    text,
)
from app.guard.kinds import (
    ACTION_ALLOWED,
    ACTION_CLAIMED,
    ACTION_DENIED,
    ACTION_REJECTED,
    ACTION_REQUESTED,
    APPROVAL_REQUIRED,
    OUTCOME,
)
from app.guard.words import ActionStatus, OutcomeStatus


class Action(msgspec.Struct, frozen=True):
    """An action with where it stands. ``cost`` is what is or would be charged."""

    action_id: str
    tool: str
    input: JsonValue
    cost: int
    status: ActionStatus = ActionStatus.REQUESTED
    outcome: OutcomeStatus | None = None
    session_id: UUID | None = None
    parent_id: UUID | None = None
    thought_process: str | None = None
    requested_with: str | None = None
    """The key that asked, when it was not the agent's own token."""
    approved_by: str | None = None
    """Name of the key that approved."""
    approver_claimed: str | None = None
    """Who decided, as the body of the decision says; nothing proves it."""
    also_approved_by: list[JsonValue] | None = None
    """The keys that approved before it, where the policy wants several."""
    reason: JsonObject | None = None
    """Why it was denied: ``{code, …}``."""
    claimed_by: str | None = None
    """Name of the key that claimed it, to carry it out."""
    asked_us: int = 0
    """Time of its request's record, µs since the epoch."""
    redacted: JsonObject | None = None
    """What was taken out of the request before it was recorded."""

    @property
    def sealed(self) -> str | None:
        """Digest of the input as it was asked, when something was taken out of it."""
        return None if self.redacted is None else sealed_input(self.redacted)

    def to_json(self) -> JsonObject:
        """``{action_id, tool, input, cost, status, outcome}``, and what else is known of it."""
        body: JsonObject = {
            "action_id": self.action_id,
            "tool": self.tool,
            "input": self.input,
            "cost": self.cost,
            "status": self.status.value,
            "outcome": None if self.outcome is None else self.outcome.value,
        }
        if self.session_id is not None:
            body["session_id"] = str(self.session_id)
        if self.parent_id is not None:
            body["parent_id"] = str(self.parent_id)
        for name in ("requested_with", "approved_by", "approver_claimed", "also_approved_by", "claimed_by"):
            known = getattr(self, name)
            if known is not None:
                body[name] = known
        if self.reason is not None:
            body["reason"] = self.reason
        if self.redacted is not None:
            body["redacted"] = self.redacted
        return body


def sealed_input(redacted: JsonObject) -> str | None:
    """The digest of the input as it was asked, which a request's record has instead of what was taken out."""
    return optional_text(redacted, "input")


_MAY_BECOME: dict[str, tuple[frozenset[ActionStatus], ActionStatus]] = {
    APPROVAL_REQUIRED: (
        frozenset({ActionStatus.REQUESTED, ActionStatus.PENDING_APPROVAL}),
        ActionStatus.PENDING_APPROVAL,
    ),
    ACTION_ALLOWED: (
        frozenset({ActionStatus.REQUESTED, ActionStatus.PENDING_APPROVAL}),
        ActionStatus.ALLOWED,
    ),
    ACTION_DENIED: (
        frozenset({ActionStatus.REQUESTED, ActionStatus.PENDING_APPROVAL}),
        ActionStatus.DENIED,
    ),
    ACTION_CLAIMED: (frozenset({ActionStatus.ALLOWED}), ActionStatus.ALLOWED),
    ACTION_REJECTED: (frozenset({ActionStatus.PENDING_APPROVAL}), ActionStatus.DENIED),
    OUTCOME: (frozenset({ActionStatus.ALLOWED, ActionStatus.COMPLETED}), ActionStatus.COMPLETED),
}
"""From which statuses each kind may follow, and to which it leads."""


def fold_action(records: Iterable[VerifiedRecord]) -> Action:
    """Folds the records that carry one action's id, in the order of ``seq``.

    Raises:
        OrderError: the records are not in order.
        FormatError: they do not begin with the request, are of another action, or contradict each other.
    """
    action: Action | None = None
    seq = -1
    for record in records:
        if record.seq <= seq:
            raise OrderError(f"comes after {seq}", seq=record.seq)
        seq = record.seq
        action = _step(action, record)
    if action is None:
        raise FormatError("an action without a record")
    return action


def may_report(action: Action, status: OutcomeStatus) -> bool:
    """Whether the outcome ``status`` may be reported: one an action, and one that knows after ``unknown``."""
    if action.outcome is OutcomeStatus.UNKNOWN:
        return status is not OutcomeStatus.UNKNOWN
    return action.status is ActionStatus.ALLOWED


def _step(action: Action | None, record: VerifiedRecord) -> Action:
    try:
        return _requested(record) if action is None else _next(action, record)
    except FieldError as error:
        raise FormatError(f"{record.kind}: {error}", seq=record.seq) from error


def _requested(record: VerifiedRecord) -> Action:
    if record.kind != ACTION_REQUESTED:
        raise FormatError("the action's request is missing", seq=record.seq)
    payload = record.payload
    return Action(
        action_id=text(payload, "action_id"),
        tool=text(payload, "tool"),
        input=payload.get("input"),
        cost=integer(payload, "cost"),
        session_id=optional_uuid(payload, "session_id"),
        parent_id=optional_uuid(payload, "parent_id"),
        thought_process=optional_text(payload, "thought_process"),
        requested_with=optional_text(payload, "requested_with"),
        asked_us=record.timestamp_us,
        redacted=None if payload.get("redacted") is None else as_object(payload["redacted"], "redacted"),
    )


def _list(record: VerifiedRecord, name: str) -> list[JsonValue] | None:
    value = record.payload.get(name)
    return value if isinstance(value, list) else None


def _reason(record: VerifiedRecord) -> JsonObject | None:
    """Why the record ends the action, when it does."""
    if record.kind == ACTION_DENIED:
        return as_object(record.payload.get("reason"), "reason")
    if record.kind == ACTION_REJECTED:
        return rejection_reason(text(record.payload, "by"), text(record.payload, "reason"))
    return None


def rejection_reason(by: str, reason: str) -> JsonObject:
    """The ``reason`` of a denial by a person."""
    return {"code": "rejected", "by": by, "reason": reason}


def _next(action: Action, record: VerifiedRecord) -> Action:
    before, after = _MAY_BECOME.get(record.kind, (frozenset(), action.status))
    if text(record.payload, "action_id") != action.action_id or action.status not in before:
        raise FormatError(f"{record.kind} does not follow on {action.action_id}", seq=record.seq)
    if record.kind == ACTION_CLAIMED:
        if action.claimed_by is not None:
            raise FormatError(f"a second claim of {action.action_id}", seq=record.seq)
        return replace(action, claimed_by=text(record.payload, "by"))
    if record.kind != OUTCOME:
        return replace(
            action,
            status=after,
            approved_by=optional_text(record.payload, "approved_by"),
            approver_claimed=optional_text(record.payload, "approver_claimed"),
            also_approved_by=_list(record, "also_approved_by"),
            reason=_reason(record),
        )
    status = one_of(record.payload, "status", OutcomeStatus)
    if not may_report(action, status):
        raise FormatError(f"a second outcome of {action.action_id}", seq=record.seq)
    return replace(action, status=after, outcome=status)
