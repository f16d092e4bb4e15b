"""Turns: writers of one chain that wait at the same moment are written together.

While one append is under way, what arrives waits and goes together in the next, so that a chain with many
writers costs no commit for each of them, and none of them waits for its own commit behind all the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from app.errors import QuarantinedError, UnavailableError
from app.ledger.chain import LOCK_SECS

if TYPE_CHECKING:
    from app.ledger.chain import Chain

MAX_WAITING = 20_000
"""Turns that may wait; more are refused at once, since they could only time out."""


class Turn:
    """One caller's wait; settled when it is written, or when it is known that it cannot be."""

    __slots__ = ("_done", "_limit")

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limit = asyncio.timeout(LOCK_SECS)

    async def settled(self) -> None:
        """Waits until it is settled; not longer than ``LOCK_SECS`` for those before it.

        Raises:
            UnavailableError: the time was over before anything was written.
        """
        try:
            async with self._limit:
                await self._done
        except TimeoutError:
            raise UnavailableError("other requests on this agent wait for the database; try again") from None

    def begin(self) -> bool:
        """Its turn has come: it is waited for until it is known whether it was written.

        False when its caller has gone away, so that nothing must be written any more.
        """
        if self._done.done():
            return False
        self._limit.reschedule(None)
        return True

    def settle(self, error: Exception | None = None) -> None:
        """Lets the caller go on, or raises there what went wrong."""
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


T = TypeVar("T", bound=Turn)


class Turns(Generic[T]):
    """The turns that wait, by chain.

    Args:
        take: takes those off the queue that are written next: as many as one statement should hold, at least
            one that is still waited for, if there is one; each has begun.
        write: writes some on the chain, which is this task's alone meanwhile. It is called again with each of
            them alone when together they were refused; what was written before must not be written again.
    """

    def __init__(
        self, take: Callable[[deque[T]], list[T]], write: Callable[[Chain, Sequence[T]], Awaitable[None]]
    ) -> None:
        self.queues: dict[Chain, deque[T]] = {}
        self._take = take
        self._write = write
        self._running: set[asyncio.Task[None]] = set()
        self._waiting = 0

    def require_room(self) -> None:
        """Raises UnavailableError when too many wait already."""
        if self._waiting >= MAX_WAITING:
            raise UnavailableError("too many posts wait for the database; try again")

    async def wait(self, chain: Chain, turn: T) -> None:
        """Waits until ``turn`` is written on ``chain``. Raises what ``write`` raised for it.

        Raises:
            UnavailableError: those before it wait for the database for too long; nothing was written.
        """
        self._enqueue(chain, turn)
        self._waiting += 1
        try:
            await turn.settled()
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Waits until all that was accepted is settled."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    def _enqueue(self, chain: Chain, turn: T) -> None:
        queue = self.queues.get(chain)
        if queue is not None:
            queue.append(turn)
            return
        self.queues[chain] = deque([turn])
        task = asyncio.create_task(self._drain(chain, self.queues[chain]))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _drain(self, chain: Chain, queue: deque[T]) -> None:
        try:
            while queue:
                await self._serve(chain, queue)
        finally:
            del self.queues[chain]

    async def _serve(self, chain: Chain, queue: deque[T]) -> None:
        """Settles the turns that wait: those of one append."""
        turns: list[T] = []
        try:
            async with chain.exclusively():
                turns = self._take(queue)
                await self._write_all(chain, turns)
        except Exception as error:  # noqa: BLE001  it is raised again where the turn is waited for
            for turn in turns or self._take(queue):
                turn.settle(error)

    async def _write_all(self, chain: Chain, turns: Sequence[T]) -> None:
        try:
            await self._write(chain, turns)
        except (UnavailableError, QuarantinedError):
            raise
        except Exception:
            if len(turns) == 1:
                raise
        else:
            for turn in turns:
                turn.settle()
            return
        # The database refused for what one of them holds: each alone, so that it fails for its own reason.
        for turn in turns:
            try:
                await self._write(chain, [turn])
                turn.settle()
            except Exception as error:  # noqa: BLE001  as above
                turn.settle(error)
