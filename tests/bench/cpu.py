"""What a unit of work costs in CPU time: unlike a rate, it hardly depends on what else the machine does.

Read from /proc, so on Linux alone; elsewhere nothing is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psycopg

_TICKS = os.sysconf("SC_CLK_TCK")
_UTIME, _CHILDREN_STIME = 11, 14
"""Places of the times in /proc/PID/stat, counted behind the command: utime, stime, cutime, cstime."""

_PROC = Path("/proc")
_KIB = 1024

T = TypeVar("T")


class Spent(msgspec.Struct, frozen=True):
    """Microseconds of CPU time of one unit of work: of the server process, and of PostgreSQL."""

    server: float
    postgres: float


class Meter:
    """Adds up the CPU time that server processes and the processes of their PostgreSQL spend on some work.

    Args:
        server: process id of the server, or of several; None: this process is what does the work.
        database_url: a database on the PostgreSQL server.
    """

    def __init__(self, server: int | Sequence[int] | None, database_url: str) -> None:
        own = os.getpid() if server is None else server
        self._servers = (own,) if isinstance(own, int) else tuple(own)
        self._postgres = postmaster(database_url)
        self._spent = [0.0, 0.0]
        self._units = 0

    def around(self, work: Callable[[], T], units: int) -> T:
        """Does ``work`` of so many units, metered."""
        before = self._read()
        result = work()
        for place, (now, then) in enumerate(zip(self._read(), before, strict=True)):
            self._spent[place] += now - then
        self._units += units
        return result

    def told(self) -> Spent | None:
        """What a unit cost; None where it cannot be read."""
        if not self._units or not any(self._spent):
            return None
        server, postgres = (seconds / self._units * 1e6 for seconds in self._spent)
        return Spent(server, postgres)

    def _read(self) -> tuple[float, float]:
        workers = children(self._postgres)
        ours = sum(map(_seconds, self._servers))
        return ours, _seconds(self._postgres) + sum(map(_seconds, workers))


class Stopwatch:
    """Wall time since it was made, and the share of one core that this process spent meanwhile."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Seconds, and the share (0 to 1)."""
        wall = time.perf_counter() - self._began[0]
        return wall, (time.process_time() - self._began[1]) / wall


class Memory(msgspec.Struct, frozen=True):
    """Bytes of memory of one process.

    Attributes:
        rss: resident.
        pss: its proportional share of that, since others map some of it, too.
        own: that part of its share which is no file and no memory made to be shared.
        peak: the most that ever was resident.
    """

    rss: int
    pss: int
    own: int
    peak: int


def memory(process: int) -> Memory:
    """What a process holds; all 0 where it cannot be read, or the process is gone."""
    rollup, status = (_fields(_PROC / str(process) / name) for name in ("smaps_rollup", "status"))
    return Memory(
        status.get("VmRSS", 0), rollup.get("Pss", 0), rollup.get("Pss_Anon", 0), status.get("VmHWM", 0)
    )


def postmaster(database_url: str) -> int:
    """The process that made the one which serves a connection; 0 where it is not on this machine."""
    with psycopg.connect(database_url) as connection:
        backend = connection.info.backend_pid
        fields = _stat(backend)
    return int(fields[1]) if fields else 0


def children(process: int) -> list[int]:
    """The processes that a process made and that are there."""
    try:
        return [int(child) for child in (_PROC / f"{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def exactly(process: int) -> float:
    """CPU seconds of a process that runs, to the nanosecond; 0 where it cannot be read."""
    try:
        return int((_PROC / f"{process}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def _fields(file: Path) -> dict[str, int]:
    """The members of such a file that are given in kB, in bytes."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {found[0].rstrip(":"): int(found[1]) * _KIB for found in words if len(found) == 3}


def _seconds(process: int) -> float:
    """CPU seconds of a process and of those children that have ended; 0 if it is gone."""
    return sum(map(int, _stat(process)[_UTIME : _CHILDREN_STIME + 1])) / _TICKS


def _stat(process: int) -> list[str]:
    try:
        return (_PROC / f"{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
