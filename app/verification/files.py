"""Verifying exported files: what ``trails verify FILE`` does. Needs no database and no server package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO, Final

import msgspec

from app.chain.audit import ChainAudit, missing_record
from app.chain.export import ExportReader
from app.chain.keys import PublicKey
from app.chain.record import DOMAIN, SignedRecord, split_line
from app.chain.report import Report
from app.chain.trust import trusted_key
from app.chain.verdict import Verdict, worst
from app.errors import ChainError, FormatError
from app.fold.compare import SnapshotCheck
from app.fold.fold import ChainId
from app.guard.fields import FieldError
from app.principal import ADMINISTRATION
from app.verification.anchors import Anchor, checkpoints, contradiction
from app.verification.chunks import Lines, ProvenLines, Shared
from app.verification.exported import (
    STDIN,
    FileOptions,
    Progress,
    Said,
    lines_of,
    opened,
    record_text,
    said_in,
    sizes,
)
from app.verification.marks import Mark, Marked, MarkWriter
from app.verification.outcome import MarkWord, Outcome, reason_of
from app.verification.whole import NO_EVIDENCE, verify_whole
from app.workers import worker_pool

FORMAT: Final = DOMAIN.decode().strip()
"""The one format that this version verifies."""

_TOLD_EVERY: Final = 500
"""Lines after which it is said how far the file is verified."""

LONG_BYTES: Final = 16 * 1024 * 1024
"""A file of so many bytes is worth starting processes for."""

_SKIPPED_AT_ONCE: Final = 1024 * 1024
_MAX_AHEAD: Final = 64
_MAX_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Lines and bytes before the first record that are kept: whoever puts more there hides whose chain it is."""

_FAMILY: Final = "lineage-audit-"
_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class FileMarks(msgspec.Struct, frozen=True):
    """The mark that files go on from, and who keeps what the next one says."""

    before: Mark | None = None
    writer: MarkWriter | None = None

    def find(self, name: str) -> Marked | None:
        """How far the chain of this name was verified."""
        told = () if self.before is None else self.before.chains
        return next((chain for chain in told if chain.name == name), None)


NO_MARKS: Final = FileMarks()


def verify_file(
    name: str,
    options: FileOptions,
    progress: Progress = lambda _: None,
    *,
    shared: Shared | None = None,
    marks: FileMarks = NO_MARKS,
) -> list[Outcome]:
    """Verifies one exported file; ``-`` is standard input. What cannot be read is an outcome too.

    A file of export lines is one chain; what says of itself what it holds may hold many (``verify_whole``).

    Args:
        name: the file's.
        options: what the command line says.
        progress: told how many bytes were read.
        shared: workers for a file that is long.
        marks: where to go on from, and who is told how far it is.
    """
    reading = _Reading(name, options, marks)
    try:
        with opened(name) as file:
            whole = verify_whole(name, file, options, progress, shared)
            if whole is not None:
                return whole
            _read(file, reading, progress, shared)
        return [reading.outcome()]
    except Exception as error:  # noqa: BLE001  a defect must neither look like a verdict nor hide one
        return [reading.interrupted(reason_of(error))]


def verify_files(
    names: Sequence[str],
    options: FileOptions,
    progress: Progress,
    *,
    jobs: int = 1,
    marks: FileMarks = NO_MARKS,
) -> list[Outcome]:
    """Verifies files: long ones by several processes each, short ones one after the other."""
    with ExitStack() as stack:
        shared: Shared | None = None
        outcomes: list[Outcome] = []
        for name in names:
            is_long = jobs > 1 and (sizes([name]) or 0) >= LONG_BYTES
            if is_long and shared is None:
                shared = Shared(stack.enter_context(worker_pool(jobs)), jobs)
            outcomes += verify_file(name, options, progress, shared=shared if is_long else None, marks=marks)
        return outcomes


def _read(file: BinaryIO, reading: _Reading, progress: Progress, shared: Shared | None) -> None:
    lines = _lines(file, progress)
    for line in lines:
        reading.take(line)
        if reading.begun:
            break
    if (offset := reading.go_on()) is not None:
        _skip_to(file, offset, reading.end, progress)
        reading.skipped_to(offset)
        for line in lines:
            reading.take(line)
            break
    if shared is not None and reading.name != STDIN:
        Lines(reading.name, file, shared.executor, shared.jobs).read(reading, progress)
    for number, line in enumerate(lines, 1):
        reading.take(line)
        if number % _TOLD_EVERY == 0:
            reading.tell()


def _skip_to(file: BinaryIO, offset: int, at: int, progress: Progress) -> None:
    """Moves on from ``at``; a pipe has to be read for that."""
    progress(offset - at)
    if file.seekable():
        file.seek(offset)
        return
    while at < offset and (read := len(file.read(min(offset - at, _SKIPPED_AT_ONCE)))):
        at += read


class _Reading:
    """Reads one file. Whose chain it is, the first line says that ends like a record.

    Lines before it that name a newer format are set aside: what follows them is verified all the same.
    """

    def __init__(self, name: str, options: FileOptions, marks: FileMarks) -> None:
        self.name = self._name = name
        self.end = 0
        """Bytes read."""

        self._last = 0
        self._marks = marks
        self._marked: Marked | None = None
        self._recalling = False
        self._options = options
        self._ahead: list[bytes] = []
        self._ahead_bytes = 0
        self._newer: str | None = None
        self._first = b""
        self._said = Said()
        self._anchors: list[Anchor] = []
        self._reader: ExportReader | None = None
        self._snapshots = SnapshotCheck(self._said.chain_id)

    def take(self, line: bytes) -> None:
        """The next line, with its line feed if it has one."""
        self._last, self.end = self.end, self.end + len(line)
        if self._recalling:
            self._recall(line)
            return
        if self._reader is not None:
            self._reader.take(line)
            return
        self._first = self._first or line
        text = record_text(line)
        newer = _newer_format(line if text is None else text.encode())
        self._newer = self._newer or newer
        if newer is None or text is not None:
            self._ahead.append(line)
            self._ahead_bytes += len(line)
        if text is not None or len(self._ahead) >= _MAX_AHEAD or self._ahead_bytes >= _MAX_AHEAD_BYTES:
            self._begin(text)

    @property
    def begun(self) -> bool:
        """Whether it is known whose chain it is."""
        return self._reader is not None

    @property
    def chain_id(self) -> ChainId:
        """The chain that the file is of, as its first record says."""
        return self._said.chain_id

    @property
    def key(self) -> PublicKey | None:
        """The key in force, if nothing is wrong so far."""
        audit = None if self._reader is None or self._newer is not None else self._reader.audit
        return None if audit is None or audit.position() is None else audit.key

    @property
    def checkpoints(self) -> dict[int, str]:
        """The heads kept elsewhere of this chain."""
        return checkpoints(self._anchors)

    def adopt(self, proven: ProvenLines, end: int) -> bool:
        """Takes lines up to ``end`` for verified that were proven; False if they may not be the next ones."""
        if self._reader is None:
            return False
        try:
            snapshots = self._snapshots.after(proven.gathered, proven.stretch.head)
        except ChainError:
            return False  # whoever reads the lines says which it is
        if not self._reader.audit.adopt(proven.stretch):
            return False
        self._compare_with(self._reader, snapshots)
        self._reader.records += proven.stretch.records
        self._last, self.end = proven.last, end
        self.tell()
        return True

    def go_on(self) -> int | None:
        """Where a line stands that was verified before, if the mark's word is taken for those before it.

        It is not if a head kept elsewhere is of a record before the mark, if the first line is another one,
        or if the mark does not say all that a snapshot behind it is to be compared with.
        """
        marked = self._marks.find(self._chain)
        reader = self._reader
        position = None if reader is None else reader.audit.position()
        if (
            marked is None
            or reader is None
            or position is None
            or position.head.seq
            or self._newer is not None
        ):
            return None
        told, seq = marked.position, marked.position.head.seq
        begins = (told.genesis_key, told.genesis) == (position.genesis_key, position.genesis)
        if not seq or not begins or any(kept < seq for kept in self.checkpoints):
            return None
        snapshots = self._compared_before(marked)
        if snapshots is None:
            return None
        self._compare_with(reader, snapshots)
        pinned = self._options.pinned
        reader.audit = ChainAudit.resume(
            told, pinned.get(told.genesis_key), self.checkpoints, pins=pinned.values()
        )
        self._marked, self._recalling = marked, True
        return marked.offset

    def _compared_before(self, marked: Marked) -> SnapshotCheck | None:
        """The comparison that goes on behind the mark; None if it has to begin at the first record."""
        if marked.fold is None or self._said.log_id == ADMINISTRATION:
            return None
        try:
            return SnapshotCheck.resume(self.chain_id, marked.fold, marked.position)
        except FieldError:  # of another version
            return None

    def _compare_with(self, reader: ExportReader, snapshots: SnapshotCheck) -> None:
        self._snapshots, reader.judge = snapshots, snapshots.push

    def skipped_to(self, offset: int) -> None:
        """What stands before ``offset`` is not read."""
        self.end = offset

    def tell(self) -> None:
        """Says how far the file is verified, for a mark, unless that is in the middle of an act."""
        writer = self._marks.writer
        position = None if self._reader is None else self._reader.audit.position()
        if writer is None or self._newer is not None:
            return
        resumed = self._marked is not None
        if position is None or self._recalling:
            writer.tell(self._chain, None, resumed=resumed)
            return
        try:
            fold = self._snapshots.said()
        except ValueError:
            return
        said, offset = self._said, self._last

        def marked(since: str) -> Marked:
            return Marked(
                name=self._chain,
                tenant=None,
                agent_id=said.log_id,
                log_uuid=said.log_uuid,
                position=position,
                since=since,
                fold=fold,
                offset=offset,
            )

        writer.tell(self._chain, marked, resumed=resumed)

    @property
    def _chain(self) -> str:
        """What the chain is called in a mark."""
        return self._said.log_uuid or self._said.log_id or self._name

    def _recall(self, line: bytes) -> None:
        """The line that was verified last must be there still."""
        self._recalling = False
        if self._reader is not None:
            self._reader.first, self._reader.records = False, 1
            self._reader.audit.recall(_signed(line))

    def outcome(self) -> Outcome:
        """What the whole file came to."""
        reader = self._reader or self._begin(None)
        if self._recalling and self._marked is not None:
            reader.audit.note(missing_record(self._marked.position.head.seq))
        self.tell()
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
        said, marked, before = self._said, self._marked, self._marks.before
        word = None
        if marked is not None and before is not None:
            word = MarkWord(marked.position.head.seq, before.written, marked.since)
            verdict = Verdict.RESUMED if verdict is Verdict.VERIFIED else verdict
        return Outcome(self._name, verdict, None, said.log_id, said.log_uuid, report, note, word)

    def _begin(self, text: str | None) -> ExportReader:
        """Enough was seen to know against which key and heads the file is held."""
        self._said = said = said_in(text)
        self._anchors = [
            anchor
            for anchor in self._options.anchors
            if anchor.belongs_to(tenant=None, agent_id=said.log_id, log_uuid=said.log_uuid)
        ]
        pinned = self._options.pinned
        self._reader = reader = ExportReader(
            trusted_key(text, pinned), checkpoints(self._anchors), pins=pinned.values()
        )
        self._compare_with(reader, SnapshotCheck(said.chain_id))
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
        if self._first.startswith(_PARQUET):
            return f"Parquet: {NO_EVIDENCE}"
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


def _signed(line: bytes) -> SignedRecord:
    try:
        return split_line(line.removesuffix(b"\n").decode("utf-8"))
    except (FormatError, UnicodeDecodeError):
        return SignedRecord("", "", "")


def _lines(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    return lines_of(file, progress)
