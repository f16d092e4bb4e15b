"""Canonical JSON: the one spelling of a value that is hashed and signed (RFC 8785).

RFC 8785 with two differences: an integer keeps its exact decimal digits, and keys are sorted by their UTF-8
bytes (which is the order of code points), not by UTF-16 units.

The work is done by msgspec's encoder, in C. What it could spell otherwise, floats, is handed to it in our
own spelling unless the two are known to agree; the property tests compare both with other implementations.
"""

from __future__ import annotations

import math
import re

import msgspec

from app.chain.strict import (
    LARGE,
    MAX_DIGITS,
    RECORD_DEPTH,
    JsonValue,
    Parsed,
    is_plain,
    parse,
    quick_as_it_stands,
)
from app.errors import InvalidJsonError

_ENCODER = msgspec.json.Encoder(order="sorted")
_AS_IT_IS = frozenset({str, bool, type(None)})
_INTEGER_LIMIT = 10**MAX_DIGITS
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_FIXED_POINT_DIGITS = 21
"""ECMAScript writes numbers below 10**21 without an exponent."""
_LEADING_ZEROS = -6
"""ECMAScript writes numbers from 10**-6 up without an exponent."""


def number(x: float) -> str:
    """A double as ECMAScript's ``Number::toString`` writes it (RFC 8785, section 3.2.2.3).

    Raises:
        InvalidJsonError: for NaN and infinities, which JSON does not have.
    """
    if not math.isfinite(x):
        raise InvalidJsonError(f"{x!r} is not a JSON number")
    if x == 0:
        return "0"
    sign = "-" if x < 0 else ""
    digits, point = _decimal(abs(x))
    if len(digits) <= point <= _FIXED_POINT_DIGITS:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= _FIXED_POINT_DIGITS:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if _LEADING_ZEROS < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _decimal(x: float) -> tuple[str, int]:
    """The shortest digits that read back as ``x``, and the place of the decimal point in them."""
    mantissa, _, exponent = repr(x).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    return digits.rstrip("0"), len(whole) - leading + int(exponent or 0)


def canonical(value: JsonValue) -> str:
    """The canonical text of any value of None, bool, int, float, str, list, tuple and dict.

    Raises:
        InvalidJsonError: NaN, infinity, an integer of more than ``MAX_DIGITS`` digits, a key that is no
            string, U+0000, a lone surrogate, a type that JSON does not have, or too many levels.
    """
    try:
        raw = _ENCODER.encode(_ready(value, 0))
    except UnicodeEncodeError:
        raise InvalidJsonError("a lone surrogate in a string") from None
    # ``in`` would take it for a number first, and raise and catch an error.
    if raw.find(b"\\u0000") >= 0 and _NUL.search(raw) is not None:
        raise InvalidJsonError("the character U+0000 in a string")
    return raw.decode()


def canonical_parsed(parsed: Parsed) -> str:
    """The canonical text of a strictly parsed document: in C throughout when its numbers are plain."""
    if parsed.plain_numbers:
        return _ENCODER.encode(parsed.value).decode()
    return canonical(parsed.value)


def with_member(text: str, name: str, value: JsonValue) -> str:
    """The canonical text of an object with one more member: the others are moved as they stand, in C.

    Args:
        text: canonical text of an object; it is believed.
        name: of the member, which replaces one of this name.
        value: of the member. Raises as ``canonical`` does.
    """
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    members[name] = msgspec.Raw(canonical(value).encode())
    return _ENCODER.encode(dict(sorted(members.items()))).decode()  # as ``sort_members`` does


def read_canonical(text: str, *, max_depth: int, max_string: int) -> tuple[JsonValue, bool]:
    """Parses a text strictly, and says whether it is in canonical form.

    Raises:
        InvalidJsonError: as ``parse`` raises it, and for a lone surrogate in ``text`` itself.
    """
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidJsonError("a lone surrogate in the text") from None
    found = quick_as_it_stands(raw, _ENCODER, max_depth, max_string)
    if found is not None:
        return found.value, True
    parsed = parse(raw, max_depth=max_depth, max_string=max_string)
    return parsed.value, canonical_parsed(parsed) == text


def _ready(value: object, depth: int) -> object:
    """The value as the encoder will spell it canonically; refuses what is not JSON."""
    if type(value) in _AS_IT_IS:
        return value
    if type(value) is int:
        return _integer(value)
    if type(value) is float:
        return value if math.isfinite(value) and is_plain(value) else msgspec.Raw(number(value).encode())
    if isinstance(value, str):
        return str.__str__(value)
    if depth >= RECORD_DEPTH:
        raise InvalidJsonError(f"nested deeper than {RECORD_DEPTH} levels")
    if isinstance(value, dict):
        members = {
            (key if type(key) is str else _key(key)): (
                member if type(member) in _AS_IT_IS else _ready(member, depth + 1)
            )
            for key, member in value.items()
        }
        return dict(sorted(members.items())) if len(members) > LARGE else members  # as ``sort_members`` does
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _AS_IT_IS else _ready(item, depth + 1) for item in value]
    raise InvalidJsonError(f"a value of type {type(value).__name__} is not JSON")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidJsonError(f"a key of type {type(key).__name__} is not JSON; keys are strings")
    return str.__str__(key)


def _integer(value: int) -> int:
    if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:
        raise InvalidJsonError(f"an integer of more than {MAX_DIGITS} digits")
    return value
