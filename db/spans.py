"""What the ledger asks of the database about spans that belong together across requests.

Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from db.ledger import TrailRow
from db.pool import Pool, tenant_transaction
from db.sql import statements

_SQL: Final = statements("spans")


class Below(msgspec.Struct, frozen=True):
    """Which tool calls are looked for: those right below one of some nodes.

    Attributes:
        parent_ids: node ids, in lower case.
        trace_ids: where they are looked for (16 bytes each).
        since: the earliest record that counts.
        agent_id: of the records that do not count, which are
        written: their ``seq``.
    """

    parent_ids: Sequence[str]
    trace_ids: Sequence[bytes]
    since: datetime
    agent_id: str
    written: Sequence[int]


async def calls_below(pool: Pool, tenant_id: UUID, wanted: Below) -> list[TrailRow]:
    """The trace records that hold such calls; 200 at most, each chain's in order."""
    async with tenant_transaction(pool, tenant_id) as connection:
        rows = await connection.fetch(
            _SQL["calls_below"],
            tenant_id,
            list(wanted.trace_ids),
            wanted.since,
            list(wanted.parent_ids),
            wanted.agent_id,
            list(wanted.written),
        )
    return [TrailRow(*row) for row in rows]
