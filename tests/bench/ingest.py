"""Trace trees posted in batches over HTTP against the same documents by plain multi-row INSERT.

The floor signs nothing, chains nothing, checks nothing and speaks to PostgreSQL straight from here: the
columns that a plain audit table has, as many rows a statement as the service gets a request, on as many
connections.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from itertools import count
from uuid import UUID

import asyncpg
import msgspec

from tests.bench import documents, load
from tests.bench.cpu import Meter
from tests.bench.observe import observe
from tests.bench.rows import Row, interleaved
from tests.bench.stage import OPERATOR_TOKEN, PROCESSES, service
from tests.support.postgres import Database

BATCH = 100
"""Trees of one request: about 600 kB."""

BATCHES = 20
"""Requests of one connection in one round."""

ROUNDS = 5
CONNECTIONS = (1, 4)

TABLE = """
CREATE SCHEMA plain;
CREATE TABLE plain.trails (
    id bigserial PRIMARY KEY,
    session_id uuid NOT NULL,
    trace_data jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now())
"""
INSERT = "INSERT INTO plain.trails (session_id, trace_data) SELECT * FROM unnest($1::uuid[], $2::jsonb[])"

Batch = list[str]


def rows(database: Database) -> list[Row]:
    """One connection after the other's answer, and four connections, each to an agent of its own."""
    asyncio.run(_prepare(database.admin_url))
    with service(database) as port:
        for number in range(max(CONNECTIONS)):
            observe(port, f"ingest-{number}")
        return [_row(database, port, connections) for connections in CONNECTIONS]


def _row(database: Database, port: int, connections: int) -> Row:
    rng = random.Random(connections)  # noqa: S311  the same documents in every run
    work = _Work(rng, connections)
    _ours(port, work.next()), asyncio.run(_floor(database.admin_url, work.next()))  # warm both up
    named = "one connection" if connections == 1 else f"{connections} connections"
    meter = Meter(PROCESSES[port], database.admin_url)
    row = interleaved(
        f"traces in batches of {BATCH}, {named}",
        "trees/s",
        ours=meter.around(lambda: _ours(port, work.next()), connections * BATCHES * BATCH),
        floor=lambda: asyncio.run(_floor(database.admin_url, work.again())),
        rounds=ROUNDS,
        at_least=0.4,
        aim=0.7,
    )
    return msgspec.structs.replace(row, cpu=meter.told())


class _Work:
    """The batches of one round, a list a connection: new ones for our side, the same again for the floor."""

    def __init__(self, rng: random.Random, connections: int) -> None:
        self._rng = rng
        self._connections = connections
        self._now: list[list[Batch]] = []

    def next(self) -> list[list[Batch]]:
        self._now = [
            [documents.trees(self._rng, BATCH) for _ in range(BATCHES)] for _ in range(self._connections)
        ]
        return self._now

    def again(self) -> list[list[Batch]]:
        return self._now


def _ours(port: int, streams: Sequence[Sequence[Batch]]) -> float:
    requests = [
        [_request(number, batch) for batch in stream]
        for number, stream in zip(count(), streams, strict=False)
    ]
    return _trees(streams) / asyncio.run(load.duration("127.0.0.1", port, requests))


def _request(number: int, batch: Batch) -> bytes:
    path = f"/v1/agents/ingest-{number}/traces"
    return load.post(path, "\n".join(batch).encode(), OPERATOR_TOKEN, "application/x-ndjson")


async def _floor(url: str, streams: Sequence[Sequence[Batch]]) -> float:
    connections = [await asyncpg.connect(url) for _ in streams]
    columns = [[(_sessions(batch), batch) for batch in stream] for stream in streams]

    async def worker(connection: asyncpg.Connection, batches: list[tuple[list[UUID], Batch]]) -> None:
        for batch in batches:
            await connection.execute(INSERT, *batch)

    started = time.perf_counter()
    await asyncio.gather(*map(worker, connections, columns))
    seconds = time.perf_counter() - started
    for connection in connections:
        await connection.close()
    return _trees(streams) / seconds


def _sessions(batch: Batch) -> list[UUID]:
    return [UUID(json.loads(tree)["session_id"]) for tree in batch]


def _trees(streams: Sequence[Sequence[Batch]]) -> int:
    return sum(len(batch) for stream in streams for batch in stream)


async def _prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    await connection.close()
