"""Programs of others that check files for them: used where the machine has them, else the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"

_PLACES: Final = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin:/bin"
_SECS: Final = 60.0


def tool(name: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if found is None:
        pytest.skip(f"{name} is not installed on this machine")
    return found


def output_of(*command: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """What a program says, on both streams; fails with it when the program does."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
