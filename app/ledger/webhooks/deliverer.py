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
from app.ledger.webhooks.delivery import Counts, Delivery, Turn
from db.webhooks import Held

if TYPE_CHECKING:
    from app.ledger.feed.feed import Feed
    from app.ledger.webhooks.hooks import Webhooks
    from app.ledger.webhooks.target import Networks
    from db.pool import Pool

LOOK_SECS: Final = 1.0
"""How often a process looks for webhooks that nobody holds."""

MOST: Final = 100
"""Webhooks that one process delivers at the same time; if more are due, they take turns."""

TURN_SECS: Final = 10.0
"""How long a webhook is held at least before it makes room for one that waits."""

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
        self._running: dict[tuple[UUID, str], tuple[Turn, asyncio.Task[None]]] = {}

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
                try:
                    await self._look()
                except TrailsError:
                    pass  # the database is away: it is looked again
                except Exception:  # noqa: BLE001  it is logged, and looked again
                    _log.exception("looking for webhooks failed")
                await asyncio.sleep(LOOK_SECS)
        finally:
            running = [task for _, task in self._running.values()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    async def _look(self) -> None:
        due = await db.webhooks.due(self._pool, MOST)
        waiting = [place for place in due if place not in self._running]
        room = MOST - len(self._running)
        for place in waiting[:room]:
            turn = Turn()
            self._running[place] = turn, asyncio.create_task(self._deliver(place, turn))
        self._make_room(len(waiting) - room)

    def _make_room(self, count: int) -> None:
        """Ends the turns of as many as wait, those that have lasted longest.

        Without this a webhook that is always in order would be held for ever, and whoever comes after the
        first ``MOST`` of them would be told nothing.
        """
        lasting = [turn for turn, _ in self._running.values() if turn.secs >= TURN_SECS]
        for turn in lasting[: max(0, count)]:  # they were begun in this order
            turn.is_over = True

    async def _deliver(self, place: tuple[UUID, str], turn: Turn) -> None:
        tenant_id, webhook_id = place
        try:
            await self._delivery.run(Held(tenant_id, webhook_id, uuid4()), turn)
        except TrailsError as error:
            _log.warning("a webhook waits: %s", error)  # its lease ends by itself
        except Exception:  # noqa: BLE001  it is logged, its lease ends, and the others go on
            _log.exception("delivering a webhook failed")
        finally:
            del self._running[place]
