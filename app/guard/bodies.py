"""What callers send to the guard, read exactly.

A member that is not ours is refused: ``inputs`` for ``input`` would otherwise be allowed, and recorded
without what it was about.

An optional member may be absent or null. Each ``parse`` takes the value of a strictly parsed body and
raises ``BadRequestError`` with the member's name, such as ``cost: must be an integer >= 0`` (case G13).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar
from uuid import UUID

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError
from app.guard.fields import (
    MAX_NAME_CHARS,
    MAX_TOOL_CHARS,
    FieldError,
    body_of,
    one_of,
    optional_integer,
    optional_one_of,
    optional_text,
    optional_uuid,
    text,
)
from app.guard.policy import Policy
from app.guard.words import OutcomeStatus, Severity

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _bad_request(parse: Callable[_P, _R]) -> Callable[_P, _R]:
    @wraps(parse)
    def parsed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return parse(*args, **kwargs)
        except FieldError as error:
            raise BadRequestError(str(error)) from error

    return parsed


class NewAgent(msgspec.Struct, frozen=True):
    """A new agent; without a policy it is observed, not guarded."""

    agent_id: str
    policy: Policy | None

    @classmethod
    def parse(cls, value: JsonValue) -> NewAgent:
        """Reads ``{agent_id, policy}``; ``policy`` may be null but not absent.

        Raises:
            InvalidPolicyError: the policy has a flaw.
        """
        return _new_agent(value)


class Ask(msgspec.Struct, frozen=True):
    """A request to act. ``cost`` raises the charge above the rule's, never lowers it."""

    tool: str
    input: JsonValue = None
    cost: int | None = None
    session_id: UUID | None = None
    parent_id: UUID | None = None
    thought_process: str | None = None
    redacted: JsonObject | None = None
    """What was taken out of it before anybody decides; no member of a body."""

    @classmethod
    def parse(cls, value: JsonValue) -> Ask:
        """Reads ``{tool, input?, cost?, session_id?, parent_id?, thought_process?}``."""
        return _ask(value)


class Approve(msgspec.Struct, frozen=True):
    """A person's yes to a pending action."""

    approver: str
    note: str | None = None

    @classmethod
    def parse(cls, value: JsonValue) -> Approve:
        """Reads ``{approver, note?}``."""
        return _approve(value)


class Reject(msgspec.Struct, frozen=True):
    """A person's no to a pending action; ``scar`` says whether and how much asking counts."""

    approver: str
    reason: str
    scar: Severity | None = None

    @classmethod
    def parse(cls, value: JsonValue) -> Reject:
        """Reads ``{approver, reason, scar?}``."""
        return _reject(value)


class Report(msgspec.Struct, frozen=True):
    """How an allowed action went."""

    status: OutcomeStatus
    detail: str = ""

    @classmethod
    def parse(cls, value: JsonValue) -> Report:
        """Reads ``{status, detail?}``."""
        return _report(value)


class Claim(msgspec.Struct, frozen=True):
    """What somebody is about to carry out."""

    tool: str
    input: JsonValue = None
    sealed: str | None = None
    """Digest of the input, 64 hex, that tells nobody what it is; no member of a body."""

    is_secret: bool = False
    """Whether the input holds what is taken out of records; no member of a body."""

    @classmethod
    def parse(cls, value: JsonValue) -> Claim:
        """Reads ``{tool, input?}``."""
        return _claim(value)


class AddScar(msgspec.Struct, frozen=True):
    """A scar given by an operator or a monitor."""

    severity: Severity
    reason: str
    action_id: str | None = None

    @classmethod
    def parse(cls, value: JsonValue) -> AddScar:
        """Reads ``{severity, reason, action_id?}``."""
        return _add_scar(value)


class Terminate(msgspec.Struct, frozen=True):
    """The kill switch."""

    reason: str
    by: str

    @classmethod
    def parse(cls, value: JsonValue) -> Terminate:
        """Reads ``{reason, by}``."""
        return _terminate(value)


@_bad_request
def _new_agent(value: JsonValue) -> NewAgent:
    source = body_of(value, "agent_id", "policy")
    if "policy" not in source:
        raise FieldError("policy", "is required; null makes an observed agent without a guard")
    policy = source["policy"]
    return NewAgent(text(source, "agent_id"), None if policy is None else Policy.parse(policy))


@_bad_request
def _ask(value: JsonValue) -> Ask:
    source = body_of(value, "tool", "input", "cost", "session_id", "parent_id", "thought_process")
    return Ask(
        tool=text(source, "tool", low=1, high=MAX_TOOL_CHARS),
        input=source.get("input"),
        cost=optional_integer(source, "cost"),
        session_id=optional_uuid(source, "session_id"),
        parent_id=optional_uuid(source, "parent_id"),
        thought_process=optional_text(source, "thought_process"),
    )


@_bad_request
def _approve(value: JsonValue) -> Approve:
    source = body_of(value, "approver", "note")
    return Approve(
        approver=text(source, "approver", low=1, high=MAX_NAME_CHARS),
        note=optional_text(source, "note"),
    )


@_bad_request
def _reject(value: JsonValue) -> Reject:
    source = body_of(value, "approver", "reason", "scar")
    return Reject(
        approver=text(source, "approver", low=1, high=MAX_NAME_CHARS),
        reason=text(source, "reason"),
        scar=optional_one_of(source, "scar", Severity),
    )


@_bad_request
def _report(value: JsonValue) -> Report:
    source = body_of(value, "status", "detail")
    return Report(
        status=one_of(source, "status", OutcomeStatus),
        detail=optional_text(source, "detail") or "",
    )


@_bad_request
def _claim(value: JsonValue) -> Claim:
    source = body_of(value, "tool", "input")
    return Claim(text(source, "tool", low=1, high=MAX_TOOL_CHARS), source.get("input"))


@_bad_request
def _add_scar(value: JsonValue) -> AddScar:
    source = body_of(value, "severity", "reason", "action_id")
    return AddScar(
        severity=one_of(source, "severity", Severity),
        reason=text(source, "reason"),
        action_id=optional_text(source, "action_id"),
    )


@_bad_request
def _terminate(value: JsonValue) -> Terminate:
    source = body_of(value, "reason", "by")
    return Terminate(
        reason=text(source, "reason"),
        by=text(source, "by", low=1, high=MAX_NAME_CHARS),
    )
