"""Verifying exported files: what ``trails verify FILE`` does. Needs no database and no server package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from app.chain.export import ExportReader
from app.chain.keys import PublicKey
from app.chain.record import DOMAIN, split_line
from app.chain.report import Report
from app.chain.trust import trusted_key
from app.chain.verdict import Verdict, worst
from app.cli.anchors import Anchor, checkpoints, contradiction
from app.cli.outcome import Outcome, reason_of
from app.errors import FormatError

STDIN: Final = "-"

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""No record comes near it; a line without an end must not fill the memory."""

FORMAT: Final = DOMAIN.decode().strip()
"""The one format that this version verifies."""

_MAX_AHEAD: Final = 64
_MAX_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Lines and bytes before the first record that are kept: whoever puts more there hides whose chain it is."""

_FAMILY: Final = "lineage-audit-"
_GZIP: Final = b"\x1f\x8b"
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
    reading = _Reading(name, options)
    try:
        with _opened(name) as file:
            for line in _lines(file, progress):
                reading.take(line)
        return reading.outcome()
    except Exception as error:  # noqa: BLE001  a defect must neither look like a verdict nor hide one
        return reading.interrupted(reason_of(error))


class _Reading:
    """Reads one file. Whose chain it is, the first line says that ends like a record.

    Lines before it that name a newer format are set aside: what follows them is verified all the same.
    """

    def __init__(self, name: str, options: FileOptions) -> None:
        self._name = name
        self._options = options
        self._ahead: list[bytes] = []
        self._ahead_bytes = 0
        self._newer: str | None = None
        self._first = b""
        self._said = _Said()
        self._anchors: list[Anchor] = []
        self._reader: ExportReader | None = None

    def take(self, line: bytes) -> None:
        """The next line, with its line feed if it has one."""
        if self._reader is not None:
            self._reader.take(line)
            return
        self._first = self._first or line
        text = _text(line)
        newer = _newer_format(line if text is None else text.encode())
        self._newer = self._newer or newer
        if newer is None or text is not None:
            self._ahead.append(line)
            self._ahead_bytes += len(line)
        if text is not None or len(self._ahead) >= _MAX_AHEAD or self._ahead_bytes >= _MAX_AHEAD_BYTES:
            self._begin(text)

    def outcome(self) -> Outcome:
        """What the whole file came to."""
        reader = self._reader or self._begin(None)
        report = reader.report()
        if self._of_another():
            note = f"no record of agent {self._options.agent_id}: the file is of agent {self._said.log_id}"
            return Outcome(self._name, Verdict.NOTHING, note=note)
        unread = (report.checked > 0 or report.cut) and not reader.records
        if unread or (self._newer is not None and _says_nothing(report)):
            return Outcome(self._name, Verdict.UNCHECKED, note=self._no_export())
        verdicts, note = [report.verdict], ""
        if self._newer is not None:
            verdicts, note = [*verdicts, Verdict.UNCHECKED], self._no_export()
        if contradicting := contradiction(self._anchors):
            verdicts, note = [*verdicts, Verdict.TAMPERED], "; ".join(filter(None, (contradicting, note)))
        return self._outcome(worst(verdicts), report, note)

    def interrupted(self, reason: str) -> Outcome:
        """What was found before the file could not be read on: only faults count."""
        reader = self._reader
        report = None if reader is None or self._of_another() else reader.report()
        if report is None or reader is None or not reader.records or not report.fault_count:
            return Outcome(self._name, Verdict.UNCHECKED, note=reason)
        return self._outcome(Verdict.TAMPERED, report, reason)

    def _outcome(self, verdict: Verdict, report: Report, note: str) -> Outcome:
        said = self._said
        return Outcome(
            self._name, verdict, agent_id=said.log_id, log_uuid=said.log_uuid, report=report, note=note
        )

    def _begin(self, text: str | None) -> ExportReader:
        """Enough was seen to know against which key and heads the file is held."""
        self._said = said = _said(text)
        self._anchors = [
            anchor
            for anchor in self._options.anchors
            if anchor.belongs_to(tenant=None, agent_id=said.log_id, log_uuid=said.log_uuid)
        ]
        pinned = self._options.pinned
        self._reader = reader = ExportReader(
            trusted_key(text, pinned), checkpoints(self._anchors), pins=pinned.values()
        )
        for line in self._ahead:
            reader.take(line)
        self._ahead.clear()
        return reader

    def _of_another(self) -> bool:
        """Whether the file says that it is of another agent than the one asked for."""
        return self._options.agent_id is not None and self._said.log_id not in {None, self._options.agent_id}

    def _no_export(self) -> str:
        if self._newer is not None:
            return f"format {self._newer}, newer than this version, which knows {FORMAT}; use a newer trails"
        if self._first.startswith(_UTF16):
            return "not an export: UTF-16 text; exports are UTF-8"
        if self._first.startswith(_GZIP):
            return f"compressed with gzip; verify what is in it: gunzip -c {self._name} | trails verify -"
        return f"not an export of the format {FORMAT}"


def _says_nothing(report: Report) -> bool:
    """Whether no line could be read as a record of this format at all."""
    listed = report.fault_count == len(report.first_faults)
    return (
        report.head is None
        and listed
        and all(fault.fault == "format" and fault.seq is None for fault in report.first_faults)
    )


class _Versioned(msgspec.Struct):
    format: str


def _newer_format(document: bytes) -> str | None:
    try:
        named = msgspec.json.decode(document, type=_Versioned).format
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
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
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Said()


def _text(line: bytes) -> str | None:
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
    except (OSError, ValueError):
        return None
