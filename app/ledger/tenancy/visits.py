"""Visits to the console: begun, ended by signing out, and asked for at every page, on any server process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import db.access
from app.ledger.fresh import Fresh
from app.moment import from_microseconds

if TYPE_CHECKING:
    from app.ledger.clock import Clock
    from db.pool import Pool

FRESH_SECS: Final = 0.5
"""A visit that was ended is none after this time, on every server process."""

CAPACITY: Final = 10_000
"""Visits that are remembered."""


class Visits:
    """Knows which visits are open; each is named by a hash of 32 bytes of which its holder alone knows."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._known: Fresh[tuple[UUID, bytes], bool] = Fresh(FRESH_SECS, capacity=CAPACITY)

    async def begin(self, tenant_id: UUID, visit_hash: bytes, *, until_us: int) -> None:
        """Begins a visit, which ends at ``until_us`` (µs since the epoch) if not before."""
        now, until = from_microseconds(self._clock()), from_microseconds(until_us)
        await db.access.add_visit(self._pool, tenant_id, visit_hash, now, until)

    async def end(self, tenant_id: UUID, visit_hash: bytes) -> None:
        """Ends a visit; one that has ended stays so."""
        await db.access.end_visit(self._pool, tenant_id, visit_hash, from_microseconds(self._clock()))
        self._known.forget((tenant_id, visit_hash))

    async def is_open(self, tenant_id: UUID, visit_hash: bytes) -> bool:
        """Whether the visit was begun and not ended, as of half a second ago at most."""
        return await self._known.get(
            (tenant_id, visit_hash),
            lambda _: db.access.visit_is_open(self._pool, tenant_id, visit_hash),
        )
