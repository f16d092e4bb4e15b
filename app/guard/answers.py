"""What the guard answers, and the act that makes the answer true."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.chain.record import Draft, VerifiedRecord
from app.chain.strict import JsonObject
from app.errors import ClaimRefusedError, ConflictError, FormatError, InvalidStateError
from app.guard import kinds
from app.guard.action import rejection_reason
from app.guard.fields import FieldError, as_object, integer, optional_integer, text
from app.guard.words import ActionStatus

OUTCOME_CONFLICT = "outcome_conflict"
"""Type of the ``event`` that keeps a second, different outcome as an anomaly (case G25)."""


class Allowed(msgspec.Struct, frozen=True):
    """The action may be carried out; ``cost`` is charged for ever, ``remaining`` is what it left."""

    action_id: str
    cost: int
    remaining: int

    def to_json(self) -> JsonObject:
        """``{decision: allowed, action_id, cost, remaining}``."""
        return {
            "decision": "allowed",
            "action_id": self.action_id,
            "cost": self.cost,
            "remaining": self.remaining,
        }


class Denied(msgspec.Struct, frozen=True):
    """The action may not be carried out; ``reason`` is ``{code, …}``.

    ``retry_after_secs`` is set when only the rate limit stood in the way: after so many seconds without
    another allowed action the window has room again.
    """

    action_id: str
    reason: JsonObject
    retry_after_secs: int | None = None

    def to_json(self) -> JsonObject:
        """``{decision: denied, action_id, reason}``, with retry_after_secs when there is one."""
        body: JsonObject = {"decision": "denied", "action_id": self.action_id, "reason": self.reason}
        if self.retry_after_secs is not None:
            body["retry_after_secs"] = self.retry_after_secs
        return body


class PendingApproval(msgspec.Struct, frozen=True):
    """The action waits for a person; nothing is charged yet.

    ``approvals`` of ``approvers`` keys have approved; both are None when nobody had to yet.
    """

    action_id: str
    approvals: int | None = None
    approvers: int | None = None

    def to_json(self) -> JsonObject:
        """``{decision: pending_approval, action_id}``; the answer to an approval says how many there are."""
        body: JsonObject = {"decision": "pending_approval", "action_id": self.action_id}
        if self.approvals is not None:
            body |= {"approvals": self.approvals, "approvers": self.approvers}
        return body


class Claimed(msgspec.Struct, frozen=True):
    """The action is the caller's to carry out, and nobody else's any more."""

    action_id: str

    def to_json(self) -> JsonObject:
        """``{claimed: true, action_id}``."""
        return {"claimed": True, "action_id": self.action_id}


Decision = Allowed | Denied | PendingApproval | Claimed


class Act(msgspec.Struct, frozen=True):
    """The records of one act, in order, and what to answer once they are on disk: decision or refusal."""

    drafts: tuple[Draft, ...]
    answer: Decision | None = None
    refusal: ConflictError | None = None


def decision_of(records: Iterable[VerifiedRecord]) -> Decision | None:
    """The decision that was answered when the records of one act were made; None when there was none.

    A retry with the same idempotency key gets the first answer again, for ever, so the records say all
    that the answer said.

    Raises:
        FormatError: a record does not say what was answered.
    """
    for record in records:
        try:
            decision = _decision(record)
        except FieldError as error:
            raise FormatError(f"{record.kind}: {error}", seq=record.seq) from error
        if decision is not None:
            return decision
    return None


def refusal_of(records: Iterable[VerifiedRecord]) -> ConflictError | None:
    """The refusal that one act's records put on record; None when the act was not refused.

    Raises:
        FormatError: a record does not say what was refused.
    """
    for record in records:
        try:
            refusal = _refusal(record)
        except FieldError as error:
            raise FormatError(f"{record.kind}: {error}", seq=record.seq) from error
        if refusal is not None:
            return refusal
    return None


def _refusal(record: VerifiedRecord) -> ConflictError | None:
    payload = record.payload
    if record.kind == kinds.EVENT and payload.get("type") == OUTCOME_CONFLICT:
        data = as_object(payload.get("data"), "data")
        return InvalidStateError(text(data, "action_id"), ActionStatus.COMPLETED)
    if record.kind == kinds.CLAIM_REFUSED:
        reason = as_object(payload.get("reason"), "reason")
        text(reason, "code")
        return ClaimRefusedError(text(payload, "action_id"), reason)
    return None


def _decision(record: VerifiedRecord) -> Decision | None:
    payload = record.payload
    match record.kind:
        case kinds.ACTION_ALLOWED:
            return Allowed(
                text(payload, "action_id"), integer(payload, "cost"), integer(payload, "remaining")
            )
        case kinds.ACTION_DENIED:
            reason = as_object(payload.get("reason"), "reason")
            return Denied(text(payload, "action_id"), reason, optional_integer(payload, "retry_after_secs"))
        case kinds.ACTION_REJECTED:
            reason = rejection_reason(text(payload, "by"), text(payload, "reason"))
            return Denied(text(payload, "action_id"), reason)
        case kinds.APPROVAL_REQUIRED | kinds.APPROVAL_GIVEN:
            counts = [optional_integer(payload, name) for name in ("approvals", "approvers")]
            return PendingApproval(text(payload, "action_id"), *counts)
        case kinds.ACTION_CLAIMED:
            return Claimed(text(payload, "action_id"))
    return None
