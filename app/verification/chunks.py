"""A long exported file in several processes: each proves lines by themselves, as workers of an audit do rows.

The process that verifies the file takes what was proven only where it has verified everything up to the
record that the first line follows, and reads itself whatever is in doubt: its verdict is that of one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from app.chain.audit import ChainAudit
from app.chain.keys import PublicKey
from app.chain.position import Stretch
from app.chain.reading import read_fields
from app.chain.record import Head, SignedRecord, split_line
from app.errors import ChainError, FormatError, UnavailableError
from app.fold.compare import Gathered, Gathering
from app.fold.fold import ChainId
from app.workers import DIED

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Of a file that is proven by one process at once, and the rest of the line that stands there."""

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""No record comes near it; a line without an end must not fill the memory."""

_AHEAD: Final = 2
_LONG_AGO: Final = -(2**62)


class Shared(msgspec.Struct, frozen=True):
    """Workers that read parts of a long file."""

    executor: Executor
    jobs: int


class Chunk(msgspec.Struct, frozen=True):
    """Whole lines of a file, from ``start`` to before ``end``; ``key`` may be in force there."""

    path: str
    start: int
    end: int
    chain_id: ChainId
    key: PublicKey
    checkpoints: Mapping[int, str]


class ProvenLines(msgspec.Struct, frozen=True):
    """Lines that were proven by themselves.

    ``gathered`` is what snapshots sum up of them, ``last`` where the last one begins.
    """

    stretch: Stretch
    gathered: Gathered
    last: int


def prove_lines(chunk: Chunk) -> ProvenLines | None:
    """Whether lines are sound if the record before them is the one that they name; None if in any doubt."""
    audit: ChainAudit | None = None
    gathering = Gathering(chunk.chain_id)
    first_us = at = 0
    try:
        with Path(chunk.path).open("rb") as file:
            file.seek(chunk.start)
            while file.tell() < chunk.end:
                at = file.tell()
                signed = _signed(file.readline(chunk.end - at))
                if audit is None:
                    fields = read_fields(signed.text)
                    before, first_us = Head(fields.seq - 1, fields.prev_hash, _LONG_AGO), fields.timestamp_us
                    audit = ChainAudit.suppose(before, chunk.key, chunk.checkpoints)
                record = audit.add(signed)
                if record is None or audit.key is None:
                    return None
                gathering.push(record, audit.key)
    except (ChainError, OSError, ValueError):
        return None
    stretch = None if audit is None else audit.stretch(first_us)
    return None if stretch is None else ProvenLines(stretch, gathering.done(), at)


def _signed(line: bytes) -> SignedRecord:
    """The record that a line is, as it was exported.

    Raises:
        FormatError, ValueError: it is not.
    """
    if not line.endswith(b"\n") or line.endswith(b"\r\n"):
        raise FormatError("the line is cut, or does not end as it was exported")
    return split_line(line.removesuffix(b"\n").decode("utf-8"))


class Reader(Protocol):
    """Who verifies the file."""

    @property
    def chain_id(self) -> ChainId:
        """The chain that the file is of."""

    @property
    def key(self) -> PublicKey | None:
        """The key in force, if nothing is wrong so far."""

    @property
    def checkpoints(self) -> Mapping[int, str]:
        """The heads kept elsewhere."""

    def take(self, line: bytes) -> None:
        """Verifies the next line."""

    def adopt(self, proven: ProvenLines, end: int) -> bool:
        """Takes lines up to ``end`` for verified that were proven; False if they may not be the next ones."""


class Lines:
    """Gives chunks of a file to workers, from where it stands on, and takes their proofs in order."""

    def __init__(self, path: str, file: BinaryIO, executor: Executor, jobs: int) -> None:
        self._path = path
        self._file = file
        self._executor = executor
        self._most = _AHEAD * jobs
        self._size = Path(path).stat().st_size

    def read(self, reader: Reader, progress: Callable[[int], None]) -> None:
        """Reads to the end, or to where something is wrong: the rest is to be read line by line then.

        Raises:
            UnavailableError: a worker is gone.
        """
        under_way: deque[tuple[int, int, Future[ProvenLines | None]]] = deque()
        following = self._file.tell()
        while True:
            while (key := reader.key) is not None and len(under_way) < self._most:
                end = self._end_of(following)
                if end is None:
                    break
                chunk = Chunk(self._path, following, end, reader.chain_id, key, reader.checkpoints)
                under_way.append((following, end, self._given(chunk)))
                following = end
            if not under_way:
                break
            start, end, future = under_way.popleft()
            proven = _answer(future)
            if proven is None or not reader.adopt(proven, end):
                self._file.seek(start)
                while self._file.tell() < end:
                    reader.take(self._file.readline())
            progress(end - start)
        self._file.seek(following)

    def _end_of(self, start: int) -> int | None:
        """Behind the line that stands ``CHUNK_BYTES`` further; None at the end and where a line has none."""
        if start >= self._size:
            return None
        self._file.seek(start + CHUNK_BYTES - 1)
        line = self._file.readline(MAX_LINE_BYTES)
        whole = line.endswith(b"\n") or self._file.tell() >= self._size
        return min(self._file.tell(), self._size) if whole else None

    def _given(self, chunk: Chunk) -> Future[ProvenLines | None]:
        try:
            return self._executor.submit(prove_lines, chunk)
        except BrokenProcessPool:
            raise UnavailableError(DIED) from None


def _answer(future: Future[ProvenLines | None]) -> ProvenLines | None:
    try:
        return future.result()
    except BrokenProcessPool:
        raise UnavailableError(DIED) from None
