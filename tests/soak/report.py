"""What a soak test has found: its verdicts, latencies and samples, and the JSON of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.bench.machine import Machine, Versions


class Verdict(msgspec.Struct, frozen=True):
    """One judgement: what of, whether it is good, and what was seen, with the bound it was held against.

    In too short a run some are not ``judged``; these are not bad.
    """

    name: str
    good: bool
    told: str
    judged: bool = True


class Kind(msgspec.Struct, frozen=True):
    """All requests of one kind: how many, their latencies in milliseconds, and how many failed."""

    name: str
    count: int
    a_second: float
    p50: float
    p99: float
    longest: float
    errors: int


class Sample(msgspec.Struct, frozen=True):
    """One moment of the run.

    Attributes:
        at: seconds since the load began.
        rss_mib: resident memory of each server process.
        backends_mib: memory of PostgreSQL's processes that is theirs alone (no shared buffers).
        connections: sessions of the database.
        table_mib: the records with their indexes.
        errors: so far.
        latencies: of each kind of request since the sample before: how many, p50, p99, longest, in ms.
    """

    at: float
    rss_mib: tuple[float, ...]
    backends_mib: float
    connections: int
    table_mib: float
    errors: int
    latencies: dict[str, tuple[int, float, float, float]]


class Report(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        date: when it began, UTC.
        minutes: how long the load lasted.
        is_short: whether it was too short to judge what flat means.
        machine: on what.
        versions: of what.
        verdicts: the judgements.
        kinds: the requests by kind.
        samples: in their order; may be left out of what is kept.
        faults: the first errors, as they were told.
    """

    date: str
    minutes: float
    is_short: bool
    machine: Machine
    versions: Versions
    verdicts: tuple[Verdict, ...]
    kinds: tuple[Kind, ...]
    samples: tuple[Sample, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether all verdicts are."""
        return all(verdict.good for verdict in self.verdicts)

    def cells(self) -> Iterator[tuple[str, ...]]:
        """The kinds as rows of a table."""
        for kind in self.kinds:
            milliseconds = (f"{value:,.1f}" for value in (kind.p50, kind.p99, kind.longest))
            yield kind.name, f"{kind.a_second:.1f}", *milliseconds, str(kind.errors)


def write(report: Report, path: Path) -> None:
    """Writes a report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read(path: Path) -> Report:
    """A report as it was written.

    Raises:
        msgspec.ValidationError: the file is of another form.
    """
    return msgspec.json.decode(path.read_bytes(), type=Report)
