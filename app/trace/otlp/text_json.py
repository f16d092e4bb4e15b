"""JSON inside a string attribute: arguments, messages, results. What is no JSON stays the text it is."""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from app.chain.strict import MAX_MEMBERS, MAX_STRING, JsonValue, Parsed, is_plain, parse, quick
from app.errors import InvalidJsonError

MAX_PARSED_DEPTH: Final = 64
"""Deeper documents stay text: they must fit into a record, which stands some levels above them."""

_ENCODER: Final = msgspec.json.Encoder()
_SCALAR: Final = re.compile(
    r'true|false|null|-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,14}[1-9])?|".*"', re.DOTALL
)
_LONG_NUMBER: Final = re.compile(r"[0-9]{64}")


def parsed(text: str) -> Parsed:
    """The JSON value that ``text`` is, when a record can hold it as it is; else the text itself.

    Arguments may be no JSON at all, or a Python representation in a JSON string. A text with a duplicate key,
    NaN, U+0000, a lone surrogate or a number that would be spelt otherwise stays text: nothing gets lost.
    """
    raw = text.encode()
    if text[:1] not in _OPEN:
        scalar = quick(raw, _ENCODER, 1, MAX_STRING) if _SCALAR.fullmatch(text) is not None else None
        return scalar if scalar is not None else as_text(text)
    found = _respaced(text, raw) or quick(raw, _ENCODER, MAX_PARSED_DEPTH, MAX_STRING)
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


def _respaced(text: str, raw: bytes) -> Parsed | None:
    """The value of a text as ``json.dumps`` writes it, with a space after comma and colon; None in doubt.

    What equals its own spelling has no duplicate key and no odd escape. Most libraries write their attributes
    like this, and the thorough way takes ten times as long.
    """
    if ": " not in text and ", " not in text:
        return None
    if text.count("{") + text.count("[") > MAX_PARSED_DEPTH or _LONG_NUMBER.search(text) is not None:
        return None
    if "\\u0000" in text or text.count(",") >= MAX_MEMBERS:
        return None
    plain = True

    def read_float(written: str) -> float:
        nonlocal plain
        value = float(written)
        plain = plain and is_plain(value)
        return value

    try:
        value: JsonValue = msgspec.json.Decoder(float_hook=read_float).decode(raw)
    except (ValueError, RecursionError):
        return None
    if json.dumps(value, ensure_ascii=False) == text or json.dumps(value) == text:
        return Parsed(value, plain)
    return None
