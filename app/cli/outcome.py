"""What a verification came to, for people and for programs: text, JSON and exit code from one value.

Text, JSON and exit code are three views of one ``Run``, so they cannot disagree (case C21).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.chain.canonical import canonical
from app.chain.report import Fault, Report
from app.chain.strict import JsonObject
from app.chain.verdict import Verdict, worst
from app.errors import TrailsError
from app.text import printable

PIPE_WIDTH: Final = 200
"""Columns when nobody looks: a reason stays on its line, for grep."""

ANCHORED: Final = "complete up to seq {seq}, which a head kept elsewhere confirms"
DATABASE_ONLY: Final = (
    "complete up to what this database knows; only a head kept elsewhere (--checkpoint, --heads) "
    "proves that no tail was cut"
)
FILE_ONLY: Final = (
    "complete up to its own last record; only a head kept elsewhere (--checkpoint, --heads) "
    "proves that no tail was cut"
)
_SEALED: Final = "complete as of "
SEALED: Final = _SEALED + "{sealed}; only a head kept elsewhere (--checkpoint, --heads) tells more"

SOUND: Final = frozenset({Verdict.VERIFIED, Verdict.RESUMED, Verdict.SELF_DECLARED})

_STYLES: Final = {
    Verdict.VERIFIED: "green",
    Verdict.RESUMED: "yellow",
    Verdict.SELF_DECLARED: "yellow",
    Verdict.NOTHING: "yellow",
    Verdict.UNCHECKED: "yellow",
    Verdict.OTHER_KEY: "red",
    Verdict.INCOMPLETE: "red",
    Verdict.TAMPERED: "bold red",
}


class MarkWord(msgspec.Struct, frozen=True):
    """What was not read but taken for verified: records up to ``seq``, on the word of a mark.

    ``written`` is when that was, ``since`` when a verification began that read the chain from its beginning.
    """

    seq: int
    written: str
    since: str

    @property
    def told(self) -> str:
        """The same as a sentence."""
        return f"up to seq {self.seq} on the word of the mark of {self.written} (read last on {self.since})"

    def to_json(self) -> JsonObject:
        """The same as JSON."""
        return {"seq": self.seq, "records": self.seq, "written": self.written, "since": self.since}


class Outcome(msgspec.Struct, frozen=True):
    """One chain, or one input that held none.

    ``source`` is the file's name or "database"; ``note`` says why there is no report, or what else matters.
    """

    source: str
    verdict: Verdict
    tenant: str | None = None
    agent_id: str | None = None
    log_uuid: str | None = None
    report: Report | None = None
    note: str = ""
    mark: MarkWord | None = None
    sealed: str | None = None
    """What vouches for the end of the chain beside its records: the signed statement of an export."""

    @property
    def name(self) -> str:
        """How the chain is called in a table."""
        parts = (self.tenant, self.agent_id)
        return "/".join(part for part in parts if part) or self.source

    @property
    def checked(self) -> int:
        """Records that were looked at."""
        return 0 if self.report is None else self.report.checked

    @property
    def completeness(self) -> str | None:
        """How far the chain is known to be complete; None when it is not sound anyway."""
        if self.report is None or self.verdict not in SOUND:
            return None
        if self.report.anchored_to is not None:
            return ANCHORED.format(seq=self.report.anchored_to)
        if self.sealed is not None:
            return SEALED.format(sealed=self.sealed)
        return DATABASE_ONLY if self.source == "database" else FILE_ONLY

    def to_json(self) -> JsonObject:
        """The outcome as JSON."""
        report = {} if self.report is None else self.report.to_json()
        return {
            **report,
            "source": printable(self.source),
            "tenant": self.tenant,
            "agent_id": self.agent_id,
            "log_uuid": self.log_uuid,
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "checked": self.checked,
            "completeness": self.completeness,
            "note": printable(self.note) or None,
            "mark": None if self.mark is None else self.mark.to_json(),
        }


class Finding(msgspec.Struct, frozen=True):
    """Something that concerns no single chain."""

    verdict: Verdict
    what: str
    reason: str


class Run(msgspec.Struct, frozen=True):
    """A whole verification."""

    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The gravest of all: broken outranks what could not be checked (case C22)."""
        if not self.outcomes and not self.findings:
            return Verdict.NOTHING
        return worst(
            [outcome.verdict for outcome in self.outcomes] + [found.verdict for found in self.findings]
        )

    @property
    def checked(self) -> int:
        """Records that were looked at, over all chains."""
        return sum(outcome.checked for outcome in self.outcomes)

    @property
    def on_a_marks_word(self) -> tuple[int, str] | None:
        """How many records were taken for verified unread, and when the mark that says so was written."""
        words = [outcome.mark for outcome in self.outcomes if outcome.mark is not None]
        return (sum(word.seq for word in words), words[0].written) if words else None

    @property
    def completeness(self) -> str | None:
        """The weakest statement on completeness that holds for all chains; None when not all are sound."""
        statements = [outcome.completeness for outcome in self.outcomes]
        if self.verdict not in SOUND or None in statements:
            return None
        weak = [text for text in statements if text in {DATABASE_ONLY, FILE_ONLY}]
        weak += [text for text in statements if text is not None and text.startswith(_SEALED)]
        return (
            weak[0] if weak else statements[0] if len(statements) == 1 else "complete up to the heads given"
        )

    def to_json(self) -> str:
        """The run as one line of JSON."""
        marked = self.on_a_marks_word
        return canonical(
            {
                "verdict": self.verdict.value,
                "exit_code": self.verdict.exit_code,
                "checked": self.checked,
                "completeness": self.completeness,
                "mark": None if marked is None else {"records": marked[0], "written": marked[1]},
                "chains": [outcome.to_json() for outcome in self.outcomes],
                "findings": [
                    {
                        "verdict": finding.verdict.value,
                        "what": finding.what,
                        "reason": printable(finding.reason),
                    }
                    for finding in self.findings
                ],
                "notes": list(self.notes),
            }
        )

    def print(self, console: Console) -> None:
        """The run as a table and a last line that says it all."""
        if self.outcomes:
            console.print(_table(self.outcomes))
        for outcome in self.outcomes:
            _print_further_faults(console, outcome)
        for finding in self.findings:
            console.print(_line(finding.verdict, f"{finding.what}: {finding.reason}"))
        for note in self.notes:
            console.print(Text(printable(f"note: {note}")))
        if len(self.outcomes) == 1 and (head := _head(self.outcomes[0])) is not None:
            console.print(Text(f"head: {head}"))
        if self.on_a_marks_word is not None and self._more:
            console.print(Text(self._more))
        console.print(_line(self.verdict, self._last_line()))

    def _last_line(self) -> str:
        records = f"{self.checked} record{'' if self.checked == 1 else 's'} checked"
        chains = len([outcome for outcome in self.outcomes if outcome.report is not None])
        where = f" in {chains} chains" if chains > 1 else ""
        marked = self.on_a_marks_word
        if marked is not None:
            return f"{records}{where}{_ON_A_MARKS_WORD.format(records=marked[0], written=marked[1])}"
        return f"{records}{where}" + (f"; {self._more}" if self._more else "")

    @property
    def _more(self) -> str:
        """What whoever reads the verdict should know besides."""
        return _ADVICE.get(self.verdict) or self.completeness or ""


_ON_A_MARKS_WORD: Final = (
    " now; {records} before them were not read: that they were sound is the word of the mark of {written}"
)
_ADVICE: Final = {
    Verdict.SELF_DECLARED: (
        "self-consistent, but the signer is not trusted: only the chain itself says whose key it is; "
        "pin the key with --public-key"
    ),
    Verdict.NOTHING: "nothing was verified",
    Verdict.UNCHECKED: "not everything could be looked at",
    Verdict.OTHER_KEY: (
        "self-consistent, but not begun with the pinned key: pin the one it began with only if whoever "
        "gave you the key vouches for it"
    ),
    Verdict.INCOMPLETE: "what is there is sound, but records are missing",
    Verdict.TAMPERED: "do not rely on these records",
}


def reason_of(error: Exception) -> str:
    """Why something could not be checked, as a sentence."""
    if isinstance(error, TrailsError):
        return error.message
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"an unexpected error, which is a defect of this program: {type(error).__name__}: {error}"


def console_for(*, stderr: bool = False) -> Console:
    """A console that interprets nothing in the text given to it."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("chain", "records", "verdict", "first fault", "head"):
        table.add_column(title, justify="right" if title == "records" else "left", overflow="fold")
    for outcome in outcomes:
        table.add_row(
            Text(printable(outcome.name)),
            Text(str(outcome.checked)),
            Text(outcome.verdict.value, style=_STYLES[outcome.verdict]),
            Text(printable(_first(outcome))),
            Text(_short_head(outcome)),
        )
    return table


def _first(outcome: Outcome) -> str:
    report = outcome.report
    if report is None or not report.first_faults:
        return outcome.note or _incomplete(report) or _other_key(report)
    more = f" (and {report.fault_count - 1} more)" if report.fault_count > 1 else ""
    return _fault(report.first_faults[0]) + more


def _incomplete(report: Report | None) -> str:
    if report is None:
        return ""
    if report.missing_checkpoints:
        head = "nothing" if report.head is None else f"seq {report.head.seq}"
        return f"ends at {head}, a head kept elsewhere says {report.missing_checkpoints[-1]}"
    return "cut in the middle of a record" if report.cut else ""


def _other_key(report: Report | None) -> str:
    other = None if report is None else report.other_key
    return "" if other is None else f"begins with key {other.begins_with.hex[:16]}…, not a pinned one"


def _fault(fault: Fault) -> str:
    where = "line" if fault.seq is None else "seq"
    run = f" and the next {fault.records - 1}" if fault.records > 1 else ""
    return f"{where} {fault.line if fault.seq is None else fault.seq}{run}: {fault.fault}: {fault.reason}"


def _print_further_faults(console: Console, outcome: Outcome) -> None:
    if outcome.report is None:
        return
    if outcome.note and outcome.report.first_faults:
        console.print(_line(outcome.verdict, f"{outcome.name}: {outcome.note}"))
    if outcome.verdict is Verdict.OTHER_KEY and outcome.report.other_key is not None:
        console.print(_line(outcome.verdict, f"{outcome.name}: {outcome.report.other_key.told}"))
    if outcome.mark is not None and not outcome.report.fault_count:
        console.print(_line(outcome.verdict, f"{outcome.name}: {outcome.mark.told}"))
    for fault in outcome.report.first_faults[1:]:
        console.print(_line(Verdict.TAMPERED, f"{outcome.name}: {_fault(fault)}"))
    unlisted = outcome.report.fault_count - len(outcome.report.first_faults)
    if unlisted > 0:
        console.print(_line(Verdict.TAMPERED, f"{outcome.name}: {unlisted} more faults are not listed"))


def _head(outcome: Outcome) -> str | None:
    head = None if outcome.report is None else outcome.report.head
    return None if head is None else f"{head.seq}:{head.hash}"


def _short_head(outcome: Outcome) -> str:
    head = None if outcome.report is None else outcome.report.head
    return "" if head is None else f"{head.seq}:{head.hash[:16]}…"


def _line(verdict: Verdict, text: str) -> Text:
    return Text.assemble((verdict.value, _STYLES[verdict]), ": ", printable(text))
