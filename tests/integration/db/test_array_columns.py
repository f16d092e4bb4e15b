"""Columns that are arrays, in each form of an export: element by element what a single value would be."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pyarrow.parquet
import pytest

import db.exports
from app.ledger.export.parquet import Parquet
from app.ledger.export.tables import Csv
from app.ledger.export.told import Sums, Told
from app.ledger.export.wanted import Format, Wanted
from app.ledger.export.writers import Lines, Writer

ID = "00000000-0000-4000-8000-000000000009"
VALUES = {
    "ids": (f"ARRAY['{ID}', NULL]::uuid[]", [ID, None], [ID, None]),
    "costs": (
        "ARRAY[1e20, 0.10, NULL]::numeric[]",
        ["100000000000000000000", "0.10", None],
        [1e20, 0.1, None],
    ),
    "names": ("ARRAY['a', NULL]::text[]", ["a", None], ["a", None]),
    "times": (
        "ARRAY['2026-01-02 03:04:05+00']::timestamptz[]",
        [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)],
        ["2026-01-02T03:04:05.000000Z"],
    ),
    "waits": ("ARRAY['1.5 s'::interval]", [timedelta(seconds=1.5)], [1.5]),
    "texts": ("""ARRAY['{"a": 1}']::jsonb[]""", ['{"a": 1}'], [{"a": 1}]),
    "counts": ("ARRAY[1, 2]::bigint[]", [1, 2], [1, 2]),
    "none": ("NULL::uuid[]", None, None),
    "empty": ("ARRAY[]::numeric[]", [], []),
}
"""Of each column the SQL of its value, and the value in Parquet and in JSON."""


@pytest.mark.parametrize("form", [Parquet, Lines, Csv])
async def test_arrays_are_written_element_by_element(admin: asyncpg.Connection, form: type[Writer]) -> None:
    chosen = ", ".join(f"{sql} AS {name}" for name, (sql, _, _) in VALUES.items())
    await admin.execute(f"CREATE VIEW trails.of_arrays AS SELECT {chosen}")
    columns = await db.exports.columns(admin, "of_arrays")
    rows = [tuple(row) for row in await admin.fetch("SELECT * FROM trails.of_arrays")]
    told = Told(UUID(ID), None, datetime.now(UTC), Wanted(format=Format.PARQUET), ())
    writer = form(told, columns)
    raw = b"".join((writer.begin(), writer.rows(rows), writer.close()))
    written = _read(form, raw + writer.end(json.dumps(writer.says(Sums()))))
    if form is Csv:
        assert (written["ids"], written["costs"]) == (f"{ID}, ", "100000000000000000000, 0.10, ")
        assert (written["waits"], written["none"], written["empty"]) == ("1.5", "", "")
    else:
        of = 1 if form is Parquet else 2
        assert written == {name: value[of] for name, value in VALUES.items()}


def _read(form: type[Writer], raw: bytes) -> Any:
    if form is Parquet:
        return pyarrow.parquet.read_table(io.BytesIO(raw)).to_pylist()[0]
    if form is Csv:
        return next(iter(csv.DictReader(io.StringIO(raw.decode()))))
    return json.loads(raw.splitlines()[1])
