"""Secrets that others put there for us: what Kubernetes, systemd and Docker mount into a service."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 4_096


def mounted_secret(path: Path) -> str:
    """The text of a mounted secret, without the space around it.

    Kubernetes mounts them behind symbolic links and lets a pod read them as a group, and systemd does much
    the same. So both may be; that everybody may read it, may not.

    Raises:
        ValueError: it is empty, too long, not ASCII, no plain file, or everybody may read or write it.
        OSError: it is not there, or may not be read.
    """
    # Opening a pipe would wait for whoever writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("must be a plain file")
        if mode & 0o007:
            raise ValueError(f"may be read by everybody; run: chmod o= {path}")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES or not content.strip() or not content.isascii():
        raise ValueError(f"must hold the secret and nothing else, at most {MOST_BYTES} bytes of ASCII")
    return content.decode("ascii").strip()
