"""Who delivers: each server process looks for webhooks that nobody holds, and takes some of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import db.webhooks
from app.errors import TrailsError
from app.ledger.webhooks.delivery import Counts, Delivery
from db.webhooks import Held

if TYPE_CHECKING:
    from app.ledger.feed.feed import Feed
    from app.ledger.webhooks.hooks import Webhooks
    from app.ledger.webhooks.target import Networks
    from db.pool import Pool

LOOK_SECS: Final = 1.0
"""How often a process looks for webhooks that nobody holds."""

MOST: Final = 100
"""Webhooks that one process delivers at the same time."""

_log: Final = logging.getLogger("trails.webhooks")


class Deliverer:
    """Delivers the webhooks of all tenants, with the other processes."""

    def __init__(
        self,
        pool: Pool,
        feed: Feed,
        hooks: Webhooks,
        *,
        networks: Networks,
        give_up_secs: float,
        counts: Counts,
    ) -> None:
        self._pool = pool
        self._delivery = Delivery(
            pool, feed, hooks, networks=networks, give_up_secs=give_up_secs, counts=counts
        )
        self._running: dict[tuple[UUID, str], asyncio.Task[None]] = {}

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Delivers as long as the block runs; what is held is let go at its end."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        try:
            while True:
                with suppress(TrailsError):  # the database is away: it is looked again
                    await self._look()
                await asyncio.sleep(LOOK_SECS)
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _look(self) -> None:
        room = MOST - len(self._running)
        if room <= 0:
            return
        for place in await db.webhooks.due(self._pool, room):
            if place not in self._running:
                self._running[place] = asyncio.create_task(self._deliver(place))

    async def _deliver(self, place: tuple[UUID, str]) -> None:
        tenant_id, webhook_id = place
        try:
            await self._delivery.run(Held(tenant_id, webhook_id, uuid4()))
        except TrailsError as error:
            _log.warning("a webhook waits: %s", error)  # its lease ends by itself
        except Exception:  # noqa: BLE001  it is logged, its lease ends, and the others go on
            _log.exception("delivering a webhook failed")
        finally:
            del self._running[place]
