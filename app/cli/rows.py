"""Rows of a query as a table, as CSV or as JSON, none of which can steer a terminal or a spreadsheet.

What agents wrote goes out as text with everything escaped that could move, colour, reorder or hide (case
H21). In CSV a cell that a spreadsheet would compute gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from app.cli.grid import Column, Grid
from app.cli.text import printable

Columns = Sequence[tuple[str, str]]
"""Name and PostgreSQL type of each column."""

_JSON_TYPES: Final = frozenset({"json", "jsonb"})
_NUMBERS: Final = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_LEAST: Final = {"timestamptz": 20, "date": 10, "uuid": 9}
"""Cells that such a column keeps on a narrow terminal: times to the second, of an id the first part."""

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


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
    members = {name: _json_value(value, type_) for (name, type_), value in zip(columns, row, strict=True)}
    return printable(_ENCODER.encode(members).decode())


def cell_text(value: Any) -> str:  # noqa: ANN401  whatever a column holds
    """A value as text: empty for NULL, times as RFC 3339 in UTC, durations in seconds."""
    return _WRITERS.get(type(value), str)(value)


def _csv_cell(value: Any) -> str:  # noqa: ANN401  as above
    text = cell_text(value)
    guard = "'" if isinstance(value, str | list) and text.startswith(_FORMULA) else ""
    return guard + printable(text)


def _json_value(value: Any, type_: str) -> Any:  # noqa: ANN401  as above
    if value is not None and type_ in _JSON_TYPES:
        return msgspec.Raw(value.encode())
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _seconds(value)
    return value


def _instant(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _seconds(value: timedelta) -> Decimal:
    return Decimal(value // timedelta(microseconds=1)) / 1_000_000


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "",
    bool: lambda value: "true" if value else "false",
    datetime: _instant,
    timedelta: lambda value: str(_seconds(value)),
    Decimal: lambda value: format(value, "f"),
    list: lambda value: ", ".join(map(cell_text, value)),
}
"""How a value of each type is written; all others by ``str``."""
