"""Failed calls of tools over time, for a tenant; behind ``Ledger``, which takes the grant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import db.failures

if TYPE_CHECKING:
    from uuid import UUID

    from db.failures import FailureQuery, FailureReport
    from db.pool import Pool

TIMEOUT_MS: Final = 8_000
"""Of one statement: who looks at a page waits no longer, and the database has other work."""

_AT_ONCE: Final = 2
"""Reports that one process computes at the same moment; the others wait."""


class Failures:
    """Counts over the views; bounded in time and in how many run at once."""

    def __init__(self, pool: Pool, timeout_ms: int = TIMEOUT_MS) -> None:
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def report(self, tenant_id: UUID, query: FailureQuery) -> FailureReport:
        """Failed calls over time, by tool, and the newest.

        Raises:
            TooManyRequestsError: it takes too long.
        """
        async with self._turns:
            return await db.failures.report(self._pool, tenant_id, query, self._timeout_ms)
