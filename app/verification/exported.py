"""What all that verifies files shares: options, opening and reading them, and what a record's line says."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from uuid import UUID

import msgspec

from app.chain.keys import PublicKey
from app.chain.record import split_line
from app.errors import FormatError
from app.fold.fold import ChainId
from app.verification import chunks
from app.verification.anchors import Anchor

STDIN: Final = "-"

_BEGINNING_BYTES: Final = 4_096
_NOBODY: Final = UUID(int=0)

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class FileOptions(msgspec.Struct, frozen=True):
    """What the command line says about files."""

    pinned: dict[str, PublicKey]
    anchors: Sequence[Anchor]
    agent_id: str | None = None


class Said(msgspec.Struct):
    """Whose chain the first record says this is; not verified yet, and proven with the rest."""

    log_id: str | None = None
    log_uuid: str | None = None

    @property
    def chain_id(self) -> ChainId:
        """The chain that its snapshots have to name; of one without an id they can name none."""
        try:
            log_uuid = UUID(self.log_uuid or "")
        except ValueError:
            log_uuid = _NOBODY
        return ChainId(_NOBODY, self.log_id or "", log_uuid, guarded=False)


class _Genesis(msgspec.Struct):
    payload: Said


def said_in(text: str | None) -> Said:
    """What a first record's text says of its chain; nothing of any other text."""
    try:
        return msgspec.json.decode(text or "", type=_Genesis).payload
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Said()


def record_text(line: bytes) -> str | None:
    """The signed text of a line that ends like a record; None of any other."""
    try:
        return split_line(line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").decode("utf-8")).text
    except (FormatError, UnicodeDecodeError):
        return None


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The file of this name, or standard input."""
    if name == STDIN:
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def lines_of(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """The lines with their line feeds; one that never ends is cut into lines that cannot verify."""
    while line := file.readline(chunks.MAX_LINE_BYTES):
        progress(len(line))
        yield line if len(line) < chunks.MAX_LINE_BYTES or line.endswith(b"\n") else line + b"\n"


def sizes(names: Iterable[str]) -> int | None:
    """Bytes of all files, for a progress bar; None when that is not known."""
    try:
        return sum(Path(name).stat().st_size for name in names if name != STDIN)
    except (OSError, ValueError):
        return None


def beginning(file: BinaryIO) -> bytes:
    """The first bytes of what is about to be read, which are read again afterwards."""
    if isinstance(file, io.BufferedReader):
        return file.peek(_BEGINNING_BYTES)[:_BEGINNING_BYTES]
    start = file.read(_BEGINNING_BYTES)
    file.seek(-len(start), io.SEEK_CUR)
    return start
