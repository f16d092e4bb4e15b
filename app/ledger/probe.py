"""The readiness probe: one real append, taken back.

It goes through privileges, row security, CHECKs and triggers, on a chain of its own that never becomes
visible, so it neither waits for an agent's chain nor leaves anything behind.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import db.ledger
from db.pool import tenant_transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db.ledger import ChainRow, TrailRow
    from db.pool import Pool


class _TakeBackError(Exception):
    """Ends the transaction without a commit."""


async def roll_back_an_append(pool: Pool, rows: Sequence[TrailRow], chain: ChainRow) -> None:
    """Appends ``rows`` as the first of a new chain and rolls back.

    Raises:
        UnavailableError: the database is away or refuses; nothing would be recorded now.
    """
    with suppress(_TakeBackError):
        async with tenant_transaction(pool, chain.tenant_id) as connection:
            await db.ledger.append(connection, rows, chains=[chain])
            raise _TakeBackError
