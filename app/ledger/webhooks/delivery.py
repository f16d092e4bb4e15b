"""Delivering one webhook: its part of the feed, event after event, each until it is taken.

Whoever holds the webhook's lease delivers, and notes how far it is. What was sent and not noted when a
process died is sent again, under the same id: at least once, in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

import db.webhooks
from app.chain.record import parse_timestamp
from app.errors import BadRequestError, CursorGoneError, KeyMaterialError, NotFoundError, TrailsError
from app.ledger.webhooks.sender import GONE, Sender
from app.moment import from_microseconds, to_microseconds

if TYPE_CHECKING:
    from app.ledger.feed.cursor import Cursor
    from app.ledger.feed.feed import Feed, Told
    from app.ledger.webhooks.hooks import Webhook, Webhooks
    from app.ledger.webhooks.target import Networks
    from db.pool import Pool
    from db.webhooks import Claimed, Held

LEASE_SECS: Final = 60.0
"""How long a process that has died keeps others from delivering; an attempt takes a quarter of it at most."""

RENEW_SECS: Final = 15.0
"""How often it is noted that the holder lives."""

CHECK_SECS: Final = 3.0
"""How often it is looked whether the webhook is still in force."""

NOTE_SECS: Final = 1.0
"""How often it is noted how far the telling is, while events come."""

FIRST_AGAIN_SECS: Final = 5.0
MOST_AGAIN_SECS: Final = 3_600.0
"""After a failure the next attempt is made so much later, twice as much after each further one."""

LEAST_FAILURES: Final = 5
"""A webhook is not switched off before so many failures, however long it has failed."""

IDLE_SECS: Final = 3_600.0
"""When one that cannot be delivered at all is looked at again."""

OVERLAP: Final = timedelta(hours=1)
"""Behind a restore or a failover a webhook begins again so long before the last record that was told."""

_log: Final = logging.getLogger("trails.webhooks")


class Counts:
    """What the deliveries of a process came to."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.disabled = 0
        self.restarted = 0


class Turn:
    """How long a process has delivered a webhook, and whether it is to make room for another one."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.is_over = False

    @property
    def secs(self) -> float:
        """How long it lasts already."""
        return time.monotonic() - self._began


class Delivery:
    """Delivers one webhook as long as it is held."""

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
        self._feed = feed
        self._hooks = hooks
        self._networks = networks
        self._give_up_secs = give_up_secs
        self._counts = counts

    async def run(self, held: Held, turn: Turn) -> None:
        """Takes the webhook, if nobody else has it, and delivers until something ends that, or its turn."""
        claimed = await db.webhooks.claim(self._pool, held, LEASE_SECS)
        if claimed is None:
            return
        try:
            if await self._hooks.known(held.tenant_id, held.webhook_id):
                await self._deliver(held, claimed, turn)
            else:
                await db.webhooks.release(self._pool, held, IDLE_SECS)
        except (KeyMaterialError, NotFoundError) as error:
            _log.error("a webhook cannot be delivered: %s", error, extra={"fields": _fields(held)})
            await db.webhooks.fail(self._pool, held, "its row was changed, or the master key", IDLE_SECS)
        except asyncio.CancelledError:
            # The service stops: another process goes on at once.
            with suppress(TrailsError, TimeoutError):
                async with asyncio.timeout(NOTE_SECS):
                    await db.webhooks.release(self._pool, held, 0)
            raise

    async def _deliver(self, held: Held, claimed: Claimed, turn: Turn) -> None:
        hook = await self._hooks.opened(held.tenant_id, held.webhook_id)
        cursor = await self._begin(held, claimed)
        async with Sender(hook.url, hook.secret, self._networks) as sender:
            telling = _Telling(self._pool, held, claimed, sender, turn)
            problem = await self._tell_all(telling, hook, cursor)
        if problem is not None:
            await self._failed(held, telling.failures, problem)

    async def _begin(self, held: Held, claimed: Claimed) -> Cursor:
        """Where the telling goes on; behind a restore or a failover some time before that."""
        try:
            return await self._feed.resumed(held.tenant_id, claimed.cursor)
        except (CursorGoneError, BadRequestError) as error:
            self._counts.restarted += 1
            _log.warning("a webhook begins again: %s", error, extra={"fields": _fields(held)})
            at = to_microseconds(max(claimed.told_at, datetime(1970, 1, 2, tzinfo=UTC)) - OVERLAP)
            return await self._feed.from_start(held.tenant_id, at)

    async def _tell_all(self, telling: _Telling, hook: Webhook, cursor: Cursor) -> _Problem | None:
        """Tells event after event; returns why one was not taken, None when somebody else goes on."""
        following: asyncio.Future[Told] | None = None
        try:
            async with aclosing(self._feed.live(hook.tenant_id, cursor, hook.wanted)) as live:
                try:
                    while await self._is_ours(telling):
                        following = following or asyncio.ensure_future(anext(live))
                        await asyncio.wait({following}, timeout=NOTE_SECS)
                        if not following.done():
                            continue
                        told, following = following.result(), None
                        if (problem := await self._tell(telling, told)) is not None:
                            await telling.note()
                            return problem
                finally:
                    if following is not None:
                        following.cancel()
                        await asyncio.wait({following})
        except CursorGoneError:
            await db.webhooks.release(self._pool, telling.held, 0)
        return None

    async def _is_ours(self, telling: _Telling) -> bool:
        """Whether the webhook is still held and in force, and nobody waits for its place."""
        if telling.turn.is_over:
            await telling.note()
            await db.webhooks.release(self._pool, telling.held, 0)
            return False
        if telling.must_check():
            held = telling.held
            if not await self._hooks.known(held.tenant_id, held.webhook_id):
                await telling.note()
                await db.webhooks.release(self._pool, held, IDLE_SECS)
                return False
        return await telling.note() if telling.must_note else True

    async def _tell(self, telling: _Telling, told: Told) -> _Problem | None:
        if told.event is not None:
            attempt = await telling.sender.send(_id_of(told.event), told.event.encode())
            if not attempt.is_taken:
                return _Problem(attempt.problem or "", attempt.again_secs, is_gone=attempt.status == GONE)
            self._counts.delivered += 1
        telling.taken(told)
        return None

    async def _failed(self, held: Held, before: int, problem: _Problem) -> None:
        """An event was not taken: it is tried again later, or the webhook is switched off."""
        self._counts.failed += 1
        again = min(FIRST_AGAIN_SECS * 2.0 ** min(before, 20), MOST_AGAIN_SECS)
        again *= random.uniform(0.75, 1.25)  # noqa: S311  no secret: those that failed together spread
        again = max(again, min(problem.again_secs, MOST_AGAIN_SECS))
        failing = await db.webhooks.fail(self._pool, held, problem.text, again)
        gives_up = failing >= self._give_up_secs and before + 1 >= LEAST_FAILURES
        if gives_up or problem.is_gone:
            self._counts.disabled += 1
            _log.warning("a webhook is switched off: %s", problem.text, extra={"fields": _fields(held)})
            await self._hooks.disable(held.tenant_id, held.webhook_id, problem.text)


class _Problem(msgspec.Struct, frozen=True):
    """Why an event was not taken; ``is_gone``: the receiver wants no more; else none for ``again_secs``."""

    text: str
    again_secs: float
    is_gone: bool


class _Telling:
    """How far a holder is, and what of it is noted."""

    def __init__(self, pool: Pool, held: Held, claimed: Claimed, sender: Sender, turn: Turn) -> None:
        self._pool = pool
        self.held = held
        self.sender = sender
        self.turn = turn
        self._cursor = claimed.cursor
        self._told_at = claimed.told_at
        self._delivered = 0
        self._is_noted = True
        self._noted_at = self._checked_at = time.monotonic()
        self.failures = claimed.failures
        """In a row."""

    def must_check(self) -> bool:
        """Whether it is time to look if the webhook is in force; asked, it was."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECS:
            return False
        self._checked_at = now
        return True

    @property
    def must_note(self) -> bool:
        """Whether there is something to note."""
        since = time.monotonic() - self._noted_at
        return since >= RENEW_SECS or (not self._is_noted and since >= NOTE_SECS)

    def taken(self, told: Told) -> None:
        """The receiver has this, or it was not for it."""
        self._cursor = told.cursor
        self._is_noted = False
        if told.event is not None:
            self._delivered += 1
            self.failures = 0
            self._told_at = from_microseconds(parse_timestamp(json.loads(told.event)["time"]))

    async def note(self) -> bool:
        """Notes how far it is; False when the webhook is not held any more."""
        is_held = await db.webhooks.keep(
            self._pool,
            self.held,
            cursor=self._cursor,
            told_at=self._told_at,
            delivered=self._delivered,
            secs=LEASE_SECS,
        )
        self._delivered, self._is_noted, self._noted_at = 0, True, time.monotonic()
        return is_held


def _id_of(event: str) -> str:
    return str(json.loads(event)["id"])


def _fields(held: Held) -> dict[str, str]:
    return {"tenant": str(held.tenant_id), "webhook": held.webhook_id}
