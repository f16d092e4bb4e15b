"""The feed of a tenant: pages for who asks now and then, and a live stream for who listens.

Both walk the same way through the same batches (``app.ledger.feed.batches``), and their cursors are the same.
A cursor is complete in itself: the service remembers nothing of who reads.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from app.errors import UnavailableError
from app.ledger.feed.batches import Batches, anchor_of
from app.ledger.feed.cursor import Cursor, Cursors, Place, Position
from app.ledger.feed.event import event_of
from app.ledger.feed.poller import AWAY_SECS, PAGE_ROWS, Pollers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from uuid import UUID

    from app.ledger.chain import Chains
    from app.ledger.feed.batches import Page, Wanted
    from db.feed import FeedRow
    from db.pool import Pool

PROGRESS_SECS: Final = 15.0
"""A live stream of which nothing was wanted for so long tells how far it is, so that it is resumed there."""

SCANNED: Final = 5_000
"""Records that one page looks through for those that are wanted."""


class Told(msgspec.Struct, frozen=True):
    """One event and the cursor behind it; without an event the cursor alone."""

    cursor: str
    event: str | None = None


class FeedPage(msgspec.Struct, frozen=True):
    """Events, each as JSON; where to go on; whether there is more already."""

    events: list[str]
    next: str
    more: bool


class Feed:
    """All records of a tenant, as they are committed."""

    def __init__(self, pool: Pool, chains: Chains, master_key: bytes) -> None:
        self._batches = Batches(pool)
        self._chains = chains
        self._cursors = Cursors(master_key)
        self.pollers = Pollers(self._batches)

    async def from_now(self, tenant_id: UUID) -> Cursor:
        """Behind all that is committed at this moment."""
        source, now = await self._batches.now(tenant_id)
        return Cursor(source, Position(now))

    async def from_start(self, tenant_id: UUID, not_before_us: int | None = None) -> Cursor:
        """Before all records, or before those with a time from ``not_before_us`` on (µs since 1970)."""
        source, _ = await self._batches.now(tenant_id)
        return Cursor(source, Position(None, not_before_us))

    async def resumed(self, tenant_id: UUID, text: str) -> Cursor:
        """Where a client stopped.

        Raises:
            BadRequestError: it is no cursor of this tenant.
            CursorGoneError: this database cannot go on there.
        """
        cursor = self._cursors.open(tenant_id, text)
        await self._batches.require(tenant_id, cursor)
        return cursor

    def seal(self, tenant_id: UUID, cursor: Cursor) -> str:
        """The cursor as clients keep it."""
        return self._cursors.seal(tenant_id, cursor)

    async def page(self, tenant_id: UUID, cursor: Cursor, wanted: Wanted, limit: int) -> FeedPage:
        """The next events, at most ``limit``. It may be empty and have more behind it, if few are wanted.

        Raises:
            CursorGoneError: this database cannot go on there.
        """
        events: list[str] = []
        scanned, more = 0, True
        while more and not events and scanned < SCANNED:
            page = await self._batches.page(
                tenant_id, cursor.source, cursor.position, limit=limit, wanted=wanted
            )
            events = [self.event(tenant_id, row) for row in page.rows]
            cursor = Cursor(cursor.source, page.next, page.last or cursor.anchor)
            # Behind the end of an earlier batch there may be more by now.
            scanned, more = scanned + limit, not page.complete or not page.is_new
        return FeedPage(events, self.seal(tenant_id, cursor), more)

    async def live(self, tenant_id: UUID, cursor: Cursor, wanted: Wanted) -> AsyncGenerator[Told]:
        """Every event from the cursor on, for ever; while the database is away it waits.

        Raises:
            CursorGoneError: this database cannot go on there, now or any more.
        """
        walk = _Walk(self, tenant_id, cursor, wanted)
        while True:
            async for told in self._caught_up(walk):
                yield told
            async with self.pollers.listening(tenant_id) as listener:
                # What was committed until the listening began; the pages tell of some of it again.
                async for told in self._caught_up(walk):
                    yield told
                async for page in listener.pages():
                    for told in walk.heard(page):
                        yield told

    def event(self, tenant_id: UUID, row: FeedRow) -> str:
        """The event of a record, as JSON."""
        chain = self._chains.at_hand(tenant_id, row.agent_id)
        return event_of(tenant_id, row, quarantined=chain is not None and chain.fault is not None)

    async def _caught_up(self, walk: _Walk) -> AsyncIterator[Told]:
        """Reads until all that is committed by now was told."""
        is_complete = False
        while not is_complete:
            try:
                page = await self._batches.page(
                    walk.tenant_id,
                    walk.cursor.source,
                    walk.cursor.position,
                    limit=PAGE_ROWS,
                    wanted=walk.wanted,
                )
            except UnavailableError:
                await asyncio.sleep(AWAY_SECS)
                continue
            for told in walk.read(page):
                yield told
            is_complete = page.complete and page.is_new


class _Walk:
    """How far one live stream is."""

    def __init__(self, feed: Feed, tenant_id: UUID, cursor: Cursor, wanted: Wanted) -> None:
        self._feed = feed
        self.tenant_id = tenant_id
        self.cursor = cursor
        self.wanted = wanted
        self._told_at = time.monotonic()

    def read(self, page: Page) -> Iterator[Told]:
        """Tells a page of its own, which goes on where it was."""
        for number, row in enumerate(page.rows):
            is_last = page.complete and number == len(page.rows) - 1
            position = page.next if is_last else self._within(page, row)
            yield self._tell(row, position)
        self._go_on(page.next, page)
        yield from self._progress()

    def heard(self, page: Page) -> Iterator[Told]:
        """Tells of a poller's page what it has not told yet."""
        since = self.cursor.position.since
        rows = [
            row
            for row in page.rows
            if self.wanted.takes(row) and not (since is not None and since.shows(row.xid))
        ]
        is_newer = since is None or page.upto.covers(since)
        for number, row in enumerate(rows):
            is_last = page.complete and is_newer and number == len(rows) - 1
            yield self._tell(row, Position(page.upto) if is_last else self._within(page, row))
        if is_newer:
            before = self.cursor.position
            within = Position(before.since, before.not_before_us, page.upto, page.next.place)
            self._go_on(Position(page.upto) if page.complete else within, page)
            yield from self._progress()

    def _within(self, page: Page, row: FeedRow) -> Position:
        """Behind a record in the middle of a batch."""
        before = self.cursor.position
        return Position(before.since, before.not_before_us, page.upto, Place(row.log_uuid.bytes, row.seq))

    def _tell(self, row: FeedRow, position: Position) -> Told:
        self._told_at = time.monotonic()
        cursor = Cursor(self.cursor.source, position, anchor_of(row))
        return Told(self._feed.seal(self.tenant_id, cursor), self._feed.event(self.tenant_id, row))

    def _go_on(self, position: Position, page: Page) -> None:
        self.cursor = Cursor(self.cursor.source, position, page.last or self.cursor.anchor)

    def _progress(self) -> Iterator[Told]:
        if time.monotonic() - self._told_at >= PROGRESS_SECS:
            self._told_at = time.monotonic()
            yield Told(self._feed.seal(self.tenant_id, self.cursor))
