"""Trace trees posted in batches over HTTP against the same documents by plain multi-row INSERT.

The floor signs nothing, chains nothing, checks nothing and speaks to PostgreSQL straight from here: the
columns that a plain audit table has, as many rows a statement as the service gets a request, on as many
connections. The texts are the same bytes, made before the clock runs.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from uuid import UUID

import asyncpg

from tests.bench import agents, documents, load
from tests.bench.cpu import Meter, Stopwatch
from tests.bench.form import Form
from tests.bench.rows import Row, Timed, interleaved
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, service
from tests.support.postgres import Database

KEY = "ingest"
BATCH = (10, 100)
"""Trees of one request: 100 are about 600 kB."""

BATCHES = (2, 20)
"""Requests of one connection in one round."""

ROUNDS = (1, 5)
CONNECTIONS = (1, 4)

TABLE = """
CREATE SCHEMA IF NOT EXISTS plain;
CREATE TABLE plain.trails (
    id bigserial PRIMARY KEY,
    session_id uuid NOT NULL,
    trace_data jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now())
"""
INSERT = "INSERT INTO plain.trails (session_id, trace_data) SELECT * FROM unnest($1::uuid[], $2::jsonb[])"

Batch = list[str]


def rows(database: Database, form: Form) -> Iterator[Row]:
    """One connection after the other's answer, and four connections, each to an agent of its own."""
    asyncio.run(_prepare(database.admin_url))
    with service(database) as port:
        agents.create(port, [f"ingest-{number}" for number in range(max(CONNECTIONS))], None)
        for connections in CONNECTIONS:
            yield _row(database, port, connections, form)


def _row(database: Database, port: int, connections: int, form: Form) -> Row:
    work = _Work(connections, form)
    meters = Meter(PROCESSES[port], database.admin_url), Meter(None, database.admin_url)

    def ours() -> Timed:
        return load.drive(port, work.requests, work.units)

    def floor() -> Timed:
        return asyncio.run(_floor(database.admin_url, work))

    work.renew()
    ours(), floor()  # warm both up
    sides = interleaved(
        ours, floor, form.pick(*ROUNDS), units=work.units, meters=meters, before_pair=work.renew
    )
    named = "1 connection" if connections == 1 else f"{connections} connections"
    return Row(KEY, f"traces, {named}", "trees/s", *sides, "plain INSERT, no HTTP", bound=0.4, aim=0.7)


class _Work:
    """The batches of one round, a list a connection: the same for both sides, new ones for each round."""

    def __init__(self, connections: int, form: Form) -> None:
        self._rng = random.Random(connections)  # noqa: S311  the same documents in every run
        self._connections = connections
        self._batch, self._batches = form.pick(*BATCH), form.pick(*BATCHES)
        self.units = connections * self._batch * self._batches
        self.requests: list[list[bytes]] = []
        self.columns: list[list[tuple[list[UUID], Batch]]] = []

    def renew(self) -> None:
        """Makes the next round's."""
        streams = [
            [documents.trees(self._rng, self._batch) for _ in range(self._batches)]
            for _ in range(self._connections)
        ]
        self.requests = [
            [_request(number, batch) for batch in stream] for number, stream in enumerate(streams)
        ]
        self.columns = [[(_sessions(batch), batch) for batch in stream] for stream in streams]


def _request(number: int, batch: Batch) -> bytes:
    path = f"/v1/agents/ingest-{number}/traces"
    return load.post(path, "\n".join(batch).encode(), OPERATOR_TOKEN, "application/x-ndjson")


async def _floor(url: str, work: _Work) -> Timed:
    connections = [await asyncpg.connect(url) for _ in work.columns]

    async def worker(connection: asyncpg.Connection, batches: Sequence[tuple[list[UUID], Batch]]) -> None:
        for batch in batches:
            await connection.execute(INSERT, *batch)

    watch = Stopwatch()
    await asyncio.gather(*map(worker, connections, work.columns))
    seconds, share = watch.read()
    for connection in connections:
        await connection.close()
    return Timed(work.units / seconds, share)


def _sessions(batch: Batch) -> list[UUID]:
    return [UUID(json.loads(tree)["session_id"]) for tree in batch]


async def _prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    await connection.close()
