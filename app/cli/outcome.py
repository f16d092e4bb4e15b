"""What a verification came to, as people read it: a table and a last line that says it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.chain.report import Fault, Report
from app.chain.verdict import Verdict
from app.text import printable
from app.verification.outcome import Outcome, Run

PIPE_WIDTH: Final = 200
"""Columns when nobody looks: a reason stays on its line, for grep."""

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


def print_run(run: Run, console: Console) -> None:
    """The run as a table and a last line that says it all."""
    if run.outcomes:
        console.print(_table(run.outcomes))
    for outcome in run.outcomes:
        _print_further_faults(console, outcome)
    for finding in run.findings:
        console.print(_line(finding.verdict, f"{finding.what}: {finding.reason}"))
    for note in run.notes:
        console.print(Text(printable(f"note: {note}")))
    if len(run.outcomes) == 1 and (head := _head(run.outcomes[0])) is not None:
        console.print(Text(f"head: {head}"))
    if run.on_a_marks_word is not None and run.advice:
        console.print(Text(run.advice))
    console.print(_line(run.verdict, run.conclusion))


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
