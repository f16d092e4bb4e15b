"""Statistics of the tables, by which PostgreSQL chooses its indexes.

Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from typing import Final

from db.pool import Pool, tenant_transaction
from db.sql import statements

_SQL: Final = statements("statistics")


async def refresh(pool: Pool) -> str | None:
    """Gathers the statistics of one table that lacks them, and returns its name; None when there is none.

    It is in a transaction of its own, so that no table stays locked against autovacuum for another.
    """
    async with tenant_transaction(pool) as connection:
        name: str | None = await connection.fetchval(_SQL["refresh"])
        return name
