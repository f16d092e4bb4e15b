"""Verifying exported files: what ``trails verify FILE`` does. Needs no database and no server package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from app.chain.export import verify_export
from app.chain.keys import PublicKey
from app.chain.record import DOMAIN, split_line
from app.chain.report import Report
from app.chain.trust import trusted_key
from app.chain.verdict import Verdict
from app.cli.anchors import Anchor, checkpoints
from app.cli.outcome import Outcome
from app.errors import FormatError

STDIN: Final = "-"

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""No record comes near it; a line without an end must not fill the memory."""

FORMAT: Final = DOMAIN.decode().strip()
"""The one format that this version verifies."""

_FAMILY: Final = "lineage-audit-"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class FileOptions(msgspec.Struct, frozen=True):
    """What the command line says about files."""

    pinned: dict[str, PublicKey]
    anchors: Sequence[Anchor]
    agent_id: str | None = None


def verify_file(name: str, options: FileOptions, progress: Progress = lambda _: None) -> Outcome:
    """Verifies one exported file; ``-`` is standard input. What cannot be read is an outcome too."""
    try:
        with _opened(name) as file:
            return _verify(name, _lines(file, progress), options)
    except OSError as error:
        return Outcome(name, Verdict.UNCHECKED, note=f"cannot be read: {error.strerror or error}")


def _verify(name: str, lines: Iterator[bytes], options: FileOptions) -> Outcome:
    first = next(lines, b"")
    if first.startswith(_UTF16):
        return Outcome(name, Verdict.UNCHECKED, note="not an export: UTF-16 text; exports are UTF-8")
    text = _first_text(first)
    said = _said(text)
    if options.agent_id is not None and said.log_id != options.agent_id:
        other = "no agent" if said.log_id is None else f"agent {said.log_id}"
        return Outcome(
            name, Verdict.NOTHING, note=f"no record of agent {options.agent_id}: the file is of {other}"
        )
    mine = [
        a for a in options.anchors if a.belongs_to(tenant=None, agent_id=said.log_id, log_uuid=said.log_uuid)
    ]
    report = verify_export(
        chain([first] if first else [], lines), trusted_key(text, options.pinned), checkpoints(mine)
    )
    if (note := _no_export(first, text, report)) is not None:
        return Outcome(name, Verdict.UNCHECKED, note=note)
    return Outcome(name, report.verdict, agent_id=said.log_id, log_uuid=said.log_uuid, report=report)


def _no_export(first: bytes, text: str | None, report: Report) -> str | None:
    """Why a file is no export that this version can read; None when it is one, sound or not."""
    newer = _newer_format(first if text is None else text.encode())
    if newer is not None:
        return f"format {newer}, newer than this version, which knows {FORMAT}; use a newer trails"
    # Not one line that ends like a record: some other file. A single one makes it an export, a broken one.
    unread = text is None and report.head is None and report.checked > 0
    if unread and all(fault.fault == "format" and fault.seq is None for fault in report.first_faults):
        return f"not an export of the format {FORMAT}"
    return None


class _Versioned(msgspec.Struct):
    format: str


def _newer_format(document: bytes) -> str | None:
    try:
        named = msgspec.json.decode(document, type=_Versioned).format
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return named if named.startswith(_FAMILY) and named != FORMAT else None


class _Said(msgspec.Struct):
    """Whose chain the first record says this is; not verified yet, and proven with the rest."""

    log_id: str | None = None
    log_uuid: str | None = None


class _Genesis(msgspec.Struct):
    payload: _Said


def _said(text: str | None) -> _Said:
    try:
        return msgspec.json.decode(text or "", type=_Genesis).payload
    except (msgspec.MsgspecError, UnicodeError):
        return _Said()


def _first_text(line: bytes) -> str | None:
    try:
        return split_line(line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").decode("utf-8")).text
    except (FormatError, UnicodeDecodeError):
        return None


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def _lines(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    """The lines with their line feeds; one that never ends is cut into lines that cannot verify."""
    while line := file.readline(MAX_LINE_BYTES):
        progress(len(line))
        yield line if len(line) < MAX_LINE_BYTES or line.endswith(b"\n") else line + b"\n"


def sizes(names: Iterable[str]) -> int | None:
    """Bytes of all files, for a progress bar; None when that is not known."""
    try:
        return sum(Path(name).stat().st_size for name in names if name != STDIN)
    except OSError:
        return None
