"""The wire format of protobuf, as far as it is walked before anything is parsed.

The library parses a message whole, in one go, and makes an object of each two bytes: sixteen megabytes of
empty messages take it half a gigabyte, and no other thread runs meanwhile. So the outer levels are walked
here, field by field and only up to a limit, and what is large is looked over before it is handed on.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

VARINT: Final = 0
LENGTH: Final = 2
FIXED: Final = {1: 8, 5: 4}
"""Bytes of the numbers that always take as many."""

_LONGEST_VARINT: Final = 10
_LARGEST_KEY: Final = 2**32 - 1

Shape: TypeAlias = "Mapping[int, Shape]"
"""The fields of a message that are messages themselves, by number."""


class WireError(Exception):
    """The bytes are no sequence of fields."""


def key(number: int) -> int:
    """The key of a field of bytes, text or a message."""
    return number << 3 | LENGTH


def fields(raw: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message ``raw[start:end]``: ``(key, where it begins, its payload, where it ends)``.

    Groups are refused: no message that can come here has any.

    Raises:
        WireError: a field is cut or malformed, found when it is reached.
    """
    at = start
    try:
        while at < end:
            begins = at
            found = raw[at]
            at += 1
            if found > 0x7F:
                found, at = _varint(raw, begins)
            payload = at
            kind = found & 7
            if kind == LENGTH:
                size = raw[at]
                at += 1
                if size > 0x7F:
                    size, at = _varint(raw, payload)
                payload = at
                at += size
            elif kind == VARINT:
                at += 1
                if raw[payload] > 0x7F:
                    _, at = _varint(raw, payload)
            elif kind in FIXED:
                at += FIXED[kind]
            else:
                raise WireError("a group, or no field at all")
            if at > end or not 8 <= found <= _LARGEST_KEY:
                raise WireError("a field that is cut, or malformed")
            yield found, begins, payload, at
    except IndexError:
        raise WireError("it ends too early") from None


def is_crowded(raw: bytes, start: int, end: int, shape: Shape, limit: int) -> bool:
    """Whether ``raw[start:end]`` has more than ``limit`` fields, those of messages in it included.

    What is malformed is left to the parser. At most ``limit`` fields are looked at.
    """
    waiting = [(start, end, shape)]
    left = limit
    while waiting:
        begins, ends, inner = waiting.pop()
        try:
            for found, _, payload, at in fields(raw, begins, ends):
                left -= 1
                if left < 0:
                    return True
                if found & 7 == LENGTH and (below := inner.get(found >> 3)) is not None:
                    waiting.append((payload, at, below))
        except WireError:
            pass
    return False


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """``(number, where it ends)``."""
    number = 0
    for place in range(_LONGEST_VARINT):
        byte = raw[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise WireError("a number of more than ten bytes")
