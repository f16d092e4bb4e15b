"""The soak test: a mixed load for a quarter of an hour, and verdicts (``make soak``)."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.bench.stage import stage
from tests.soak import plot, report, verdicts
from tests.soak.report import Report
from tests.soak.run import soak

RESULTS = Path("soak-results.json")
WIDTH = 100

_HELP = f"""Runs two server processes on one PostgreSQL of their own under a mixed load, and judges.

Agents ask, operators approve, outcomes are reported, traces, events and OTLP spans are posted, sessions, logs
and verifications are read, and two auditors ask the cookbook's questions about the last two minutes by SQL,
all at a steady rate well below what the machine could do. Memory, latencies, errors, connections and the
table's size are sampled every five seconds.

Judged at the end: no errors; trails verify finds everything intact; each acknowledged record is there once;
the memory of each server and of PostgreSQL grows by no more than {verdicts.SERVER_MIB_A_MINUTE:g} and
{verdicts.BACKENDS_MIB_A_MINUTE:g} MiB a minute in the second half; no p99 of the last third is above
{verdicts.SLOWER:g} times that of the first and {verdicts.SLOWER_MS:g} ms. What flat means is judged from
{verdicts.SHORTEST_MINUTES:g} minutes on. The exit code is 1 if a verdict is bad.

\b
Examples:
  make soak                       a quarter of an hour; writes {RESULTS}
  make soak SOAK_MINUTES=120      two hours
  python -m tests.soak --minutes 0.5    to see that it works
  python -m tests.bench.page      puts the figures into the guides
"""


@click.command(help=_HELP)
@click.option("--minutes", type=click.FloatRange(min=0.1), default=15.0, help="How long; default 15.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Where the JSON goes.")
@click.option("--json", "as_json", is_flag=True, help="Print nothing but the path of the JSON.")
def main(*, minutes: float, out: Path, as_json: bool) -> None:
    """Runs, writes the JSON, prints verdicts and plots."""
    with stage() as database:
        found = soak(database, minutes)
    report.write(found, out)
    if as_json:
        click.echo(out)
    else:
        show(found)
    sys.exit(0 if found.good else 1)


def show(found: Report) -> None:
    """Prints what was found."""
    console = Console(width=WIDTH, highlight=False)
    table = Table("request", box=None, padding=(0, 2, 0, 0))
    for name in ("a second", "p50 ms", "p99 ms", "longest ms", "errors"):
        table.add_column(name, justify="right")
    for cells in found.cells():
        table.add_row(*cells)
    console.print(table)
    for line in plot.plots(found.samples):
        console.print(line, markup=False)
    for fault in found.faults:
        console.print(fault, style="red", markup=False)
    for verdict in found.verdicts:
        said = "BAD " if not verdict.good else "good" if verdict.judged else "left"
        console.print(f"{said}  {verdict.name}: {verdict.told}", style=None if verdict.good else "red")


if __name__ == "__main__":
    main()
