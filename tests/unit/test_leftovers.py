"""Test runs that were killed leave nothing for long, and nothing of anybody else's is touched."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.embedded import place
from tests.support import leftovers

RUN = """
import tempfile, time
from pathlib import Path
from app.embedded import place
from tests.support import leftovers
leftovers.MEMORY = Path({memory!r})
tempfile.tempdir = {folder!r}
with leftovers.owned_folder() as folder:
    home = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX, dir=leftovers.MEMORY))
    (home / place.CLUSTER).mkdir()
    place.name_cluster(folder, home / place.CLUSTER)
    print("there", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Folders in place of the system's for temporary files and of its memory."""
    folder, memory = tmp_path / "tmp", tmp_path / "memory"
    folder.mkdir()
    memory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(leftovers, "MEMORY", memory)
    monkeypatch.setattr(place, "STATE_DIR", tmp_path / "state")
    return folder, memory


def test_what_a_killed_run_left_is_removed_and_what_a_live_one_has_is_not(places: tuple[Path, Path]) -> None:
    folder, memory = places
    program = RUN.format(memory=str(memory), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "there\n"
            leftovers.sweep()
            assert len(list(folder.iterdir())) == len(list(memory.iterdir())) == 1
        finally:
            run.send_signal(signal.SIGKILL)
    leftovers.sweep()
    assert not list(folder.iterdir())
    assert not list(memory.iterdir())


def test_folders_of_others_are_left_alone(places: tuple[Path, Path], tmp_path: Path) -> None:
    folder, memory = places
    kept = [folder / f"{leftovers.PREFIX}without-a-lock", folder / "another", memory / f"{leftovers.PREFIX}x"]
    for path in kept:
        (path / place.CLUSTER).mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere" / place.CLUSTER
    elsewhere.mkdir(parents=True)
    dead = folder / f"{leftovers.PREFIX}dead"
    dead.mkdir()
    (dead / leftovers.OWNER_FILE).touch()
    place.name_cluster(dead, elsewhere)
    leftovers.sweep()
    assert not dead.exists()
    assert elsewhere.exists()
    assert all(path.exists() for path in kept)


def test_clusters_of_a_pytest_that_is_gone_are_removed(places: tuple[Path, Path]) -> None:
    folder, _ = places
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    homes = {}
    for name, pid in (("pytest-1", ended.pid), ("pytest-2", os.getpid()), ("pytest-3", None)):
        session = folder / f"pytest-of-{getpass.getuser()}" / name
        homes[name] = place.STATE_DIR / name
        (homes[name] / place.CLUSTER).mkdir(parents=True)
        (session / "popen-gw0" / "data").mkdir(parents=True)
        place.name_cluster(session / "popen-gw0" / "data", homes[name] / place.CLUSTER)
        if pid is not None:
            (session / ".lock").write_text(str(pid))
    (place.STATE_DIR / "of-nobody-here").mkdir()
    leftovers.sweep()
    assert sorted(path.name for path in place.STATE_DIR.iterdir()) == ["of-nobody-here", "pytest-2"]
