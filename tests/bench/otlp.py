"""Durable OTLP spans: against what others reach, and against a plain server in the same run.

The figures of the others are constants: they were measured once on a machine of two cores with PostgreSQL,
20 spans a trace, with as many traces a request as here, as they install themselves; MLflow then runs several
server processes. So ours is measured with one process and with two, as ``trails serve --workers 2``: with
one the spans of one service (which has one chain), with two those of as many services as connections. The
plain server, one process, is measured beside: it decodes the same requests and stores one JSON row a span.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.bench import load, spans
from tests.bench.cpu import Meter
from tests.bench.form import Form
from tests.bench.rows import Row, Side, Timed, constant, interleaved
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, served, service
from tests.support.postgres import Database

KEY = "otlp"
PHOENIX = 170
"""Spans a second of Phoenix, which answers before it stores."""

MLFLOW = {1: 700, 25: 1_300}
"""Spans a second of MLflow by traces a request."""

CONNECTIONS = 8
SPANS_A_ROUND = (320, 16_000)
ROUNDS = (1, 5)


def rows(database: Database, form: Form) -> Iterator[Row]:
    """One trace a request and 25, against MLflow, Phoenix and the plain server."""
    floor_env = {"TRAILS_BENCH_FLOOR_URL": database.admin_url}
    with service(database) as ours, served("tests.bench.otlp_floor:app", floor_env, "/") as floor:
        for traces in MLFLOW:
            yield from _rows(*_measured(database, [ours], floor, traces, form), traces)
        with service(database) as second:
            for traces, theirs in MLFLOW.items():
                side, _ = _measured(database, [ours, second], floor, traces, form)
                name = f"OTLP by {traces}, {CONNECTIONS} services, 2 processes"
                yield _against_mlflow(name, side, theirs)


def _rows(ours: Side, floor: Side, traces: int) -> Iterator[Row]:
    name = f"OTLP by {traces}"
    if traces == 1:
        yield Row(
            KEY, f"{name}, Phoenix", "spans/s", ours, constant(PHOENIX), "constant: Phoenix", bound=10, aim=20
        )
    yield _against_mlflow(f"{name}, MLflow", ours, MLFLOW[traces])
    yield Row(KEY, f"{name}, plain server", "spans/s", ours, floor, "one plain row a span, same server")


def _against_mlflow(name: str, ours: Side, theirs: int) -> Row:
    return Row(KEY, name, "spans/s", ours, constant(theirs), "constant: MLflow", bound=10, aim=20)


def _measured(
    database: Database, ours: Sequence[int], floor: int, traces: int, form: Form
) -> tuple[Side, Side]:
    work = _Work(traces, form, services=1 if len(ours) == 1 else CONNECTIONS)

    def measure(*ports: int) -> Timed:
        return load.drive(ports, work.requests, work.units)

    work.renew()
    measure(*ours), measure(floor)  # warm both up
    processes = [PROCESSES[port] for port in ours]
    return interleaved(
        lambda: measure(*ours),
        lambda: measure(floor),
        form.pick(*ROUNDS),
        units=work.units,
        meters=(Meter(processes, database.admin_url), Meter(PROCESSES[floor], database.admin_url)),
        before_pair=work.renew,
    )


class _Work:
    """The requests of one round, a list a connection: the same for both sides, new spans for each round."""

    def __init__(self, traces: int, form: Form, services: int) -> None:
        # The same spans in every run, and no span twice in one: a known span would not be stored again.
        self._rng = random.Random(f"{traces} {services}")  # noqa: S311
        self._services = services
        self._traces = traces
        self._each = max(1, form.pick(*SPANS_A_ROUND) // spans.SPANS // traces // CONNECTIONS)
        self.units = self._each * CONNECTIONS * traces * spans.SPANS
        self.requests: list[list[bytes]] = []

    def renew(self) -> None:
        """Makes the next round's."""
        self.requests = [
            [_request(self._export(connection % self._services)) for _ in range(self._each)]
            for connection in range(CONNECTIONS)
        ]

    def _export(self, service: int) -> bytes:
        return spans.export(self._rng, self._traces, f"bench-{service}")


def _request(body: bytes) -> bytes:
    return load.post("/v1/traces", body, OPERATOR_TOKEN, "application/x-protobuf")
