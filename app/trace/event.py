"""An event: anything that a service wants on an agent's record, with a type and data of its own choice."""

from __future__ import annotations

from uuid import UUID

import msgspec

from app.chain.record import format_timestamp
from app.chain.strict import JsonObject, JsonValue
from app.errors import InvalidMemberError
from app.trace.instant import parse_instant
from app.trace.node import read_uuid

MAX_TYPE_CHARS = 128
"""Longest type of an event, in characters."""

RESERVED_TYPES = frozenset({"outcome_conflict", "span_conflict", "spans_rejected"})
"""Types of the events that the service itself records: nobody else may, or its word would mean nothing."""

_A_TYPE = f"must be a string of 1 to {MAX_TYPE_CHARS} characters"
_MEMBERS = ("type", "data", "session_id", "occurred_at")


class Event(msgspec.Struct, frozen=True):
    """An event as it was posted.

    ``occurred_at_us`` is what the sender says of its time, in µs since the epoch; the record's own time is
    the service's and stands beside it (case T13).
    """

    type: str
    data: JsonValue
    session_id: UUID | None = None
    occurred_at_us: int | None = None

    @classmethod
    def parse(cls, value: JsonValue, at: str = "") -> Event:
        """Reads ``{type, data, session_id?, occurred_at?}``; the last two may be null.

        Args:
            value: the event, strictly parsed.
            at: where it stands in what was sent, such as ``events[3].``.

        Raises:
            InvalidMemberError: names the member.
        """
        if type(value) is not dict:
            raise InvalidMemberError(at.rstrip(".") or "event", "must be an object")
        unknown = next((name for name in value if name not in _MEMBERS), None)
        if unknown is not None:
            raise InvalidMemberError(at + unknown[:64], f"is no member here; there are {', '.join(_MEMBERS)}")
        if "type" not in value:
            raise InvalidMemberError(at + "type", f"is required; it {_A_TYPE}, such as deployed")
        if "data" not in value:
            raise InvalidMemberError(at + "data", "is required; it may be any JSON, null too")
        return cls(
            type=_type(value["type"], at),
            data=value["data"],
            session_id=_session_id(value.get("session_id"), at),
            occurred_at_us=_occurred_at(value.get("occurred_at"), at),
        )

    @property
    def payload(self) -> JsonObject:
        """What the record says: ids and times in their one canonical spelling, nothing that was not said."""
        payload: JsonObject = {"type": self.type, "data": self.data}
        if self.session_id is not None:
            payload["session_id"] = str(self.session_id)
        if self.occurred_at_us is not None:
            payload["occurred_at"] = format_timestamp(self.occurred_at_us)
        return payload


def _type(value: JsonValue, at: str) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_TYPE_CHARS:
        raise InvalidMemberError(f"{at}type", _A_TYPE)
    if value in RESERVED_TYPES:
        raise InvalidMemberError(f"{at}type", f"{value} is recorded by the service alone; choose another")
    return value


def _session_id(value: JsonValue, at: str) -> UUID | None:
    if value is None:
        return None
    found = read_uuid(value)
    if found is None:
        raise InvalidMemberError(
            f"{at}session_id", "must be a UUID such as 123e4567-e89b-12d3-a456-426614174000"
        )
    return found


def _occurred_at(value: JsonValue, at: str) -> int | None:
    if value is None:
        return None
    try:
        return parse_instant(value if type(value) is str else "")
    except ValueError as error:
        raise InvalidMemberError(f"{at}occurred_at", str(error)) from None
