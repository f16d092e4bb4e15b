"""How much of large bodies one process holds at a time, over all routes (cases H01, H02, H31).

A body goes through two rooms, each counted in bytes, and small ones (``LARGE_BYTES``) through neither:

- while it **arrives** and waits, it holds the bytes that have come, no more. When the room is full, the body
  that comes most slowly makes way, so that nobody keeps others out by sending a large body and stopping
  before its end;
- when it is whole it takes a place in **work** as large as it is (inflated), and keeps it until its request
  is answered: what is made of a body takes twenty times as much memory as the body. Places are given in the
  order in which bodies are whole, but what fits passes what does not: one large body holds up no small ones.

Who makes way, or finds no place within ``PLACE_SECS``, gets 503 with Retry-After, and sends it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from app.errors import UnavailableError

LARGE_BYTES: Final = 64 * 1024
"""A body above this is counted, and worked on beside the event loop."""

ARRIVING_BYTES: Final = 96 * 1024 * 1024
"""Bytes of bodies that arrive or wait for a place."""

WORK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of bodies in work, not compressed. A larger body is let in when nothing else is in work."""

PLACE_SECS: Final = 4.0
"""How long a whole body waits for its place. Exporters give up after ten seconds, retries included."""

BUSY: Final = "too many large bodies at once; send it again a little later"


class Places:
    """Places of one kind, ``capacity`` in all. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = self._free = capacity
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def capacity(self) -> int:
        """All there are."""
        return self._capacity

    @property
    def taken(self) -> int:
        """Those that are not free."""
        return self._capacity - self._free

    async def place(self, size: int) -> Place:
        """Waits for a place of so many.

        Raises:
            UnavailableError: there was none in time.
        """
        size = min(size, self._capacity)
        if size > self._free:
            await self._wait(size)
        else:
            self._free -= size
        return Place(self, size)

    async def _wait(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(PLACE_SECS):
                await turn
        except BaseException as error:
            # Given up, or let in at the same moment.
            self.give_back(0 if turn.cancelled() else size)
            if isinstance(error, TimeoutError):
                raise UnavailableError(BUSY) from None
            raise

    def give_back(self, size: int) -> None:
        """Frees so many, and lets in who fits."""
        self._free += size
        waiting, self._waiting = self._waiting, []
        for needed, turn in waiting:
            if turn.done():
                continue
            if needed > self._free:
                self._waiting.append((needed, turn))
            else:
                self._free -= needed
                turn.set_result(None)


class Place:
    """A place that is held."""

    __slots__ = ("_places", "_size")

    def __init__(self, places: Places, size: int) -> None:
        self._places = places
        self._size = size

    def leave(self) -> None:
        """Gives it back, once."""
        size, self._size = self._size, 0
        self._places.give_back(size)


class Room:
    """What one process has for large bodies. For one event loop."""

    def __init__(self, arriving: int = ARRIVING_BYTES, work: int = WORK_BYTES) -> None:
        self.work = Places(work)
        """Bytes of bodies in work."""
        self.inflating = Places(1)
        """Bodies that are inflated to see how large they are."""
        self.arriving = arriving
        """Bytes of bodies that may arrive at a time."""
        self._arrivals: set[Arrival] = set()
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of large bodies that arrive or wait."""
        return self._held

    def arrival(self, make_way: Callable[[], None]) -> Arrival:
        """A body that begins to arrive; ``make_way`` is called when it has to give up for others."""
        return Arrival(self, make_way)

    def hold(self, arrival: Arrival, size: int) -> None:
        """Counts the bytes of one that arrives; when they are too many, the slowest make way."""
        self._arrivals.add(arrival)
        self._held += size - arrival.size
        arrival.size = size
        now = time.monotonic()
        while self._held > self.arriving and arrival in self._arrivals:
            slowest = min((one for one in self._arrivals if not one.is_whole), key=lambda one: one.speed(now))
            self.release(slowest)
            if slowest is not arrival:
                slowest.make_way()
        if arrival not in self._arrivals:
            raise UnavailableError(BUSY)

    def release(self, arrival: Arrival) -> None:
        """Forgets one that arrived, or gave up."""
        if arrival in self._arrivals:
            self._arrivals.remove(arrival)
            self._held -= arrival.size


class Arrival:
    """One body on its way in."""

    __slots__ = ("_began", "_room", "is_whole", "make_way", "size")

    def __init__(self, room: Room, make_way: Callable[[], None]) -> None:
        self._room = room
        self._began = time.monotonic()
        self.make_way = make_way
        self.is_whole = False
        self.size = 0

    def speed(self, now: float) -> float:
        """Bytes a second since it began."""
        return self.size / (now - self._began + 0.001)

    def has(self, size: int) -> None:
        """So many bytes of it have come.

        Raises:
            UnavailableError: it was the slowest when the room was full.
        """
        if size > LARGE_BYTES:
            self._room.hold(self, size)

    def leave(self) -> None:
        """It is in work, or given up."""
        self._room.release(self)
