"""A file of heads kept elsewhere: its form, how it is read, and how it is replaced as a whole.

One head a line, ``SEQ:HASH [CHAIN]``; CHAIN is a chain's log_uuid, ``tenant/agent`` or ``agent``. What
follows it is a comment, as are lines that begin with ``#``. ``trails verify --heads`` reads such files, and
the service keeps one (``TRAILS_HEADS_FILE``). Heads of one chain that differ at one seq contradict each
other: no chain can hold both.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

HEAD: Final = re.compile(r"(?P<seq>0|[1-9][0-9]{0,18}):(?P<hash>[0-9a-f]{64})")
LOG_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

TITLE: Final = (
    "# Heads that this service has seen: record:hash chain tenant/agent. trails verify --heads FILE"
)

_PAUSE_SECS: Final = 0.1

Hashes = Mapping[int, str]
"""Heads of one chain: hash by seq."""


class KeptHeads(msgspec.Struct, frozen=True):
    """What a file says.

    Attributes:
        heads: by the chain's name, as the line writes it.
        told: what stands behind a name, for people.
    """

    heads: Mapping[str, Hashes] = {}
    told: Mapping[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> KeptHeads:
        """Reads the text of a file.

        Raises:
            ValueError: says which line cannot be read, names no chain, or contradicts another one.
        """
        heads: dict[str, dict[int, str]] = {}
        told: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split(maxsplit=2)
            if not words or words[0].startswith("#"):
                continue
            match = HEAD.fullmatch(words[0])
            if match is None or len(words) == 1:
                raise ValueError(f"line {number} is not SEQ:HASH and the name of a chain")
            name = words[1].lower() if LOG_UUID.fullmatch(words[1].lower()) else words[1]
            if heads.setdefault(name, {}).setdefault(int(match["seq"]), match["hash"]) != match["hash"]:
                raise ValueError(f"line {number} contradicts an earlier one: two hashes of one record")
            told[name] = words[2] if len(words) == 3 else ""
        return cls(heads, told)

    @property
    def text(self) -> str:
        """The text of a file that says this."""
        lines = [
            f"{seq}:{digest} {name} {self.told.get(name, '')}".rstrip()
            for name, hashes in self.heads.items()
            for seq, digest in sorted(hashes.items())
        ]
        return "\n".join([TITLE, *lines, ""])


NO_HEADS: Final = KeptHeads()
"""Nothing was seen before."""


def read(path: Path) -> KeptHeads:
    """What the file says; nothing while there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no file of heads; says where.
    """
    try:
        return KeptHeads.parse(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        return NO_HEADS


def replace(path: Path, kept: KeptHeads) -> None:
    """Writes the file as a whole, 0600: who reads it, or a power cut, finds all of the old or of the new one.

    Raises:
        OSError: it cannot be written; the old one stands.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(kept.text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            draft.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def held(path: Path, *, wait_secs: float) -> Iterator[bool]:
    """Whether this process alone may replace the file within the block, for which it waits so long.

    Raises:
        OSError: the lock cannot be made.
    """
    deadline = time.monotonic() + wait_secs
    while (lock := take_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECS)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def take_lock(path: Path) -> int | None:
    """The lock on the file, beside which it lies, until it is closed; None while another process has it.

    Raises:
        OSError: it cannot be made.
    """
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock
