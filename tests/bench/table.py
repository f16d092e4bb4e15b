"""The results as a terminal shows them, in 100 columns."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench import words
from tests.bench.results import Results
from tests.bench.rows import Row

WIDTH = 100

_LEGEND = (
    "Medians of interleaved runs. result: ours as a multiple of the floor (x), ours less the floor (+), or "
    "ours. ±%: how far runs lie apart, ours/floor, in % of the median. CPU: microseconds of a unit of "
    "ours, server+PostgreSQL. gen: what the load generator took of one core, ours/floor, in %; where a "
    "machine is used up it limits both."
)


def show(results: Results, console: Console | None = None) -> None:
    """Prints the table, where the figures come from, and what else there is to say of a row."""
    console = console or Console(width=WIDTH, highlight=False)
    origin = words.origin(results.machine, results.versions, results.date)
    console.print(origin.replace("; ", "\n"), style="dim", markup=False)
    console.print(_table(results))
    console.print(_LEGEND, style="dim")
    told: dict[tuple[str, str], list[str]] = {}
    for row in results.rows:
        told.setdefault((row.key, row.note), []).append(row.name)
    for (_, note), names in told.items():
        if note:
            console.print(f"{names[0]}: {note}", style="dim", markup=False)
    if results.machine.is_busy:
        console.print(
            f"The machine was not quiet (load {results.machine.load:g}): believe CPU times, not rates.",
            style="yellow",
        )
    if results.form == "quick":
        console.print("The quick form shows that it works; its figures mean nothing.", style="yellow")


def _table(results: Results) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("work", no_wrap=True)
    for name in ("unit", "ours", "floor", "result", "least", "aim", "±%", "CPU", "gen"):
        table.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    for row in results.rows:
        table.add_row(
            row.name,
            row.unit,
            words.median(row.ours),
            words.median(row.floor),
            f"[{_style(row)}]{words.result(row)}[/]",
            words.goal(row, row.bound),
            words.goal(row, row.aim),
            words.spread(row),
            words.cost(row.ours),
            words.generator(row),
        )
    return table


def _style(row: Row) -> str:
    if row.bound is None:
        return "default"
    if not row.reaches(row.bound):
        return "red"
    return "green" if row.reaches(row.aim) else "yellow"
