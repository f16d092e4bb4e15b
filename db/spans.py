"""What the ledger asks of the database about spans that belong together across requests and chains.

Each question is one statement, which names the tenant for itself: it is asked for nearly every request.
Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from db.errors import translate
from db.ledger import SpanRow
from db.pool import ACQUIRE_SECONDS, Pool, give_back, tenant_setting
from db.sql import statements

_SQL: Final = statements("spans")


class Sight(msgspec.Struct, frozen=True):
    """Which records count for a caller.

    Attributes:
        log_uuid: those of this chain do.
        actor: in other chains those that this actor wrote, unless it is the chain's own agent; None: none.
    """

    log_uuid: UUID
    actor: str | None


class Below(msgspec.Struct, frozen=True):
    """Which tool calls are looked for: those right below one of some nodes.

    Attributes:
        parent_ids: node ids, in lower case.
        trace_ids: where they are looked for (16 bytes each).
        since: the earliest record that counts.
        written: ``seq`` of the records of the caller's chain that do not count.
    """

    parent_ids: Sequence[str]
    trace_ids: Sequence[bytes]
    since: datetime
    written: Sequence[int]


async def ends(
    pool: Pool, tenant_id: UUID, keys: Sequence[tuple[bytes, bytes]], sight: Sight
) -> list[SpanRow]:
    """Where these spans (trace id, span id) stand, in all chains that are in sight."""
    columns = [[trace_id for trace_id, _ in keys], [span_id for _, span_id in keys]]
    rows = await _fetch(pool, "ends", tenant_id, *columns, sight.log_uuid, sight.actor)
    return [SpanRow(*row) for row in rows]


async def calls_below(pool: Pool, tenant_id: UUID, wanted: Below, sight: Sight) -> list[tuple[UUID, int]]:
    """Places (chain, ``seq``) of the records that hold such calls as spans told of them; 200 at most."""
    rows = await _fetch(
        pool,
        "calls_below",
        tenant_id,
        list(wanted.trace_ids),
        wanted.since,
        list(wanted.parent_ids),
        list(wanted.written),
        sight.log_uuid,
        sight.actor,
    )
    return [(row["log_uuid"], row["seq"]) for row in rows]


async def _fetch(pool: Pool, name: str, tenant_id: UUID, *arguments: object) -> list[asyncpg.Record]:
    with translate():
        connection = await pool.acquire(timeout=ACQUIRE_SECONDS)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(
                _SQL[name], tenant_setting(tenant_id), tenant_id, *arguments
            )
            # The tenant was named for this one statement alone.
            connection.leave_untouched()  # type: ignore[attr-defined]  # the pool's stand-in passes it on
            return rows
        finally:
            await give_back(pool, connection)
