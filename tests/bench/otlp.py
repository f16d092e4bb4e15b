"""Durable OTLP spans: against what others reach, and against a plain server in the same run.

The figures of the others were measured on a machine of two cores with PostgreSQL, 20 spans a trace, with as
many traces a request as here; they are printed, not measured here. The plain server is measured beside: it
decodes the same requests and stores one JSON row a span.
"""

from __future__ import annotations

import asyncio
import random

from tests.bench import load, spans
from tests.bench.cpu import Meter
from tests.bench.rows import Row, interleaved
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, served, service
from tests.support.postgres import Database

PHOENIX = 170
"""Spans a second of Phoenix, which answers before it stores."""

MLFLOW = {1: 700, 25: 1_300}
"""Spans a second of MLflow by traces a request."""

CONNECTIONS = 8
SPANS_A_ROUND = 16_000
ROUNDS = 5

Stream = list[bytes]


def rows(database: Database) -> list[Row]:
    """One trace a request and 25, each against MLflow and against the plain server."""
    floor_env = {"TRAILS_BENCH_FLOOR_URL": database.admin_url}
    with service(database) as ours, served("tests.bench.otlp_floor:app", floor_env, "/") as floor:
        return [row for traces in MLFLOW for row in _rows(database, ours, floor, traces)]


def _rows(database: Database, ours: int, floor: int, traces: int) -> list[Row]:
    rng = random.Random(traces)  # noqa: S311  the same spans in every run
    work = _Work(rng, traces)
    _measure(ours, work.next()), _measure(floor, work.again())  # warm both up
    named = f"OTLP, {traces} {'trace' if traces == 1 else 'traces'} a request"
    meter = Meter(PROCESSES[ours], database.admin_url)
    beside = interleaved(
        f"{named}, beside a plain server",
        "spans/s",
        ours=meter.around(lambda: _measure(ours, work.next()), SPANS_A_ROUND),
        floor=lambda: _measure(floor, work.again()),
        rounds=ROUNDS,
    )
    against = Row(
        name=f"{named}, beside MLflow (Phoenix: {PHOENIX})",
        unit="spans/s",
        ours=beside.ours,
        floor=MLFLOW[traces],
        at_least=10,
        aim=20,
        cpu=meter.told(),
    )
    return [against, beside]


class _Work:
    """The requests of one round, a list a connection: new spans for our side, the same for the floor."""

    def __init__(self, rng: random.Random, traces: int) -> None:
        self._rng = rng
        self._traces = traces
        self._now: list[Stream] = []

    def next(self) -> list[Stream]:
        requests = SPANS_A_ROUND // spans.SPANS // self._traces // CONNECTIONS
        self._now = [
            [_request(spans.export(self._rng, self._traces)) for _ in range(requests)]
            for _ in range(CONNECTIONS)
        ]
        return self._now

    def again(self) -> list[Stream]:
        return self._now


def _request(body: bytes) -> bytes:
    return load.post("/v1/traces", body, OPERATOR_TOKEN, "application/x-protobuf")


def _measure(port: int, streams: list[Stream]) -> float:
    seconds = asyncio.run(load.duration("127.0.0.1", port, streams))
    return SPANS_A_ROUND / seconds
