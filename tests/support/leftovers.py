"""What test runs that were killed left: clusters of 140 MB each, in memory or below the state folder.

A run holds a lock on a file in its folder as long as it lives, and the system lets go of it however it ends.
So a folder with such a file and nobody's lock is nobody's; what has no such file is somebody else's and is
left alone, and so is every cluster that no such folder names. Clusters that tests made below pytest's own
folders are left over when the run of that pytest is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.embedded import place, postmaster
from app.errors import StartupError

MEMORY: Final = Path("/dev/shm")  # noqa: S108  folders of our own are made in it

PREFIX: Final = "trails-test-"
OWNER_FILE: Final = "owner.lock"

_STOP_SECS: Final = 10.0


@contextmanager
def owned_folder() -> Iterator[Path]:
    """A folder of this run, removed at its end; if the run is killed, by the next one."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with (folder / f".{OWNER_FILE}").open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            # Under its own name only when it is locked: nobody finds it without its owner.
            (folder / f".{OWNER_FILE}").rename(folder / OWNER_FILE)
            yield folder


def sweep() -> None:
    """Removes what is left over from runs that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / OWNER_FILE).open("rb") as owner:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove_cluster(folder)
            shutil.rmtree(folder, ignore_errors=True)
    for session in (Path(tempfile.gettempdir()) / f"pytest-of-{getpass.getuser()}").glob("pytest-*"):
        if not session.is_symlink() and not _is_alive(session):
            for file in session.rglob(place.HOME_FILE):
                _remove_cluster(file.parent)


def _is_alive(session: Path) -> bool:
    """Whether the run of pytest whose folder this is goes on; its process id is in a file there."""
    try:
        os.kill(int((session / ".lock").read_text()), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return True
    return True


def _remove_cluster(data_dir: Path) -> None:
    """Stops and removes the cluster that a folder names, where it lies in a place of test runs."""
    try:
        cluster = place.named_cluster(data_dir)
    except StartupError:
        return
    home = None if cluster is None else cluster.parent
    if cluster is None or home is None or not home.exists():
        return
    if not (home.parent == MEMORY and home.name.startswith(PREFIX)) and home.parent != place.STATE_DIR:
        return
    deadline = time.monotonic() + _STOP_SECS
    while (pid := postmaster(cluster)) is not None and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
        time.sleep(0.05)
    shutil.rmtree(home, ignore_errors=True)
