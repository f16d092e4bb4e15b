"""The file of a benchmark's results: every run of every row, and on what it ran."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.machine import Machine, Versions
from tests.bench.rows import Row


class Results(msgspec.Struct, frozen=True):
    """One run of the benchmark.

    Attributes:
        date: when it began, UTC.
        form: quick, usual or long; the figures of the quick one mean nothing.
        seconds: how long it took.
        machine: on what.
        versions: of what.
        rows: what was measured, in the order of the table.
    """

    date: str
    form: str
    seconds: float
    machine: Machine
    versions: Versions
    rows: tuple[Row, ...]


def write(results: Results, path: Path) -> None:
    """Writes results as JSON for people and programs; each row tells its result besides its runs."""
    path.write_bytes(to_json(results) + b"\n")


def to_json(results: Results) -> bytes:
    """Results as JSON, which ``read`` takes; what it does not need is for other readers."""
    told = msgspec.to_builtins(results)
    for row, made in zip(results.rows, told["rows"], strict=True):
        made["result"] = row.result
        made["reaches_bound"], made["reaches_aim"] = row.reaches(row.bound), row.reaches(row.aim)
    return msgspec.json.format(msgspec.json.encode(told), indent=2)


def read(path: Path) -> Results:
    """Results as they were written.

    Raises:
        msgspec.ValidationError: the file is of another form.
    """
    return msgspec.json.decode(path.read_bytes(), type=Results)
