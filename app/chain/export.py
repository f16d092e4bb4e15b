"""Verifying an exported chain: a file of export lines, as bytes, whatever happened to it on the way.

A file that was re-saved is not the file that was exported: a byte order mark or CR before the line feeds is
reported once, as "file altered", and the records in it are verified all the same. A last line that stops in
the middle is a cut: the verdict is incomplete, since nobody can tell what stood there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from app.chain.audit import ChainAudit
from app.chain.keys import PublicKey
from app.chain.record import SignedRecord, VerifiedRecord, split_line
from app.chain.report import Report
from app.errors import ChainError, FormatError

_BEGINNING = b'{"actor":"'
"""How every record begins: the keys of canonical JSON are sorted."""

_BOM = b"\xef\xbb\xbf"

Judge = Callable[[VerifiedRecord, PublicKey], None]
"""Looks at a record that verified and the key in force behind it; raises a ``ChainError`` if it is false."""


def verify_export(
    lines: Iterable[bytes],
    trusted: PublicKey | None = None,
    checkpoints: Mapping[int, str] | None = None,
) -> Report:
    """Verifies the lines of an export, in memory that does not grow with their number.

    Args:
        lines: the file's lines with their line feeds, as iterating over a binary file gives them.
        trusted: the key that was pinned; without it the signer is only self-declared.
        checkpoints: hashes by seq that were kept elsewhere.
    """
    reader = ExportReader(trusted, checkpoints, pins=() if trusted is None else (trusted,))
    for line in lines:
        reader.take(line)
    return reader.report()


class ExportReader:
    """Verifies a file line by line; what was found so far may be asked at any time.

    ``records`` counts the lines that end like a record, and a cut one that begins so: a file without any is
    some other file. ``judge`` looks at every record that verified.
    """

    def __init__(
        self,
        trusted: PublicKey | None = None,
        checkpoints: Mapping[int, str] | None = None,
        *,
        pins: Iterable[PublicKey] = (),
    ) -> None:
        self.audit = ChainAudit(trusted, checkpoints, pins=pins)
        self.judge: Judge | None = None
        self.records = 0
        self.first = True
        self.carriage_returns = False

    def report(self) -> Report:
        """What was found so far; each way the file was altered is noted once."""
        return self.audit.report()

    def take(self, line: bytes) -> None:
        """Takes the next line, with its line feed if it has one."""
        line = self._without_marks(line)
        whole = line.endswith(b"\n")
        try:
            signed = split_line(line.removesuffix(b"\n").decode("utf-8"))
        except (FormatError, UnicodeDecodeError) as error:
            if whole:
                self.audit.add_unreadable(_as_format_error(error))
            elif line:
                self.records += line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
                self.audit.cut()
            return
        self.records += 1
        self._add(signed)

    def _add(self, signed: SignedRecord) -> None:
        record, key = self.audit.add(signed), self.audit.key
        if self.judge is None or record is None or key is None:
            return
        try:
            self.judge(record, key)
        except ChainError as error:
            self.audit.doubt(error)

    def _without_marks(self, line: bytes) -> bytes:
        """The line as it was exported; what was put around it is noted."""
        if self.first and line.startswith(_BOM):
            self.audit.note(FormatError("file altered: it begins with a byte order mark"))
            line = line.removeprefix(_BOM)
        self.first = False
        if not line.endswith((b"\r\n", b"\r")):
            return line
        if not self.carriage_returns:
            self.audit.note(FormatError("file altered: line endings (a carriage return was added)"))
        self.carriage_returns = True
        return line.rstrip(b"\r\n") + b"\n"


def _as_format_error(error: FormatError | UnicodeDecodeError) -> FormatError:
    return error if isinstance(error, FormatError) else FormatError("the line is not UTF-8")
