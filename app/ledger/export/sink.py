"""A file to write to that keeps what is written until it is handed on: for what only writes to files."""

from __future__ import annotations

import io
from typing import Any


class Sink(io.RawIOBase):
    """Takes what is written until it is handed on; it cannot be gone back in."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def seekable(self) -> bool:
        """What was handed on is gone."""
        return False

    def write(self, data: Any) -> int:  # noqa: ANN401  any buffer
        """Keeps a copy."""
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def taken(self) -> bytes:
        """All that was written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data
