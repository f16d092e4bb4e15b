"""The bytes of a body, plain or gzip, taken as they arrive and never further than the limit (case H02).

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


class Collected:
    """The bytes of a body that is not compressed, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._room = limit
        self._chunks: list[bytes] = []

    def take(self, chunk: bytes) -> None:
        """Takes what has arrived.

        Raises:
            PayloadTooLargeError: with it the body is larger than the limit.
        """
        self._add(chunk)

    def finish(self) -> bytes:
        """The whole body."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _add(self, chunk: bytes) -> None:
        self._room -= len(chunk)
        if self._room < 0:
            raise PayloadTooLargeError(self.limit)
        self._chunks.append(chunk)


class Inflated(Collected):
    """The same of a gzip body; the limit is that of what comes out, and of what goes in."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._compressed_room = limit
        self._members = 0
        self._member = zlib.decompressobj(_GZIP)
        self._begun = False

    def take(self, chunk: bytes) -> None:
        """Takes what has arrived, and inflates it.

        Raises:
            PayloadTooLargeError: the limit is passed.
            BadRequestError: it is not gzip.
        """
        self._compressed_room -= len(chunk)
        if self._compressed_room < 0:
            raise PayloadTooLargeError(self.limit)
        for start in range(0, len(chunk), _SLICE):
            self._inflate(chunk[start : start + _SLICE])

    def finish(self) -> bytes:
        """The whole body.

        Raises:
            BadRequestError: the last member is not complete.
        """
        if self._begun or not self._members:
            raise BadRequestError("the gzip body ends too early")
        return super().finish()

    def _inflate(self, data: bytes) -> None:
        while data:
            self._begun = True
            try:
                self._add(self._member.decompress(data, self._room + 1))
            except zlib.error:
                raise BadRequestError("the body is not gzip, or damaged") from None
            if not self._member.eof:
                return  # all of it is used: with anything left over, the limit would have been passed
            data = self._member.unused_data
            self._begun = False
            self._members += 1
            if self._members >= MAX_MEMBERS and data:
                raise BadRequestError(f"the gzip body has more than {MAX_MEMBERS} members")
            self._member = zlib.decompressobj(_GZIP)
