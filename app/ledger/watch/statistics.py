"""Keeps PostgreSQL's statistics of young tables, and of restored ones, from falling behind what they hold.

Autovacuum looks at a table a minute after it was filled; until then look-ups may read all rows of a tenant.
So each process of the service asks for what is missing, often, since asking costs hardly more than a look-up:
what is missing, and that two do not gather it at once, the database decides (``refresh_statistics_v1``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import db.statistics
from app.errors import TrailsError

if TYPE_CHECKING:
    from db.pool import Pool

ROUND_SECS: Final = 2.0
"""How long tables may grow before they are looked at again."""

MOST_SECS: Final = 300.0
"""How long it waits at most behind rounds that failed: each may have read much of a table for nothing."""

_log: Final = logging.getLogger("trails.statistics")


class StatisticsKeeper:
    """Has the statistics gathered of tables that lack them; ``pause_secs`` is the wait behind a round."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.pause_secs = ROUND_SECS

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Makes rounds while the block runs."""
        task = asyncio.create_task(self.run(), name="statistics")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def run(self) -> None:
        """Makes rounds until it is cancelled; nothing else ends it."""
        while True:
            await self.round()
            await asyncio.sleep(self.pause_secs)

    async def round(self) -> list[str]:
        """Looks at every table once; returns those whose statistics were gathered here.

        Whatever fails is told once and ends the round; the next ones come less and less often.
        """
        gathered: list[str] = []
        try:
            while (table := await db.statistics.refresh(self._pool)) is not None and table not in gathered:
                _log.debug("statistics were gathered", extra={"fields": {"table": table}})
                gathered.append(table)
        except Exception as error:  # noqa: BLE001  plans are slower without it, and nothing else
            if self.pause_secs == ROUND_SECS:
                reason = error.message if isinstance(error, TrailsError) else type(error).__name__
                _log.warning("statistics could not be gathered", extra={"fields": {"reason": reason}})
            self.pause_secs = min(2 * self.pause_secs, MOST_SECS)
        else:
            self.pause_secs = ROUND_SECS
        return gathered
