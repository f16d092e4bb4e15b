"""What sessions of the service set for large records, and only where the server does not have it so."""

from __future__ import annotations

import asyncpg

import db.ledger
from db.pool import create_pool
from tests.support.postgres import Database
from tests.support.rows import Maker


async def test_large_records_are_compressed_with_the_best_that_the_server_knows(
    database: Database, admin: asyncpg.Connection, maker: Maker
) -> None:
    """Also on a connection that was given back to the pool, which resets it.

    Without lz4 the document as JSONB is stored as it is (migration 0010).
    """
    known = await admin.fetchval("SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'")
    best = ("lz4", "lz4") if "lz4" in known else ("pglz", None)
    rows = [maker.row(payload={"text": "a large record " * 1_000}) for _ in range(2)]
    seqs = [row.seq for row in rows]
    async with await create_pool(database.app_url, min_size=1, max_size=1) as pool:
        for row in rows:
            await db.ledger.append(pool, [row])
        assert await db.ledger.rows_at(pool, maker.tenant_id, maker.log_uuid, seqs) == rows
    used = await admin.fetch(
        "SELECT pg_column_compression(signed_text), pg_column_compression(trace_data)"
        " FROM trails.agent_audit_trails WHERE seq = ANY ($1)",
        seqs,
    )
    assert [tuple(row) for row in used] == [best] * len(rows)


async def test_memory_for_a_group_of_records_is_raised_and_never_lowered(
    database: Database, admin: asyncpg.Connection
) -> None:
    name = database.admin_url.rpartition("/")[2]
    for set_for_the_database, used in (("4MB", "16MB"), ("64MB", "64MB")):
        await admin.execute(f"ALTER DATABASE {name} SET work_mem = '{set_for_the_database}'")
        async with await create_pool(database.app_url, min_size=1, max_size=1) as pool:
            assert await pool.fetchval("SELECT current_setting('work_mem')") == used
