"""Verifying files that say of themselves what they hold, and that it is all: an export cut short is found.

Such a file is JSON lines between a line that announces the statement at the end and that statement, a CSV
file with a column for it, or a bundle (``app.verification.bundle``). What it is its first bytes say. A file
that announces a statement and lacks it is incomplete, whatever stands in it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from app.chain.keys import PublicKey
from app.chain.statement import BEGINNING, CHAIN_END, CSV_COLUMN, ENDING, Statement, read_statement
from app.chain.verdict import Verdict
from app.errors import ChainError, FormatError, KeyMaterialError
from app.verification.bundle import ZIP, verify_bundle
from app.verification.chain import ChainOfFile, said_chain
from app.verification.chunks import Shared
from app.verification.end import ChainKeys, End, sealed, untrusted
from app.verification.exported import FileOptions, Progress, beginning, lines_of
from app.verification.outcome import Outcome, reason_of

_BOM: Final = b"\xef\xbb\xbf"
_CUT: Final = (
    "the statement that the file announces for its end is not there: the export broke off, or was cut"
)
_ALTERED: Final = "file altered: its SHA-256 is not the one that its last line says"
_BEHIND: Final = "file altered: something stands behind its last line"
NO_EVIDENCE: Final = (
    "no evidence: rows for reading, which nobody signed one by one; verify an export of the records as JSON "
    "lines, or a bundle"
)
"""Of CSV and Parquet."""

_COPY: Final = "whole as it was exported ({rows} rows), and " + NO_EVIDENCE


def verify_whole(
    name: str, file: BinaryIO, options: FileOptions, progress: Progress, shared: Shared | None = None
) -> list[Outcome] | None:
    """Verifies a file that says what it holds; None if it is another one, of which nothing was read then.

    ``shared`` are workers for the chains of a bundle that is long.
    """
    start = beginning(file)
    if start.startswith(ZIP) or _is_cut(start, ZIP):
        return verify_bundle(name, file, options, progress, shared)
    if start.removeprefix(_BOM).startswith(BEGINNING) or _is_cut(start, BEGINNING):
        return _Sealed(name, options).read(lines_of(file, progress))
    first = start.partition(b"\n")[0].rstrip(b"\r").removeprefix(_BOM)
    if first.endswith(b"," + CSV_COLUMN.encode()):
        return [_verify_csv(name, lines_of(file, progress))]
    return None


def _is_cut(start: bytes, beginning: bytes) -> bool:
    """Whether the file ends before it says what it is, and may have been such a one."""
    return 1 < len(start) < len(beginning) and beginning.startswith(start)


class _Announced(msgspec.Struct):
    """What the first line says, as far as it is needed; not verified until the end."""

    complete_chains: bool = True
    public_keys: list[dict[str, Any]] = []
    filter: dict[str, Any] = {}

    @property
    def view(self) -> bool:
        """Whether what follows are rows of a view."""
        return self.filter.get("view") is not None

    @property
    def keys(self) -> list[PublicKey]:
        """The keys that it names."""
        found = []
        for entry in self.public_keys:
            try:
                found.append(PublicKey.load(str(entry.get("public_key"))))
            except KeyMaterialError:
                continue
        return found


class _Head(msgspec.Struct):
    export: _Announced


class _ChainLine(msgspec.Struct):
    chain: dict[str, Any]


class _Sealed:
    """JSON lines with a statement at their end."""

    def __init__(self, name: str, options: FileOptions) -> None:
        self._name = name
        self._options = options
        self._digest = hashlib.sha256()
        self._announced = _Announced()
        self._statement: Statement | None = None
        self._troubles: list[tuple[Verdict, str]] = []
        self._outcomes: list[Outcome] = []
        self._chain: ChainOfFile | None = None
        self._keys: list[ChainKeys] = []
        self._rows = 0

    def read(self, lines: Iterator[bytes]) -> list[Outcome]:
        """All outcomes: of each chain, and of the file where that is not as it was exported."""
        try:
            self._begin(next(lines, b""))
            for line in lines:
                self._take(line)
        except Exception as error:  # noqa: BLE001  what could not be read must not hide what was found
            self._troubles.append((Verdict.UNCHECKED, reason_of(error)))
        if self._chain is not None and self._chain.has_lines:
            self._end_chain(None)
        self._judge()
        outcomes = [*self._outcomes, *self._of_the_file()]
        return outcomes or [Outcome(self._name, Verdict.NOTHING, note=self._nothing())]

    def _begin(self, line: bytes) -> None:
        self._digest.update(line)
        try:
            self._announced = msgspec.json.decode(line.removeprefix(_BOM), type=_Head).export
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            whole = line.endswith(b"\n")
            self._trouble(Verdict.TAMPERED if whole else Verdict.INCOMPLETE, "its first line cannot be read")

    def _take(self, line: bytes) -> None:
        if self._statement is not None:
            self._trouble(Verdict.TAMPERED, _BEHIND)
            return
        if line.startswith(ENDING):
            self._finish(line)
            return
        self._digest.update(line)
        if self._announced.view:
            self._rows += 1
        elif line.startswith(CHAIN_END) and line.endswith(b"\n"):
            self._end_chain(line)
        else:
            self._chain = self._chain or self._new_chain()
            self._rows += 1
            self._chain.take(line)

    def _new_chain(self) -> ChainOfFile:
        partial = not self._announced.complete_chains
        return ChainOfFile(self._name, self._options, self._announced.keys, partial=partial)

    def _end_chain(self, line: bytes | None) -> None:
        chain = self._chain or self._new_chain()
        self._chain = None
        said = None
        try:
            said = None if line is None else said_chain(msgspec.json.decode(line, type=_ChainLine).chain)
        except (FormatError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._trouble(Verdict.TAMPERED, f"a line that ends a chain cannot be read: {error}")
        if not chain.has_lines and said is not None and not said.records:
            return  # a filter that left nothing of it, or a chain without a record, which says so itself
        self._keys.append(chain.keys)
        outcome = chain.end(said)
        if outcome is not None:
            self._outcomes.append(outcome)

    def _finish(self, line: bytes) -> None:
        if not line.endswith(b"}\n") and not line.endswith(b"}"):
            if line.endswith(b"\n"):
                self._trouble(Verdict.TAMPERED, "file altered: line endings (a carriage return was added)")
            return
        try:
            self._statement = read_statement(line.removesuffix(b"\n").decode("utf-8"), "trailer")
        except (ChainError, UnicodeDecodeError) as error:
            if line.endswith(b"\n"):
                self._trouble(Verdict.TAMPERED, f"its last line: {error}")

    def _judge(self) -> None:
        """Holds the file against its statement."""
        statement = self._statement
        if statement is None:
            self._trouble(Verdict.INCOMPLETE, _CUT)
            return
        says = statement.says
        if (says.get("sha256"), says.get("rows")) != (self._digest.hexdigest(), self._rows):
            self._trouble(Verdict.TAMPERED, _ALTERED)
        if not self._troubles:
            self._look_at_signer(statement)

    def _look_at_signer(self, statement: Statement) -> None:
        end = End("its last line", "export", statement.says.get("taken_at"), statement.signed_by)
        pinned = self._options.pinned
        if (reason := untrusted(end, self._keys, pinned, self._announced.keys)) is not None:
            self._trouble(Verdict.OTHER_KEY, reason)
            return
        self._outcomes = sealed(end, self._outcomes, pinned)

    def _trouble(self, verdict: Verdict, reason: str) -> None:
        if (verdict, reason) not in self._troubles:
            self._troubles.append((verdict, reason))

    def _of_the_file(self) -> list[Outcome]:
        if self._troubles:
            return [Outcome(self._name, verdict, note=reason) for verdict, reason in self._troubles]
        if self._announced.view:
            return [Outcome(self._name, Verdict.UNCHECKED, note=_COPY.format(rows=self._rows))]
        return []

    def _nothing(self) -> str:
        wanted = self._options.agent_id
        return "the export holds no record" if wanted is None else f"no record of agent {wanted}"


def _verify_csv(name: str, lines: Iterator[bytes]) -> Outcome:
    """A CSV file: whether it is whole and as it was exported; evidence it never is."""
    digest, last = hashlib.sha256(), b""
    try:
        for line in lines:
            digest.update(last)
            last = line
    except OSError as error:
        return Outcome(name, Verdict.UNCHECKED, note=reason_of(error))
    statement = last.lstrip(b",")
    if not statement.startswith(b'"{""form"":') or not statement.endswith((b'}"\r\n', b'}"')):
        return Outcome(name, Verdict.INCOMPLETE, note=_CUT)
    try:
        found = read_statement(next(csv.reader([statement.decode("utf-8")]))[0], "trailer")
    except (ChainError, UnicodeDecodeError, csv.Error) as error:
        return Outcome(name, Verdict.TAMPERED, note=f"its last row: {error}")
    if found.says.get("sha256") != digest.hexdigest():
        return Outcome(name, Verdict.TAMPERED, note=_ALTERED)
    return Outcome(name, Verdict.UNCHECKED, note=_COPY.format(rows=found.says.get("rows")))
