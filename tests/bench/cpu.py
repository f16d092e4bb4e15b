"""What a unit of work costs in CPU time: unlike a rate, it hardly depends on what else the machine does.

Read from /proc, so on Linux alone; elsewhere nothing is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psycopg

_TICKS = os.sysconf("SC_CLK_TCK")
_UTIME, _CHILDREN_STIME = 11, 14
"""Places of the times in /proc/PID/stat, counted behind the command: utime, stime, cutime, cstime."""

_PROC = Path("/proc")


class Meter:
    """Adds up the CPU time that a server process and the processes of its PostgreSQL spend on some work."""

    def __init__(self, server: int, database_url: str) -> None:
        self._server = server
        self._postgres = _postmaster(database_url)
        self._spent = [0.0, 0.0]
        self._units = 0

    def around(self, work: Callable[[], float], units: int) -> Callable[[], float]:
        """``work`` of so many units, metered whenever it is done."""

        def metered() -> float:
            before = self._read()
            result = work()
            self._spent = [
                total + now - then for total, now, then in zip(self._spent, self._read(), before, strict=True)
            ]
            self._units += units
            return result

        return metered

    def told(self) -> str:
        """Microseconds of a unit, server and PostgreSQL; empty where they cannot be read."""
        if not self._units or not any(self._spent):
            return ""
        server, postgres = (seconds / self._units * 1e6 for seconds in self._spent)
        return f"{server:,.0f} + {postgres:,.0f}"

    def _read(self) -> tuple[float, float]:
        workers = _children(self._postgres)
        return _seconds(self._server), _seconds(self._postgres) + sum(map(_seconds, workers))


def _postmaster(database_url: str) -> int:
    """The process that made the one which serves a connection; 0 where it is not on this machine."""
    with psycopg.connect(database_url) as connection:
        backend = connection.info.backend_pid
        fields = _stat(backend)
    return int(fields[1]) if fields else 0


def _children(process: int) -> list[int]:
    try:
        return [int(child) for child in (_PROC / f"{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def _seconds(process: int) -> float:
    """CPU seconds of a process and of those children that have ended; 0 if it is gone."""
    return sum(map(int, _stat(process)[_UTIME : _CHILDREN_STIME + 1])) / _TICKS


def _stat(process: int) -> list[str]:
    try:
        return (_PROC / f"{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
