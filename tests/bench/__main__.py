"""The benchmark: every figure against its floor in the same run (``make bench``)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import click
import msgspec

from tests.bench import (
    auditors,
    guard,
    ingest,
    machine,
    memory,
    opening,
    otlp,
    parts,
    query,
    table,
    trail,
    verify,
)
from tests.bench.form import Form
from tests.bench.results import Results, to_json, write
from tests.bench.rows import Row
from tests.bench.stage import stage
from tests.support.postgres import Database

RESULTS = Path("bench-results.json")

Keys = Collection[str]


class Group(msgspec.Struct, frozen=True):
    """Rows that share a PostgreSQL of their own: what other rows left behind slows nothing.

    Attributes:
        keys: the names that ``--row`` takes.
        measure: measures those of ``keys`` that are wanted, given the database, the form and their names.
    """

    keys: tuple[str, ...]
    measure: Callable[[Database, Form, Keys], Iterator[Row]]


def _of_the_trail(database: Database, form: Form, wanted: Keys) -> Iterator[Row]:
    """The rows that read a long trail; it is made once."""
    records = trail.fill(database, form)
    if query.KEY in wanted:
        yield from query.rows(database, records, form)
    if auditors.KEY in wanted:
        yield from auditors.rows(database, records, form)


GROUPS = (
    Group((guard.KEY,), lambda database, form, _: guard.rows(database, form)),
    Group((ingest.KEY,), lambda database, form, _: ingest.rows(database, form)),
    Group((otlp.KEY,), lambda database, form, _: otlp.rows(database, form)),
    Group((verify.KEY,), lambda _database, form, _: verify.rows(form)),
    Group((query.KEY, auditors.KEY), _of_the_trail),
    Group((memory.KEY,), lambda database, form, _: memory.rows(database, form)),
    Group((opening.KEY,), lambda database, form, _: opening.rows(database, form)),
    Group((parts.KEY,), lambda database, form, _: iter(parts.rows(database, form))),
)
KEYS = tuple(key for group in GROUPS for key in group.keys)

_HELP = f"""Measures what Lineage Trails does against a floor of each figure in the same run.

A floor is the least that could do the same work: for a guarded request a server of the same kind that stores
the request's JSON with one plain INSERT, for posted traces a plain INSERT of the same documents without HTTP,
for a verification a bare loop of SHA-256 and Ed25519. Both are measured in turn (ours, floor, ours, floor …),
on a PostgreSQL of their own with fsync on, in one server process each with the same settings, and medians are
compared. So a figure tells more of the program than of the machine, and figures of two machines can be
compared. The OTLP rows also stand beside Phoenix and MLflow; those figures are constants, measured once.

Rows: {", ".join(KEYS)}. All take about ten minutes on a quiet machine of two cores. Rates of a
busy machine mean little; the column CPU hardly depends on it.

\b
Examples:
  make bench                            every row; writes {RESULTS}
  make bench ROW=guard                  one row
  python -m tests.bench --row guard --row verify --json
  python -m tests.bench --quick         everything once, to see that it works
  python -m tests.bench --long --row auditors    for as long as the case asks: ten minutes of readers
  python -m tests.bench.page            puts {RESULTS} into the guides

The exit code is 0 unless something broke: figures below their goals are shown, not punished.
"""


@click.command(help=_HELP)
@click.option("--row", "only", multiple=True, type=click.Choice(KEYS), help="Measure this row; repeatable.")
@click.option("--quick", "form", flag_value=Form.QUICK, type=Form, help="Very little of everything.")
@click.option("--long", "form", flag_value=Form.LONG, type=Form, help="Rows that gain by it for longer.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"Where the JSON goes; default {RESULTS} for all rows."
)
def main(*, only: tuple[str, ...], form: Form | None, as_json: bool, out: Path | None) -> None:
    """Measures, writes the file of results, prints the table."""
    found = measure(only or KEYS, form or Form.USUAL)
    if out is not None or not only:
        write(found, out or RESULTS)
    if as_json:
        click.echo(to_json(found))
    else:
        table.show(found)


def measure(keys: Keys, form: Form) -> Results:
    """The rows of these names, in the order of the table."""
    on, date, began = machine.this_machine(), machine.today(), time.monotonic()
    rows: list[Row] = []
    postgresql = ""
    for group in GROUPS:
        wanted = [key for key in group.keys if key in keys]
        if not wanted:
            continue
        with stage() as database:
            postgresql = machine.postgresql_version(database.admin_url)
            for row in group.measure(database, form, wanted):
                rows.append(row)
                print(f"{time.monotonic() - began:5.0f} s  {row.name}", file=sys.stderr)
    return Results(
        date, form.value, round(time.monotonic() - began, 1), on, machine.versions(postgresql), tuple(rows)
    )


if __name__ == "__main__":
    main()
