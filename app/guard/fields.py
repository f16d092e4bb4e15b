"""Reading the members of JSON objects exactly: nothing is converted, nothing is guessed.

``true`` is no integer, ``"1"`` and ``1.0`` are not 1 (case G13). Each reader raises ``FieldError`` with the
member's name; the caller turns it into the error that fits: a bad request, a bad policy, a bad record.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from app.chain.strict import JsonObject, JsonValue

MAX_COST = 2**63 - 1
"""Largest cost, budget and call limit: what a BIGINT holds (case P31)."""

MAX_TOOL_CHARS = 128
MAX_NAME_CHARS = 256
"""Longest name of an approver or of whoever terminates, in characters."""

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_E = TypeVar("_E", bound=enum.StrEnum)


class FieldError(ValueError):
    """A member that is missing, of the wrong type or out of range; ``field`` names it."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


def as_object(value: JsonValue, field: str) -> JsonObject:
    """``value`` when it is a JSON object."""
    if type(value) is not dict:
        raise FieldError(field, "must be an object")
    return value


def body_of(value: JsonValue, *members: str) -> JsonObject:
    """``value`` when it is a JSON object of no other members than these: nothing that came in is lost."""
    body = as_object(value, "body")
    refuse_others(body, members)
    return body


def refuse_others(source: JsonObject, members: Sequence[str], *, at: str = "") -> None:
    """Refuses an object of other members than these; says which there are, and which may have been meant."""
    unknown = next((name for name in source if name not in members), None)
    if unknown is None:
        return
    from difflib import get_close_matches  # noqa: PLC0415  slow, and rarely needed

    near = get_close_matches(unknown, members, n=1)
    meant = f"did you mean {near[0]}? There" if near else "there"
    raise FieldError(at + unknown, f"is no member here; {meant} are {', '.join(members)}")


def integer(source: JsonObject, name: str, *, low: int = 0, high: int = MAX_COST, at: str = "") -> int:
    """A required integer of ``low..high``; ``at`` is the path of ``source``, for the message."""
    number = optional_integer(source, name, low=low, high=high, at=at)
    if number is None:
        raise FieldError(at + name, "is required")
    return number


def optional_integer(
    source: JsonObject, name: str, *, low: int = 0, high: int = MAX_COST, at: str = ""
) -> int | None:
    """An integer of ``low..high``; None when the member is absent or null."""
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not int or value < low:
        raise FieldError(at + name, f"must be an integer >= {low}")
    if value > high:
        raise FieldError(at + name, f"must be at most {high}")
    return value


def text(source: JsonObject, name: str, *, low: int = 0, high: int | None = None) -> str:
    """A required string; ``low`` and ``high`` bound its length in characters."""
    value = optional_text(source, name, low=low, high=high)
    if value is None:
        raise FieldError(name, "is required")
    return value


def optional_text(source: JsonObject, name: str, *, low: int = 0, high: int | None = None) -> str | None:
    """A string; None when the member is absent or null."""
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not str:
        raise FieldError(name, "must be a string")
    if len(value) < low or (high is not None and len(value) > high):
        raise FieldError(name, f"must have {low} to {high} characters")
    return value


def flag(source: JsonObject, name: str, *, at: str = "") -> bool:
    """A boolean; False when the member is absent."""
    value = source.get(name, False)
    if type(value) is not bool:
        raise FieldError(at + name, "must be true or false")
    return value


def optional_uuid(source: JsonObject, name: str) -> UUID | None:
    """A UUID in its hyphenated form, either case; None when the member is absent or null."""
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not str or _UUID.fullmatch(value) is None:
        raise FieldError(name, "must be a UUID such as 123e4567-e89b-12d3-a456-426614174000")
    return UUID(value)


def one_of(source: JsonObject, name: str, choices: Iterable[_E]) -> _E:
    """A required member of ``choices``."""
    value = optional_one_of(source, name, choices)
    if value is None:
        raise FieldError(name, "is required")
    return value


def optional_one_of(source: JsonObject, name: str, choices: Iterable[_E]) -> _E | None:
    """A member of ``choices``, which may be those of an enumeration; None when absent or null."""
    value = source.get(name)
    if value is None:
        return None
    for choice in choices:
        if value == choice:
            return choice
    raise FieldError(name, f"must be one of {', '.join(choices)}")
