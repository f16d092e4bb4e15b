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
    SECRET_MEMBERS,
    VERSION,
    Pattern,
    gate,
    holds_secret,
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

NAMES: Final = 4_096
"""Names of members that are known to hold no secret themselves."""


class Removed(msgspec.Struct, frozen=True):
    """One value that was taken out, whole or in part: where it stood (RFC 6901), and by which rule."""

    path: str
    rule: str

    def to_json(self) -> JsonObject:
        """``{path, rule}``."""
        return {"path": self.path, "rule": self.rule}


class Findings:
    """What was taken out of one record, and how much more will be looked at one by one."""

    __slots__ = ("_left", "removed")

    def __init__(self) -> None:
        self.removed: list[Removed] = []
        self._left = MAX_FOUND

    def add(self, path: str, rule: str) -> None:
        """One value more."""
        self.removed.append(Removed(path, rule))

    def scrub(self, pattern: Pattern, text: bytes) -> bytes:
        """``pattern.scrub`` within what is left."""
        scrubbed, found = pattern.scrub(text, self._left)
        self._left -= found
        return scrubbed


class Redactor:
    """Applies one list of rules; ``secret`` is what its seals are made with, known to the service alone."""

    def __init__(self, rules: RuleList, secret: bytes) -> None:
        self.rules = rules
        self._secret = secret
        self._patterns = [BUILT_IN[name] for name in rules.patterns]
        self._by_name = SECRET_MEMBERS.name in rules.patterns
        self._cards = CARD_NUMBERS.name in rules.patterns
        self._gate = gate(self._patterns)
        self._paths = compile_paths(rules.paths)
        self._start = self._paths.start
        self._off = not rules.patterns and not rules.paths
        self._names: Callable[[str], str] = lru_cache(maxsize=NAMES)(
            lambda name: self._scrub(name, "", Findings())
        )

    def may_hold(self, text: str) -> bool:
        """Whether a canonical text can hold anything for the rules; False is certain."""
        return bool(self._start) or not self._is_clean(text.encode())

    def value(self, value: JsonValue, at: str, found: Findings) -> JsonValue:
        """A value without its secrets: the very object when it holds none.

        Args:
            value: any JSON value, ``$`` of the paths.
            at: where it stands in the record's payload, a JSON pointer.
            found: what was taken out is added here.
        """
        if self._off:
            return value
        try:
            raw = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):
            return value  # no JSON: no record can hold it
        if not self._start and self._is_clean(raw):
            return value
        return self._walk(value, self._start, at, found)

    def text(self, text: str, at: str, found: Findings) -> str:
        """The same for free text, which no path reaches."""
        return text if self._off else self._scrub(text, at, found)

    def note(self, removed: list[Removed]) -> JsonObject:
        """What a record says of it: ``{rules, patterns, count, values}``."""
        return {
            "rules": self.rules.version,
            "patterns": VERSION,
            "count": len(removed),
            "values": [one.to_json() for one in removed[:MAX_TOLD]],
        }

    def seal(self, value: JsonValue) -> str:
        """A digest (64 hex) that tells two values apart and lets nobody find out what was taken out of one.

        A plain hash would: with all else on record, a short password is found by trying.
        """
        return hmac.digest(self._secret, canonical(value).encode(), hashlib.sha256).hex()

    def _is_clean(self, text: bytes) -> bool:
        """Whether a text, or a value as JSON, holds nothing for the patterns; False is not certain."""
        return self._gate is None or self._gate(text) is None

    def _walk(self, value: JsonValue, places: Places, at: str, found: Findings) -> JsonValue:
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

    def _object(self, value: JsonObject, places: Places, at: str, found: Findings) -> JsonObject:
        changed: JsonObject | None = None
        for name, member in value.items():
            here = self._names(name)
            path = f"{at}/{here.replace('~', '~0').replace('/', '~1')}"
            kept = self._member(name, member, places, path, found)
            if kept is member and here == name:
                continue
            if changed is None:
                changed = dict(value)
            if here != name:
                found.add(path, NAME_RULE)
                del changed[name]
                here = _free(changed, here)
            changed[here] = kept
        return value if changed is None else changed

    def _member(self, name: str, member: JsonValue, places: Places, path: str, found: Findings) -> JsonValue:
        if places:
            places, ends = self._paths.into(places, name)
            if ends:
                return _taken(member, path, PATH_RULE, found)
        if self._by_name and holds_secret(name, member):
            return _taken(member, path, SECRET_MEMBERS.name, found)
        return self._walk(member, places, path, found)

    def _array(self, value: list[JsonValue], places: Places, at: str, found: Findings) -> list[JsonValue]:
        changed: list[JsonValue] | None = None
        for index, item in enumerate(value):
            path, inner, ends = f"{at}/{index}", places, False
            if places:
                inner, ends = self._paths.into(places, index)
            kept = _taken(item, path, PATH_RULE, found) if ends else self._walk(item, inner, path, found)
            if kept is not item:
                if changed is None:
                    changed = list(value)
                changed[index] = kept
        return value if changed is None else changed

    def _scrub(self, text: str, at: str, found: Findings) -> str:
        raw = text.encode()
        if self._is_clean(raw):
            return text
        for pattern in self._patterns:
            scrubbed = found.scrub(pattern, raw)
            if scrubbed != raw:
                found.add(at, pattern.name)
                raw, text = scrubbed, scrubbed.decode()
        return text


def _taken(value: JsonValue, path: str, rule: str, found: Findings) -> JsonValue:
    """The mark in the place of a value; nothing, true and false tell no secret and stay."""
    if value is None or value == MARK or type(value) is bool or value in ("", [], {}):
        return value
    found.add(path, rule)
    return MARK


def _free(members: JsonObject, name: str) -> str:
    """``name``, or with a number behind it when there is such a member."""
    number, free = 1, name
    while free in members:
        number += 1
        free = f"{name} ({number})"
    return free
