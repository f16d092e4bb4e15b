"""What appends and decisions feel of auditors who ask the mirror containment questions all the time (P27).

On a trail of 200,000 records traces are posted and agents ask at a steady rate, while nobody reads and while
two auditors read through SQL logins of their own, in turn. There is no GIN index, whose cleaning would show
as a spike now and then; one that somebody adds is told of in the note.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle

import asyncpg
import psycopg

from tests.bench import agents, documents, load
from tests.bench.cpu import Stopwatch
from tests.bench.form import Form
from tests.bench.guard import BODY, POLICY
from tests.bench.logins import sql_login
from tests.bench.rows import Kind, Row, Side
from tests.bench.stage import OPERATOR_TOKEN, service
from tests.bench.steady import Act, Channel, at_rate, percentile
from tests.support.postgres import Database

KEY = "auditors"
APPENDS = 100
"""Traces posted a second, as the case says."""

DECISIONS = 50
"""Requests to the guard a second."""

LANES = 8
"""Connections of each kind."""

AUDITORS = 2
SECONDS = (1.0, 8.0, 300.0)
"""Of one run: with auditors and without in turn, so the long form is 10 minutes under them."""

ROUNDS = (1, 3, 2)
P99_MS, MAX_MS = 100.0, 1_000.0
"""The bounds on two cores, of which two readers can take all."""

QUESTIONS = tuple(
    f"SELECT count(*) FROM trails.agent_audit_trails WHERE trace_data @> '{wanted}'"
    for wanted in (
        '{"trace_tree":[{"node_type":"TOOL_CALL","outputs":{"status":"failed"}}]}',
        '{"trace_tree":[{"node_type":"TOOL_CALL","name":"send_email"}]}',
        '{"trace_tree":[{"metadata":{"model":"gpt-4o"}}]}',
        '{"trace_tree":[{"outputs":{"error":{"type":"timeout"}}}]}',
    )
)

Runs = dict[str, list[list[float]]]
"""Of each kind of request the latencies of each run, in milliseconds."""


def rows(database: Database, records: int, form: Form) -> Iterator[Row]:
    """Four rows: p99 and the longest of appends and of decisions."""
    with service(database) as port, sql_login(database, "reader") as url:
        agents.create(port, _names("posting"), None)
        agents.create(port, _names("asking"), POLICY)
        quiet, read, asked, share = asyncio.run(_measure(port, url, form))
    note = f"{records:,} records, {asked} questions answered, {_indexes(database)} GIN indexes"
    for kind in ("append", "decide"):
        for name, part, bound in (("p99", 0.99, P99_MS), ("max", 1.0, MAX_MS)):
            ours, floor = (
                Side(tuple(percentile(run, part) for run in runs[kind]), generator=share)
                for runs in (read, quiet)
            )
            median = percentile([each for run in read[kind] for each in run], 0.5)
            yield Row(
                KEY,
                f"{kind} {name} beside auditors",
                "ms",
                ours,
                floor,
                "nobody reading",
                Kind.LIMIT,
                bound,
                note=f"p50 {median:.1f} ms; {note}",
            )


async def _measure(port: int, url: str, form: Form) -> tuple[Runs, Runs, int, float]:
    seconds, rounds = form.pick(*SECONDS), form.pick(*ROUNDS)
    quiet: Runs = {"append": [], "decide": []}
    read: Runs = {"append": [], "decide": []}
    asked = 0
    async with _lanes(port) as lanes:
        await _run(lanes, {"append": [], "decide": []}, min(seconds, 2.0))  # warm up
        watch = Stopwatch()
        for _ in range(rounds):
            await _run(lanes, quiet, seconds)
            reading = [asyncio.create_task(_read(url, number)) for number in range(AUDITORS)]
            await _run(lanes, read, seconds)
            for task in reading:
                task.cancel()
            asked += sum(await asyncio.gather(*reading))
        _, share = watch.read()
    return quiet, read, asked, share


async def _run(lanes: dict[str, list[Act]], runs: Runs, seconds: float) -> None:
    appends, decisions = await asyncio.gather(
        at_rate(lanes["append"], APPENDS, seconds), at_rate(lanes["decide"], DECISIONS, seconds)
    )
    runs["append"].append([each.seconds * 1e3 for each in appends])
    runs["decide"].append([each.seconds * 1e3 for each in decisions])


async def _read(url: str, number: int) -> int:
    """Asks one question after the other until it is cancelled; returns how many were answered."""
    connection = await asyncpg.connect(url)
    answered = 0
    try:
        for question in cycle(QUESTIONS[number:] + QUESTIONS[:number]):
            await connection.fetchval(question)
            answered += 1
    except asyncio.CancelledError:
        return answered
    finally:
        connection.terminate()
    raise AssertionError("it asks for ever")


@asynccontextmanager
async def _lanes(port: int) -> AsyncIterator[dict[str, list[Act]]]:
    channels: list[Channel] = []

    async def lane(messages: Iterator[bytes]) -> Act:
        channel = await Channel.open(port)
        channels.append(channel)

        async def act() -> bool:
            reply = await channel.send(next(messages))
            if reply.status != 200:
                raise RuntimeError(f"{reply.head!r} {reply.body!r}")
            return True

        return act

    yield {
        "append": [await lane(_posts(name)) for name in _names("posting")],
        "decide": [await lane(_asks(name)) for name in _names("asking")],
    }
    for channel in channels:
        channel.close()


def _posts(name: str) -> Iterator[bytes]:
    rng = random.Random(name)  # noqa: S311  the same in every run
    while True:
        [tree] = documents.trees(rng, 1)
        yield load.post(f"/v1/agents/{name}/traces", tree.encode(), OPERATOR_TOKEN)


def _asks(name: str) -> Iterator[bytes]:
    return cycle([load.post(f"/v1/agents/{name}/actions", BODY, OPERATOR_TOKEN)])


def _names(kind: str) -> Sequence[str]:
    return [f"{kind}-{number}" for number in range(LANES)]


def _indexes(database: Database) -> int:
    with psycopg.connect(database.admin_url) as admin:
        found = admin.execute(
            "SELECT count(*) FROM pg_indexes WHERE schemaname = 'trails' AND indexdef LIKE '%USING gin%'"
        ).fetchone()
    return 0 if found is None else int(found[0])
