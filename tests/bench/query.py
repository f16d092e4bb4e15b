"""Failed tool calls of 200,000 records, 1 % with one: the view against the classic query on the same rows.

Both are asked as the service's own role, so that row security is in both. The records are sealed here and
appended in large groups: real rows of two chains, made from a few templates by giving each its own ids.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from uuid import UUID

import asyncpg

import db.ledger
from app.chain.canonical import canonical
from app.chain.link import seal_all
from app.chain.record import Draft
from db.ledger import TrailRow
from db.pool import create_pool, tenant_setting
from tests.bench import documents
from tests.bench.rows import Row, interleaved
from tests.support.postgres import Database
from tests.support.rows import KEY, START_US, Maker, register_tenant

RECORDS = 200_000
FAILING_EVERY = 100
"""1 % of the records have a failed call."""

CHAINS = 2
GROUP = 1_000
TEMPLATES = 50
ROUNDS = 5

CLASSIC = """
SELECT session_id, created_at
FROM trails.agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed'
"""
VIEW = "SELECT session_id, recorded_at FROM trails.failed_tool_calls"

_IDS = "00000000-0000-4000-8000-"
"""Beginning of every id in a template; each record has another one."""


def rows(database: Database) -> list[Row]:
    """The query row; prints the index that the view's plan reads."""
    with asyncio.Runner() as runner:
        tenant_id = runner.run(_load(database))
        connection = runner.run(_auditor(database, tenant_id))
        _check(*(runner.run(connection.fetch(query)) for query in (VIEW, CLASSIC)))
        for line in runner.run(_plan(connection)):
            print(line)

        def searched(query: str) -> float:
            return RECORDS / runner.run(_seconds(connection, query))

        row = interleaved(
            f"failed calls of {RECORDS:,} records, the view",
            "records/s",
            ours=lambda: searched(VIEW),
            floor=lambda: searched(CLASSIC),
            rounds=ROUNDS,
            at_least=20,
            aim=50,
        )
        runner.run(connection.close())
        return [row]


async def _load(database: Database) -> UUID:
    async with await create_pool(database.app_url, min_size=CHAINS, max_size=CHAINS) as pool:
        tenant_id = await register_tenant(pool, "bench")
        makers = [Maker(tenant_id, f"bench-{number}") for number in range(CHAINS)]

        async def fill(maker: Maker) -> None:
            await db.ledger.append(pool, [maker.genesis()], chains=[maker.chain])
            for drafts in _drafts(random.Random(maker.agent_id)):  # noqa: S311  the same in every run
                await db.ledger.append(pool, await asyncio.to_thread(_sealed, maker, drafts))

        await asyncio.gather(*map(fill, makers))
    admin = await asyncpg.connect(database.admin_url)
    await admin.execute("VACUUM (ANALYZE) trails.agent_audit_trails")
    await admin.close()
    return tenant_id


def _sealed(maker: Maker, drafts: list[Draft]) -> list[TrailRow]:
    head = maker.head
    records = seal_all(drafts, head, (head.timestamp_us if head else START_US) + 1_000, KEY)
    maker.head = records[-1].head
    return [maker.mirror(record) for record in records]


def _drafts(rng: random.Random) -> Iterator[list[Draft]]:
    sound = [_template(rng, failing=False) for _ in range(TEMPLATES)]
    failing = [_template(rng, failing=True) for _ in range(TEMPLATES)]
    for _ in range(RECORDS // CHAINS // GROUP):
        yield [
            _draft(rng, rng.choice(sound if number % FAILING_EVERY else failing)) for number in range(GROUP)
        ]


def _template(rng: random.Random, *, failing: bool) -> str:
    tree = documents.tree(rng, failing=failing)
    tree["session_id"] = f"{_IDS}{0:012x}"
    for number, node in enumerate(tree["trace_tree"], 1):
        node["node_id"] = f"{_IDS}{number:012x}"
        node["parent_id"] = None if number == 1 else f"{_IDS}{1:012x}"
    return canonical(tree)


def _draft(rng: random.Random, template: str) -> Draft:
    ids = f"{str(UUID(int=rng.getrandbits(128), version=4))[:24]}"
    text = template.replace(_IDS, ids)
    return Draft("trace", {"session_id": f"{ids}{0:012x}"}, "bench", text, within_limits=True)


async def _auditor(database: Database, tenant_id: UUID) -> asyncpg.Connection:
    """A connection under row security; the setting holds for the session, which is this query's alone."""
    connection: asyncpg.Connection = await asyncpg.connect(database.app_url)
    await connection.execute("SELECT set_config('trails.tenants', $1, false)", tenant_setting(tenant_id))
    return connection


async def _seconds(connection: asyncpg.Connection, query: str) -> float:
    started = time.perf_counter()
    await connection.fetch(query)
    return time.perf_counter() - started


async def _plan(connection: asyncpg.Connection) -> list[str]:
    """The part of the view's plan that says how the failed calls are found."""
    plan = [row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {VIEW}")]
    if not any("trail_failed_tool_calls" in line for line in plan):
        raise RuntimeError("the view does not use its index:\n" + "\n".join(plan))
    return [f"the view's plan: {line.strip()}" for line in plan if " using " in line]


def _check(found: list[asyncpg.Record], classic: list[asyncpg.Record]) -> None:
    expected = RECORDS // FAILING_EVERY
    if sorted(map(tuple, found)) != sorted(map(tuple, classic)) or len(found) != expected:
        raise RuntimeError(f"{len(found)} and {len(classic)} failed calls found, not {expected} twice")
