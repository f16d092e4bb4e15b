"""Puts measured figures into the guides: ``python -m tests.bench.page``.

It takes what ``make bench`` and ``make soak`` have written (bench-results.json, soak-results.json; one of
them is enough), keeps it beside this file, and renders the parts of the page between markers from what
is kept. So the page never shows a figure that no run has measured, and says on which machine and when.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from tests.bench import results, words
from tests.bench.machine import ROOT
from tests.bench.results import Results
from tests.bench.rows import Row
from tests.soak import report
from tests.soak.report import Report

PAGE: Final = ROOT / "app" / "guides" / "performance.md"
KEPT: Final = Path(__file__).parent / "figures"
BENCH: Final = KEPT / "bench.json"
SOAK: Final = KEPT / "soak.json"
COLUMNS: Final = ("work", "unit", "ours", "floor", "result", "at least", "aim", "CPU µs")
SOAK_COLUMNS: Final = ("request", "a second", "p50 ms", "p99 ms", "longest ms", "errors")

_PART: Final = re.compile(r"(<!-- (\w+): python -m tests\.bench\.page -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def rendered(page: str, bench: Results, soak: Report) -> str:
    """The page with these figures.

    Raises:
        ValueError: it has not exactly one part for each of both.
    """
    parts = {"bench": "\n".join(bench_lines(bench)), "soak": "\n".join(soak_lines(soak))}
    if [found[2] for found in _PART.finditer(page)] != list(parts):
        raise ValueError("the page has lost its markers")
    return _PART.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n\n{found[3]}", page)


def bench_lines(found: Results) -> Iterator[str]:
    """The table of the benchmark, and where it comes from."""
    yield from _table(COLUMNS, (_cells(row) for row in found.rows))
    yield ""
    origin = words.origin(found.machine, found.versions, found.date)
    yield f"{origin}.{_doubt(found.form, is_busy=found.machine.is_busy)}"


def soak_lines(found: Report) -> Iterator[str]:
    """What the soak test found, and its latencies."""
    for verdict in found.verdicts:
        yield f"- {verdict.name}: {'' if verdict.good else 'NOT '}{verdict.told}"
    yield ""
    yield from _table(SOAK_COLUMNS, found.cells())
    yield ""
    doubt = _doubt("quick" if found.is_short else "usual", is_busy=found.machine.is_busy)
    yield f"{found.minutes:g} minutes; {words.origin(found.machine, found.versions, found.date)}.{doubt}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        words.median(row.ours),
        f"{words.median(row.floor)} ({row.floor_name})" if row.floor is not None else "",
        words.result(row),
        words.goal(row, row.bound),
        words.goal(row, row.aim),
        words.cost(row.ours),
    )


def _table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def _doubt(form: str, *, is_busy: bool) -> str:
    if form == "quick":
        return " **A short trial run: these figures mean nothing.**"
    return " The machine was not quiet: believe CPU times, not rates." if is_busy else ""


@click.command(help=__doc__)
@click.option("--bench", type=click.Path(path_type=Path), default=ROOT / "bench-results.json")
@click.option("--soak", type=click.Path(path_type=Path), default=ROOT / "soak-results.json")
@click.option("--trial", is_flag=True, help="Take the figures of a short form, too.")
def main(*, bench: Path, soak: Path, trial: bool) -> None:
    """Keeps what there is of both, and renders the page from what is kept."""
    if bench.exists():
        measured = results.read(bench)
        if measured.form == "quick" and not trial:
            raise click.ClickException(f"{bench} is of the quick form, whose figures mean nothing")
        KEPT.mkdir(exist_ok=True)
        results.write(measured, BENCH)
    if soak.exists():
        soaked = report.read(soak)
        if soaked.is_short and not trial:
            raise click.ClickException(f"{soak} is of the short form, whose figures mean nothing")
        report.write(msgspec.structs.replace(soaked, samples=()), SOAK)
    text = rendered(PAGE.read_text("utf-8"), results.read(BENCH), report.read(SOAK))
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
