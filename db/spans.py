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
        session_ids: where they are looked for.
        since: the earliest record that counts.
        agent_id: of the records that do not count, which are
        written: their ``seq``.
    """

    parent_ids: Sequence[str]
    session_ids: Sequence[UUID]
    since: datetime
    agent_id: str
    written: Sequence[int]


async def calls_below(pool: Pool, tenant_id: UUID, wanted: Below) -> list[TrailRow]:
    """The trace records that hold such calls; 200 at most, in order of time."""
    async with tenant_transaction(pool, tenant_id) as connection:
        rows = await connection.fetch(
            _SQL["calls_below"],
            tenant_id,
            list(wanted.session_ids),
            wanted.since,
            list(wanted.parent_ids),
            wanted.agent_id,
            list(wanted.written),
        )
    return [TrailRow(*row) for row in rows]
