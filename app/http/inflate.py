"""gzip that never comes out further than the limit (case H02).

What counts is what comes out, not what the body says of itself: the sizes in a gzip trailer are not looked at
before the data is. Several members after one another are one body; anything else behind a member is refused.
"""

from __future__ import annotations

import zlib
from typing import Final

from app.errors import BadRequestError, PayloadTooLargeError

MAX_MEMBERS: Final = 1_000
"""Members of one body: each costs a start, and empty ones would otherwise cost nothing to send."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_SLICE: Final = 16 * 1024
"""Compressed bytes taken at a time: what is left of them when a member ends is copied."""


def inflate(raw: bytes, limit: int) -> bytes:
    """What a gzip body holds. Other threads run meanwhile.

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes come out; no more than that were made.
        BadRequestError: it is not gzip, or damaged, or has too many members.
    """
    inflating = _Inflating(limit)
    for start in range(0, len(raw), _SLICE):
        inflating.take(raw[start : start + _SLICE])
    return inflating.finish()


def inflated_size(raw: bytes, limit: int) -> int:
    """How many bytes a gzip body holds, found by inflating it and keeping nothing. Raises as ``inflate``."""
    inflating = _Inflating(limit, keep=False)
    for start in range(0, len(raw), _SLICE):
        inflating.take(raw[start : start + _SLICE])
    inflating.finish()
    return inflating.size


class _Inflating:
    """A body on its way out."""

    def __init__(self, limit: int, *, keep: bool = True) -> None:
        self._keep = keep
        self._limit = self._room = limit
        self._chunks: list[bytes] = []
        self._members = 0
        self._member = zlib.decompressobj(_GZIP)
        self._begun = False

    @property
    def size(self) -> int:
        return self._limit - self._room

    def take(self, data: bytes) -> None:
        while data:
            self._begun = True
            self._add(data)
            if not self._member.eof:
                return  # all of it is used: with anything left over, the limit would have been passed
            data = self._member.unused_data
            self._begun = False
            self._members += 1
            if self._members >= MAX_MEMBERS and data:
                raise BadRequestError(f"the gzip body has more than {MAX_MEMBERS} members")
            self._member = zlib.decompressobj(_GZIP)

    def finish(self) -> bytes:
        if self._begun or not self._members:
            raise BadRequestError("the gzip body ends too early")
        return b"".join(self._chunks)

    def _add(self, data: bytes) -> None:
        try:
            chunk = self._member.decompress(data, self._room + 1)
        except zlib.error:
            raise BadRequestError("the body is not gzip, or damaged") from None
        self._room -= len(chunk)
        if self._room < 0:
            raise PayloadTooLargeError(self._limit)
        if self._keep and chunk:
            self._chunks.append(chunk)
