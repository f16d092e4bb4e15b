"""The server process of a cluster, as its files tell: there or not, ready or not."""

from __future__ import annotations

import os
from pathlib import Path


def postmaster(cluster: Path) -> int | None:
    """Process id of the live server of ``cluster``; None when there is none.

    After a crash the pid file may name a process of somebody else: a server works in its cluster's folder.
    """
    lines = pid_file(cluster)
    if not lines or not lines[0].isdigit():
        return None
    pid = int(lines[0])
    process = Path("/proc") / str(pid)
    try:
        if process.parent.joinpath("self").exists():
            return pid if (process / "cwd").resolve() == cluster.resolve() and _breathes(process) else None
        os.kill(pid, 0)
    except OSError:
        return None
    return pid


def _breathes(process: Path) -> bool:
    """Whether a process is more than a dead one that its parent has not asked for yet."""
    return process.joinpath("stat").read_text("utf-8").rpartition(")")[2].split()[0] not in {"Z", "X"}


def pid_file(cluster: Path) -> list[str]:
    """The lines that the server wrote about itself; none without a server."""
    try:
        return (cluster / "postmaster.pid").read_text("utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def status(cluster: Path) -> str:
    """The state that the server writes to the eighth line of its pid file: "ready" when it takes logins."""
    return (pid_file(cluster)[7:8] or [""])[0].strip()


def remove_stale_pid_file(cluster: Path) -> None:
    """Only when nobody works in the cluster; PostgreSQL refuses while its user uses the number at all."""
    if postmaster(cluster) is None:
        (cluster / "postmaster.pid").unlink(missing_ok=True)
