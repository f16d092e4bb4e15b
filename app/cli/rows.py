"""Rows of a query as a table, as CSV or as JSON, none of which can steer a terminal or a spreadsheet.

What agents wrote goes out as text with everything escaped that could move, colour, reorder or hide (case
H21). In CSV a cell that a spreadsheet would compute gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, Final

from app.cells import cell_text, guarded, json_row
from app.cli.grid import Column, Grid
from app.text import printable

Columns = Sequence[tuple[str, str]]
"""Name and PostgreSQL type of each column."""

_NUMBERS: Final = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"})
_LEAST: Final = {"timestamptz": 20, "date": 10, "uuid": 9}
"""Cells that such a column keeps on a narrow terminal: times to the second, of an id the first part."""


def rows_table(columns: Columns, rows: Sequence[Sequence[Any]]) -> Grid:
    """The rows as a table: whole in a pipe, cut to fit on a terminal."""
    return Grid(
        [Column(name, type_ in _NUMBERS, _LEAST.get(type_, 12)) for name, type_ in columns],
        [[printable(cell_text(value)) for value in row] for row in rows],
    )


def csv_line(cells: Sequence[Any]) -> str:
    """One line of CSV (RFC 4180, with a line feed), safe to open in a spreadsheet."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([_csv_cell(cell) for cell in cells])
    return line.getvalue()


def json_line(columns: Columns, row: Sequence[Any]) -> str:
    """One row as a JSON object: numbers with all digits, times in UTC, JSON columns as they are."""
    return printable(json_row(columns, row).decode())


def _csv_cell(value: Any) -> str:  # noqa: ANN401  whatever a column holds
    return printable(guarded(value, cell_text(value)))
