"""The walk: one value in, the same value without secrets out, and what was taken out of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.strict import JsonObject, JsonValue
from app.redaction.paths import Places, compile_paths
from app.redaction.patterns import (
    BUILT_IN,
    CARD_NUMBERS,
    MARK,
    MAX_KNOWN_CHARS,
    SECRET_MEMBERS,
    VERSION,
    Pattern,
    gate,
    holds_secret,
    is_pair,
)
from app.redaction.rules import RuleList

PATH_RULE: Final = "path"
"""What records call the rule of a member that a path of the list names."""

NAME_RULE: Final = "name"
"""The same of a member whose name itself held a secret."""

MAX_TOLD: Final = 100
"""Values that a record names one by one; ``count`` counts all of them."""

MAX_FOUND: Final = 10_000
"""Places in the texts of one record that are looked at one by one; then whole texts are taken out."""

MAX_STEP_CHARS: Final = 128
MAX_POINTER_CHARS: Final = 1_024
"""What is told of a name, and of where a value stood: names are what agents choose, too."""

NAMES: Final = 4_096
"""Names of members that are known to hold no secret themselves."""


class Removed(msgspec.Struct, frozen=True):
    """One value that was taken out, whole or in part: where it stood (RFC 6901), and by which rule."""

    path: str
    rule: str

    def to_json(self) -> JsonObject:
        """``{path, rule}``."""
        return {"path": self.path, "rule": self.rule}


Where = tuple["Where", str | int] | str
"""Where a value stands: what it stands in, and its name or index there; at first a JSON pointer."""


class Findings:
    """What was taken out of one record, and how much more will be looked at one by one.

    Attributes:
        removed: the first ``MAX_TOLD`` values.
        count: how many there are.
    """

    __slots__ = ("_left", "count", "removed")

    def __init__(self) -> None:
        self.removed: list[Removed] = []
        self.count = 0
        self._left = MAX_FOUND

    def add(self, at: Where, rule: str) -> None:
        """One value more."""
        self.count += 1
        if len(self.removed) < MAX_TOLD:
            self.removed.append(Removed(_pointer(at), rule))

    def scrub(self, pattern: Pattern, text: bytes) -> bytes:
        """``pattern.scrub`` within what is left."""
        scrubbed, found = pattern.scrub(text, self._left)
        self._left -= found
        return scrubbed


def _pointer(at: Where) -> str:
    """A JSON pointer (RFC 6901); what is very long in it is cut short."""
    steps: list[str] = []
    while not isinstance(at, str):
        at, step = at
        told = step if isinstance(step, str) else str(step)
        told = told if len(told) <= MAX_STEP_CHARS else f"{told[:MAX_STEP_CHARS]}…"
        steps.append(told.replace("~", "~0").replace("/", "~1"))
    path = "/".join([at, *reversed(steps)])
    return path if len(path) <= MAX_POINTER_CHARS else f"{path[:MAX_POINTER_CHARS]}…"


class Redactor:
    """Applies one list of rules; ``secret`` is what its seals are made with, known to the service alone."""

    def __init__(self, rules: RuleList, secret: bytes) -> None:
        self.rules = rules
        self._secret = secret
        self._patterns = [(one, gate([one])) for one in map(BUILT_IN.__getitem__, rules.patterns)]
        self._by_name = SECRET_MEMBERS.name in rules.patterns
        self._cards = CARD_NUMBERS.name in rules.patterns
        self._gate = gate([pattern for pattern, _ in self._patterns])
        self._paths = compile_paths(rules.paths)
        self._start = self._paths.start
        self._off = not rules.patterns and not rules.paths
        self._known_name: Callable[[str], str] = lru_cache(maxsize=NAMES)(self._scrubbed_name)

    def may_hold(self, text: str) -> bool:
        """Whether a canonical text can hold anything for the rules; False is certain."""
        return self._start is not None or not self._is_clean(text.encode())

    def value(self, value: JsonValue, at: Where, found: Findings) -> JsonValue:
        """A value without its secrets: the very object when it holds none.

        Args:
            value: any JSON value, ``$`` of the paths.
            at: where it stands in the record's payload.
            found: what was taken out is added here.
        """
        if self._off:
            return value
        try:
            raw = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):
            return value  # no JSON: no record can hold it
        if self._start is None and self._is_clean(raw):
            return value
        return self._walk(value, self._start, at, found)

    def text(self, text: str, at: str, found: Findings) -> str:
        """The same for free text, which no path reaches."""
        return text if self._off else self._scrub(text, at, found)

    def name(self, name: str, at: str, found: Findings) -> str:
        """The same for a short text that comes again and again, such as a tool's name."""
        return name if self._off or self._name(name) == name else self._scrub(name, at, found)

    def members(self, source: JsonObject, at: str, found: Findings, kept: frozenset[str]) -> JsonObject:
        """An object that is the record's own, each member ``$`` of the paths; those of ``kept`` stay.

        Args:
            source: the object.
            at: where it stands, a JSON pointer.
            found: what was taken out is added here.
            kept: names of members that say where something belongs.
        """
        left: JsonObject = {name: member for name, member in source.items() if name in kept}
        numbers: dict[str, int] = {}
        for name, member in source.items():
            if name in kept:
                continue
            here = name if self._off else self._name(name)
            if self._by_name and holds_secret(name, member):
                value = _taken(member, (at, here), SECRET_MEMBERS.name, found)
            else:
                value = self.value(member, (at, here), found)
            if here != name:
                found.add((at, here), NAME_RULE)
                here = _free(left, here, numbers)
            left[here] = value
        return left

    def note(self, found: Findings) -> JsonObject:
        """What a record says of it: ``{rules, patterns, count, values}``."""
        return {
            "rules": self.rules.version,
            "patterns": VERSION,
            "count": found.count,
            "values": [one.to_json() for one in found.removed],
        }

    def seal(self, value: JsonValue) -> str:
        """A digest (64 hex) that tells two values apart and lets nobody find out what was taken out of one.

        A plain hash would: with all else on record, a short password is found by trying.
        """
        return hmac.digest(self._secret, canonical(value).encode(), hashlib.sha256).hex()

    def _is_clean(self, text: bytes) -> bool:
        """Whether a text, or a value as JSON, holds nothing for the patterns; False is not certain."""
        return self._gate is None or self._gate(text) is None

    def _walk(self, value: JsonValue, places: Places | None, at: Where, found: Findings) -> JsonValue:
        kind = type(value)
        if kind is str:
            return self._scrub(value, at, found)  # type: ignore[arg-type]  # its type was checked
        if kind is dict:
            return self._object(value, places, at, found)  # type: ignore[arg-type]  # as above
        if kind is list:
            return self._array(value, places, at, found)  # type: ignore[arg-type]  # as above
        if self._cards and kind is int and CARD_NUMBERS.scrub(str(value).encode(), 1)[1]:
            found.add(at, CARD_NUMBERS.name)
            return MARK
        return value

    def _object(self, value: JsonObject, places: Places | None, at: Where, found: Findings) -> JsonObject:
        changed: JsonObject | None = None
        numbers: dict[str, int] = {}
        for name, member in value.items():
            here = self._name(name)
            path = (at, here)
            if self._by_name and is_pair(name, value):
                kept = _taken(member, path, SECRET_MEMBERS.name, found)
            else:
                kept = self._member(name, member, places, path, found)
            if kept is member and here == name:
                continue
            if changed is None:
                changed = dict(value)
            if here != name:
                found.add(path, NAME_RULE)
                del changed[name]
                here = _free(changed, here, numbers)
            changed[here] = kept
        return value if changed is None else changed

    def _member(
        self, name: str, member: JsonValue, places: Places | None, path: Where, found: Findings
    ) -> JsonValue:
        if places is not None:
            places, ends = self._paths.into(places, name)
            if ends:
                return _taken(member, path, PATH_RULE, found)
        if self._by_name and holds_secret(name, member):
            return _taken(member, path, SECRET_MEMBERS.name, found)
        return self._walk(member, places, path, found)

    def _array(
        self, value: list[JsonValue], places: Places | None, at: Where, found: Findings
    ) -> list[JsonValue]:
        changed: list[JsonValue] | None = None
        for index, item in enumerate(value):
            path, inner, ends = (at, index), places, False
            if places is not None:
                inner, ends = self._paths.into(places, index)
            kept = _taken(item, path, PATH_RULE, found) if ends else self._walk(item, inner, path, found)
            if kept is not item:
                if changed is None:
                    changed = list(value)
                changed[index] = kept
        return value if changed is None else changed

    def _name(self, name: str) -> str:
        return self._known_name(name) if len(name) <= MAX_KNOWN_CHARS else self._scrubbed_name(name)

    def _scrubbed_name(self, name: str) -> str:
        return self._scrub(name, "", Findings())

    def _scrub(self, text: str, at: Where, found: Findings) -> str:
        raw = text.encode()
        if self._is_clean(raw):
            return text
        for pattern, hinted in self._patterns:
            if hinted is None or hinted(raw) is None:
                continue
            scrubbed = found.scrub(pattern, raw)
            if scrubbed != raw:
                found.add(at, pattern.name)
                raw, text = scrubbed, scrubbed.decode()
        return text


def _taken(value: JsonValue, path: Where, rule: str, found: Findings) -> JsonValue:
    """The mark in the place of a value; nothing, true and false tell no secret and stay."""
    if value is None or value == MARK or type(value) is bool or value in ("", [], {}):
        return value
    found.add(path, rule)
    return MARK


def _free(members: JsonObject, name: str, numbers: dict[str, int]) -> str:
    """``name``, or with a number behind it where there is such a member; ``numbers``: the last given."""
    if name not in members:
        return name
    number = numbers.get(name, 1) + 1
    while f"{name} ({number})" in members:
        number += 1
    numbers[name] = number
    return f"{name} ({number})"
