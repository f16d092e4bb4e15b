"""Failed tool calls of 200,000 records, 1 % with one: the view against the classic query on the same rows.

Both are asked as the service's own role, so that row security is in both; no server runs meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg

from db.pool import tenant_setting
from db.schema import DEFAULT_TENANT_ID
from tests.bench.form import Form
from tests.bench.rows import Row, Timed, interleaved
from tests.bench.trail import FAILING_EVERY
from tests.support.postgres import Database

KEY = "query"
ROUNDS = (1, 5)

CLASSIC = """
SELECT session_id, created_at
FROM trails.agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed'
"""
VIEW = "SELECT session_id, recorded_at FROM trails.failed_tool_calls"


def rows(database: Database, records: int, form: Form) -> Iterator[Row]:
    """The query row, on a trail of so many records; its note is how the view's plan finds the calls."""
    with asyncio.Runner() as runner:
        connection = runner.run(_service(database))
        found, classic = (runner.run(connection.fetch(query)) for query in (VIEW, CLASSIC))
        _check(found, classic, records)

        def searched(query: str) -> Timed:
            return Timed(records / 1_000 / runner.run(_seconds(connection, query)))

        sides = interleaved(lambda: searched(VIEW), lambda: searched(CLASSIC), form.pick(*ROUNDS))
        note = runner.run(_plan(connection))
        runner.run(connection.close())
    yield Row(
        KEY,
        f"failed calls of {records:,}",
        "krec/s",
        *sides,
        "the classic query",
        bound=20,
        aim=50,
        note=note,
    )


async def _service(database: Database) -> asyncpg.Connection:
    """A connection under row security; the setting holds for the session, which is this query's alone."""
    connection: asyncpg.Connection = await asyncpg.connect(database.app_url)
    setting = tenant_setting(DEFAULT_TENANT_ID)
    await connection.execute("SELECT set_config('trails.tenants', $1, false)", setting)
    return connection


async def _seconds(connection: asyncpg.Connection, query: str) -> float:
    started = time.perf_counter()
    await connection.fetch(query)
    return time.perf_counter() - started


async def _plan(connection: asyncpg.Connection) -> str:
    """The part of the view's plan that says how the failed calls are found.

    Raises:
        RuntimeError: not by their index.
    """
    plan = [row[0].strip() for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {VIEW}")]
    if not any("trail_failed_tool_calls" in line for line in plan):
        raise RuntimeError("the view does not use its index:\n" + "\n".join(plan))
    return "; ".join(line.removeprefix("->  ") for line in plan if "trail_failed_tool_calls" in line)


def _check(found: list[asyncpg.Record], classic: list[asyncpg.Record], records: int) -> None:
    expected = records // FAILING_EVERY
    if sorted(map(tuple, found)) != sorted(map(tuple, classic)) or len(found) != expected:
        raise RuntimeError(f"{len(found)} and {len(classic)} failed calls found, not {expected} twice")
