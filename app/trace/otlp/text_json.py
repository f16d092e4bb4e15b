"""JSON inside a string attribute: arguments, messages, results. What is no JSON stays the text it is."""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from app.chain.strict import MAX_STRING, JsonValue, Parsed, Writes, parse, quick
from app.errors import InvalidJsonError

MAX_PARSED_DEPTH: Final = 64
"""Deeper documents stay text: they must fit into a record, which stands some levels above them."""

_COMPACT: Final = msgspec.json.Encoder()
_SCALAR: Final = re.compile(
    r'true|false|null|-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,14}[1-9])?|".*"', re.DOTALL
)


def parsed(text: str) -> Parsed:
    """The JSON value that ``text`` is, when a record can hold it as it is; else the text itself.

    Arguments may be no JSON at all, or a Python representation in a JSON string. A text with a duplicate key,
    NaN, U+0000, a lone surrogate or a number that would be spelt otherwise stays text: nothing gets lost.
    """
    raw = text.encode()
    if text[:1] not in _OPEN:
        scalar = quick(raw, _COMPACT, 1, MAX_STRING) if _SCALAR.fullmatch(text) is not None else None
        return scalar if scalar is not None else as_text(text)
    found = quick(raw, _writer(text), MAX_PARSED_DEPTH, MAX_STRING)
    if found is not None:
        return found
    try:
        return parse(raw, max_depth=MAX_PARSED_DEPTH)
    except InvalidJsonError:
        return as_text(text)


def as_text(text: str) -> Parsed:
    """A text that is not to be read."""
    return Parsed(text, plain_numbers=True)


_OPEN: Final = frozenset("{[")


class _Spaced:
    """Writes as ``json.dumps`` does: with a space after comma and colon."""

    def __init__(self, *, ascii_only: bool) -> None:
        self._encode = json.JSONEncoder(ensure_ascii=ascii_only, check_circular=False).encode

    def encode(self, value: JsonValue, /) -> bytes:
        """The spelling of most libraries' attributes."""
        return self._encode(value).encode()


_ASCII: Final = _Spaced(ascii_only=True)
_UNICODE: Final = _Spaced(ascii_only=False)


def _writer(text: str) -> Writes:
    """Who may have written the text."""
    if ": " in text or ", " in text:
        return _ASCII if text.isascii() else _UNICODE
    return _COMPACT
