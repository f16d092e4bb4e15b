"""Grouped commits: appends of many chains that wait at the same moment share one statement.

A commit costs one write to disk whatever it carries, so the committer takes all appends that wait and
sends them together. An append that another process made stale fails its whole group; each member is then
tried alone, so that one chain's conflict never costs another chain its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import db.ledger
from app.errors import TrailsError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db.ledger import TrailRow
    from db.pool import Pool

MAX_GROUP_ROWS = 512
"""Rows in one statement: enough to share the disk write, small enough to hold no lock for long."""

MAX_WAITING = 20_000
"""Appends that may wait; more are refused at once, since they could only time out."""


class _Append:
    __slots__ = ("done", "rows")

    def __init__(self, rows: Sequence[TrailRow]) -> None:
        self.rows = rows
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class Committer:
    """Writes appends through ``writers`` connections at once; ``append`` returns when it is on disk."""

    def __init__(self, pool: Pool, *, writers: int = 3) -> None:
        self._pool = pool
        self._writers = writers
        self._waiting: deque[_Append] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    async def append(self, rows: Sequence[TrailRow]) -> None:
        """Commits all of ``rows`` (one act of one chain), or none.

        Raises:
            StaleChainError: the chain moved on; read on and decide again.
            UnavailableError: the database did not confirm; whether it committed is not known.
        """
        if self._closed:
            raise UnavailableError("the service is stopping; try again")
        if len(self._waiting) >= MAX_WAITING:
            raise UnavailableError("too many requests wait for the database; try again")
        append = _Append(rows)
        self._waiting.append(append)
        if len(self._running) < self._writers:
            task = asyncio.create_task(self._drain())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        # The group is shared: a caller that goes away must not cancel the others.
        await asyncio.shield(append.done)

    async def close(self) -> None:
        """Waits until all that was accepted is settled."""
        self._closed = True
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _drain(self) -> None:
        while self._waiting:
            await self._commit(self._take())

    def _take(self) -> list[_Append]:
        group = [self._waiting.popleft()]
        rows = len(group[0].rows)
        while self._waiting and rows + len(self._waiting[0].rows) <= MAX_GROUP_ROWS:
            group.append(self._waiting.popleft())
            rows += len(group[-1].rows)
        return group

    async def _commit(self, group: list[_Append]) -> None:
        error = await self._write([row for append in group for row in append.rows])
        if error is None or len(group) == 1:
            for append in group:
                append.settle(error)
            return
        for append in group:
            append.settle(await self._write(append.rows))

    async def _write(self, rows: Sequence[TrailRow]) -> Exception | None:
        try:
            await db.ledger.append(self._pool, rows)
        except TrailsError as error:
            return error
        except Exception as error:  # noqa: BLE001  a waiter must always be answered; it re-raises there
            return error
        return None
