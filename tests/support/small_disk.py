"""A small disk that can be filled: a file system in memory, which takes the right to mount one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.leftovers import MEMORY, PREFIX

_BALLAST = "ballast"
_MIB = 1 << 20


class SmallDisk:
    """A mounted file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Takes all the room that is left."""
        ballast = os.open(self.path / _BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for piece in (_MIB, 4096):
                while _fits(ballast, piece):
                    pass
        finally:
            os.close(ballast)

    def clear(self) -> None:
        """Gives the room back."""
        (self.path / _BALLAST).unlink(missing_ok=True)


def _fits(file: int, size: int) -> bool:
    try:
        return os.write(file, bytes(size)) == size
    except OSError:
        return False


def _sweep(place: Path) -> None:
    """Unmounts what runs that were killed have left."""
    for path in place.glob(f"{PREFIX}disk-*-*"):
        owner = path.name.split("-")[3]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def small_disk(mib: int) -> Iterator[SmallDisk]:
    """A disk of so many MiB; skips the test where none can be mounted. Unmounted at the end, used or not."""
    place = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    _sweep(place)
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}disk-{os.getpid()}-", dir=place))
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "trails-test", str(path)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
        try:
            yield SmallDisk(path)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
    finally:
        path.rmdir()
