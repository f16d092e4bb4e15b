"""Every row of the benchmark runs, in its quick form; what it measures then means nothing."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from tests.bench import machine, results, table
from tests.bench.__main__ import GROUPS, Group
from tests.bench.cpu import Spent
from tests.bench.form import Form
from tests.bench.results import Results
from tests.bench.rows import Kind, Row, Side
from tests.support.postgres import Database


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: "-".join(group.keys))
def test_rows_are_measured_and_survive_their_file(group: Group, database: Database) -> None:
    rows = tuple(group.measure(database, Form.QUICK, group.keys))
    assert {row.key for row in rows} == set(group.keys)
    for row in rows:
        assert row.floor is not None
        assert all(run > 0 for run in (*row.ours.runs, *row.floor.runs)), row
    made = Results("2026-01-01T00:00:00Z", "quick", 1.0, machine.this_machine(), machine.versions(), rows)
    assert msgspec.json.decode(results.to_json(made), type=Results) == made


def test_the_table_fits_into_a_hundred_columns() -> None:
    side = Side((35_000.0, 34_000.0, 36_500.0), Spent(1_520.0, 1_640.0), 0.45)
    names = ("traces, 4 connections", "append max beside auditors", "failed calls of 200,000")
    kinds = (Kind.RATIO, Kind.LIMIT, Kind.DIFFERENCE)
    rows = tuple(
        Row("key", name, "trees/s", side, side, "floor", kind, 1_000, 300)
        for name, kind in zip(names, kinds, strict=True)
    )
    made = Results("2026-01-01T00:00:00Z", "usual", 1.0, machine.this_machine(), machine.versions(), rows)
    console = Console(width=table.WIDTH, record=True, file=StringIO(), highlight=False)
    table.show(made, console)
    shown = console.export_text()
    assert "…" not in shown
    for name in names:
        assert f"\n {name} " in shown or f"\n{name} " in shown


@pytest.mark.parametrize(
    ("kind", "ours", "result", "reached", "missed"),
    [
        (Kind.RATIO, 30.0, 3.0, 2.9, 3.1),
        (Kind.DIFFERENCE, 30.0, 20.0, 20.1, 19.9),
        (Kind.LIMIT, 30.0, 30.0, 30.1, 29.9),
    ],
)
def test_a_result_is_held_against_its_goal(
    kind: Kind, ours: float, result: float, reached: float, missed: float
) -> None:
    row = Row("key", "name", "unit", Side((ours, 1.0, 99.0)), Side((10.0,)), "floor", kind)
    assert row.result == result
    assert row.reaches(reached)
    assert not row.reaches(missed)
