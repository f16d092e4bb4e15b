"""The benchmark: every figure against its floor in the same run (``make bench``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench import guard, ingest, otlp, query, verify
from tests.bench.rows import Row
from tests.bench.stage import stage
from tests.support.postgres import Database

RESULTS = Path("bench-results.json")


def _staged(rows: Callable[[Database], list[Row]]) -> Callable[[], list[Row]]:
    """A row that needs a PostgreSQL gets one of its own: what another row left behind slows nothing."""

    def measured() -> list[Row]:
        with stage() as database:
            return rows(database)

    return measured


ROWS: dict[str, Callable[[], list[Row]]] = {
    "guard": _staged(guard.rows),
    "ingest": _staged(ingest.rows),
    "otlp": _staged(otlp.rows),
    "query": _staged(query.rows),
    "verify": verify.rows,
}


@click.command()
@click.option("--row", type=click.Choice(sorted(ROWS)), help="Measure this row alone.")
def main(row: str | None) -> None:
    """Measures our figures against their floors and prints the ratios."""
    results = [result for name in ROWS if row in (None, name) for result in ROWS[name]()]
    Console().print(_table(results))
    RESULTS.write_text(json.dumps([_json(result) for result in results], indent=2) + "\n")


def _table(results: list[Row]) -> Table:
    table = Table("work", "unit", "ours", "floor", "ratio", "at least", "aim", "CPU µs a unit (server + PG)")
    for row in results:
        figures = (f"{row.ours:,.0f}", f"{row.floor:,.0f}", f"[{_style(row)}]{row.ratio:.2f}[/]")
        goals = ("" if goal is None else str(goal) for goal in (row.at_least, row.aim))
        table.add_row(row.name, row.unit, *figures, *goals, row.cpu)
    return table


def _style(row: Row) -> str:
    if row.at_least is None or row.aim is None:
        return "default"
    return "green" if row.ratio >= row.aim else "yellow" if row.ratio >= row.at_least else "red"


def _json(row: Row) -> dict[str, object]:
    return {**msgspec.structs.asdict(row), "ratio": row.ratio}


if __name__ == "__main__":
    main()
