"""JSON inside a string attribute: arguments, messages, results. What is no JSON stays the text it is.

Arguments may be no JSON at all, or a Python representation in a JSON string. A text with a duplicate key,
NaN, U+0000, a lone surrogate or a number that would be spelt otherwise stays text: nothing gets lost.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

import msgspec

from app.chain.strict import MAX_DIGITS, MAX_MEMBERS, Parsed, has_long_digits, is_plain, parse
from app.errors import InvalidJsonError

MAX_PARSED_DEPTH: Final = 64
"""Deeper documents stay text: they must fit into a record, which stands some levels above them."""

_SCALAR: Final = re.compile(
    r'true|false|null|-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,14}[1-9])?|".*"', re.DOTALL
)
"""Numbers are read only where they are sure to be written the same again: ``1.50`` is a text."""

_BRACKETS: Final = frozenset("{[")
_DIGIT_STRIDE: Final = 16
_DIGIT_RUN: Final = re.compile(r"[0-9]{8}")
"""Over every 16th character: no run of more than 128 digits is without eight of these in a row."""


def parsed(text: str) -> Parsed:
    """The JSON value that ``text`` is, when a record can hold it as it is; else the text itself."""
    if text[:1] not in _BRACKETS and _SCALAR.fullmatch(text) is None:
        return as_text(text)
    try:
        if _needs_a_closer_look(text):
            return parse(text.encode(), max_depth=MAX_PARSED_DEPTH)
        return _quick(text) or _decoded(text)
    except (ValueError, RecursionError, InvalidJsonError):
        return as_text(text)


def _quick(text: str) -> Parsed | None:
    r"""By msgspec, which passes over a key that stands twice: the value written again has fewer quotes then.

    For a text without ``\u``: every other quote in it is one of its value's too, escaped in both. None if in
    doubt.
    """
    try:
        value = _QUICK_DECODER.decode(text)
        is_sound = _QUICK_ENCODER.encode(value).count(b'"') == text.count('"')
    except (ValueError, OverflowError, RecursionError, _OtherSpelling):
        return None
    return Parsed(value, plain_numbers=True) if is_sound else None


def _decoded(text: str) -> Parsed:
    """By the decoder that stops at a number of another spelling: nearly always there is none to look for."""
    try:
        return Parsed(_PLAIN_DECODER.decode(text), plain_numbers=True)
    except _OtherSpelling:
        return Parsed(_DECODER.decode(text), plain_numbers=False)


def as_text(text: str) -> Parsed:
    """A text that is not to be read."""
    return Parsed(text, plain_numbers=True)


def _needs_a_closer_look(text: str) -> bool:
    """Whether something beyond the hooks of the decoder may be wrong: depth, members, characters, digits."""
    length = len(text)
    return (
        "\\u" in text
        or (length > MAX_PARSED_DEPTH and text.count("{") + text.count("[") > MAX_PARSED_DEPTH)
        or (length > MAX_MEMBERS and text.count(",") >= MAX_MEMBERS)
        or (length > MAX_DIGITS and _has_long_digits(text))
    )


def _has_long_digits(text: str) -> bool:
    """Whether more than 128 digits stand in a row; every 16th character nearly always says that none do."""
    return _DIGIT_RUN.search(text[::_DIGIT_STRIDE]) is not None and has_long_digits(text.encode())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice")
    return members


class _OtherSpelling(Exception):  # noqa: N818  nothing is wrong: it is read in the other way
    """A float whose canonical spelling is not the encoder's."""


def _plain_float(written: str) -> float:
    value = _float(written)
    if not is_plain(value):
        raise _OtherSpelling
    return value


def _float(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ValueError("a number that overflows a double")
    return value


def _constant(written: str) -> NoReturn:
    raise ValueError(f"{written}, which is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_PLAIN_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_plain_float, parse_constant=_constant
)
_QUICK_DECODER: Final = msgspec.json.Decoder(float_hook=_plain_float)
_QUICK_ENCODER: Final = msgspec.json.Encoder()
