"""Pollers: one for each tenant that somebody listens to looks for new records, for all who listen.

It asks as often as it may take a tenth of its time for it: with few chains twice a second, with many
thousands every some seconds. Nobody waits for a listener: one that falls behind is told so, and reads on by
itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from app.errors import TrailsError, UnavailableError
from app.ledger.feed.cursor import Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from app.ledger.feed.batches import Batches, Page
    from app.ledger.feed.cursor import Source

POLL_SECS: Final = 0.5
"""How often it is looked for records, at most."""

MOST_POLL_SECS: Final = 10.0
"""And at least."""

SHARE: Final = 0.1
"""The share of its time that a poller may spend on asking."""

AWAY_SECS: Final = 1.0
"""How long it waits when the database is away."""

PAGE_ROWS: Final = 500
KEPT_PAGES: Final = 8
"""Records of one page, and pages that wait for a listener before it has fallen behind."""

_log: Final = logging.getLogger("trails.feed")


class Listener:
    """Gets each page that its poller reads, until it falls behind."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._pages: asyncio.Queue[Page | None] = asyncio.Queue(KEPT_PAGES + 1)
        self._error: TrailsError | None = None
        self._is_behind = False

    async def pages(self) -> AsyncIterator[Page]:
        """The pages in their order; they end when the listener has fallen behind.

        Raises:
            CursorGoneError: the database is another one now.
        """
        while (page := await self._pages.get()) is not None:
            yield page
        if self._error is not None:
            raise self._error

    def give(self, page: Page) -> None:
        """A page was read."""
        if self._is_behind:
            return
        if self._pages.qsize() < KEPT_PAGES:
            self._pages.put_nowait(page)
        else:
            self._is_behind = True
            self._pages.put_nowait(None)

    def end(self, error: TrailsError) -> None:
        """There will be no more pages."""
        self._error = error
        if not self._is_behind:
            self._pages.put_nowait(None)


class Pollers:
    """The pollers of one process."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._of: dict[UUID, _Poller] = {}
        self.polls = 0
        """How often the database was asked."""

        self.seconds = 0.0
        """How long that took in all."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._of)

    @asynccontextmanager
    async def listening(self, tenant_id: UUID) -> AsyncIterator[Listener]:
        """Somebody listens as long as the block runs, to all that is committed after its beginning.

        Raises:
            CursorGoneError: the database is another one now.
        """
        poller = self._of.get(tenant_id)
        if poller is None or poller.is_over:
            poller = self._of[tenant_id] = _Poller(self._batches, tenant_id, self)
        try:
            listener = await poller.join()
            try:
                yield listener
            finally:
                poller.listeners.discard(listener)
        finally:
            poller.waiting -= 1
            if not poller.waiting:
                if self._of.get(tenant_id) is poller:  # before it ends: nobody joins one that does
                    del self._of[tenant_id]
                await poller.end()


class _Poller:
    """Looks for one tenant's new records."""

    def __init__(self, batches: Batches, tenant_id: UUID, told: Pollers) -> None:
        self._batches = batches
        self._tenant_id = tenant_id
        self._told = told
        self._begun: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        self.listeners: set[Listener] = set()
        self.waiting = 0
        """Who listens or is about to."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is looked for."""
        return self._task.done()

    async def join(self) -> Listener:
        """Adds a listener; who comes has been counted, whatever comes of it."""
        self.waiting += 1
        listener = Listener(await asyncio.shield(self._begun))
        self.listeners.add(listener)
        if self._task.done():
            listener.end(UnavailableError("the feed was ended"))
        return listener

    async def end(self) -> None:
        """Ends it."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        try:
            source, position = await self._begin()
            self._begun.set_result(source)
            while True:
                position = await self._poll(source, position)
        except TrailsError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  it is logged, and nobody listens to what is no more
            _log.exception("looking for new records failed")
            self._fail(UnavailableError("looking for new records failed"))

    def _fail(self, error: TrailsError) -> None:
        if not self._begun.done():
            self._begun.set_exception(error)
        for listener in self.listeners:
            listener.end(error)

    async def _begin(self) -> tuple[Source, Position]:
        while True:
            try:
                source, now = await self._batches.now(self._tenant_id)
            except UnavailableError:
                await asyncio.sleep(AWAY_SECS)
            else:
                return source, Position(now)

    async def _poll(self, source: Source, position: Position) -> Position:
        """Asks once, and waits as long as that took, several times."""
        began = time.monotonic()
        try:
            page = await self._batches.page(self._tenant_id, source, position, limit=PAGE_ROWS)
        except UnavailableError:
            await asyncio.sleep(AWAY_SECS)
            return position
        took = time.monotonic() - began
        self._told.polls += 1
        self._told.seconds += took
        for listener in self.listeners:
            listener.give(page)
        await asyncio.sleep(min(max(took / SHARE - took, POLL_SECS if page.complete else 0), MOST_POLL_SECS))
        return page.next
