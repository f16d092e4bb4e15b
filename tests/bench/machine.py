"""On what something was measured: the machine, the versions, the day; nothing that names whose it is."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psycopg

ROOT = Path(__file__).resolve().parents[2]
BUSY_LOAD = 0.5
"""Processes that want to run on a machine that is not quiet."""


class Machine(msgspec.Struct, frozen=True):
    """What figures depend on besides the program."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    load: float
    """Processes that wanted to run in the minute before."""

    @property
    def is_busy(self) -> bool:
        """Whether something else ran."""
        return self.load > BUSY_LOAD


class Versions(msgspec.Struct, frozen=True):
    """What was measured."""

    python: str
    postgresql: str
    revision: str | None
    """Of git, with a ``+`` when files differ from it; None where there is none."""


def this_machine() -> Machine:
    """The machine at this moment."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return Machine(_processor(), cores, round(size, 1), system, round(os.getloadavg()[0], 2))


def versions(postgresql: str = "") -> Versions:
    """The versions in use; that of PostgreSQL is what a server said, empty when none ran."""
    return Versions(platform.python_version(), postgresql, _revision())


def postgresql_version(database_url: str) -> str:
    """What a server says that it is."""
    with psycopg.connect(database_url) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


def today() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _revision() -> str | None:
    head = _git("rev-parse", "--short=10", "HEAD")
    if not head:
        return None
    return f"{head}+" if _git("status", "--porcelain", "--untracked-files=no") else head


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
