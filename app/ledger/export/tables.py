"""An export as CSV (RFC 4180): for spreadsheets and loading, safe to open, and no evidence.

The last column, ``export_trailer``, is empty but in the last row, which holds the statement and nothing else:
a file without that row was broken off.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.cells import cell_text, guarded
from app.chain.statement import CSV_COLUMN
from app.ledger.export.told import EVIDENCE, Sums
from app.ledger.export.writers import Writer

if TYPE_CHECKING:
    from app.chain.strict import JsonObject


class Csv(Writer):
    """Rows as CSV with a header and CRLF."""

    def begin(self) -> bytes:
        """The names of the columns."""
        return _csv([[*(name for name, _ in self.columns), CSV_COLUMN]])

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows, with an apostrophe before what a spreadsheet would compute."""
        return _csv([[*map(_cell, row), ""] for row in rows])

    def says(self, sums: Sums) -> JsonObject:
        """As all, and that this is a copy."""
        return {**super().says(sums), "evidence": EVIDENCE}

    def end(self, statement: str) -> bytes:
        """The last row."""
        return _csv([[*("" for _ in self.columns), statement]])


class BareCsv(Csv):
    """The same without the column and the row of the statement."""

    has_statement = False

    def begin(self) -> bytes:
        """The names of the columns."""
        return _csv([[name for name, _ in self.columns]])

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Rows."""
        return _csv([list(map(_cell, row)) for row in rows])


def _cell(value: Any) -> str:  # noqa: ANN401  whatever a column holds
    return guarded(value, cell_text(value))


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
