"""The first request after a restart: on a chain of 100,000 records, and on one of 100.

Every run restarts the server, so that nothing is known of the chain. Both chains are lived over HTTP, so that
whatever the product keeps to open a chain sooner is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import chain, repeat

from tests.bench import agents, load
from tests.bench.form import Form
from tests.bench.guard import ALLOWED, BODY, POLICY
from tests.bench.rows import Kind, Row, Timed, interleaved
from tests.bench.stage import OPERATOR_TOKEN, analyze, service
from tests.support.postgres import Database

KEY = "opening"
LONG = (2_000, 100_000)
SHORT = 100
ROUNDS = (1, 3)
MOST_MS = 50

_ASKS = 10
"""Guarded requests (two records each) in each part of the long chain; the rest of it are events."""

_PART = 1_000


def rows(database: Database, form: Form) -> Iterator[Row]:
    """The row of opening, in milliseconds."""
    records = form.pick(*LONG)
    with service(database) as port:
        agents.create(port, ["long", "short"], POLICY)
        for _ in range(records // _PART):
            _live(port, "long", _PART)
        _live(port, "short", SHORT)
    analyze(database)
    sides = interleaved(
        lambda: _first(database, "long"), lambda: _first(database, "short"), form.pick(*ROUNDS)
    )
    yield Row(
        KEY,
        f"opening, {records:,} records",
        "ms",
        *sides,
        f"the same on {SHORT} records",
        Kind.DIFFERENCE,
        MOST_MS,
    )


def _live(port: int, name: str, records: int) -> None:
    """So many more records (fewer by the genesis and policy that the chain began with, at most)."""
    asks = load.post(f"/v1/agents/{name}/actions", BODY, OPERATOR_TOKEN)
    events = [{"type": "step", "data": {"n": number}} for number in range(records - 2 * _ASKS)]
    told = load.post(f"/v1/agents/{name}/events", json.dumps({"events": events}).encode(), OPERATOR_TOKEN)
    load.drive(port, [chain(repeat(asks, _ASKS), [told])], records)


def _first(database: Database, name: str) -> Timed:
    with service(database) as port:
        request = load.post(f"/v1/agents/{name}/actions", BODY, OPERATOR_TOKEN)
        began = time.perf_counter()
        answer = load.one(port, request)
        milliseconds = (time.perf_counter() - began) * 1e3
    if ALLOWED not in answer:
        raise RuntimeError(f"not allowed: {answer!r}")
    return Timed(milliseconds)
