"""What was read from the database and may be believed for a moment: asked for again when it is too old.

Other processes change the same rows. A bound on age is what a process promises of them ("a revoked key is
none within a second"); one caller asks, the others that want the same wait for its answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(msgspec.Struct, Generic[V]):
    """One value, since when it is known (monotonic seconds), and whose turn it is to ask for it."""

    turn: asyncio.Lock
    value: V | None = None
    since: float = 0.0


class Fresh(Generic[K, V]):
    """At most ``capacity`` values, none of them older than ``secs`` when it is given out."""

    def __init__(self, secs: float, *, capacity: int) -> None:
        self.secs = secs
        self._capacity = capacity
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    def at_hand(self, key: K) -> V | None:
        """The value, if it is known and not too old."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._is_fresh(entry) else None

    async def get(self, key: K, load: Callable[[V | None], Awaitable[V]]) -> V:
        """The value; ``load`` gets the one that became too old, if there was one.

        What ``load`` raises is raised here, and nothing is remembered of it.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(asyncio.Lock())
            self._forget_oldest()
        elif entry.value is not None and self._is_fresh(entry):
            return entry.value
        else:
            self._entries.move_to_end(key)  # once in ``secs``: what is used is asked for again so often
        try:
            return await self._asked(entry, load)
        finally:
            if entry.value is None and self._entries.get(key) is entry and not entry.turn.locked():
                del self._entries[key]

    def forget(self, key: K) -> None:
        """The value is asked for again: this process knows that it changed."""
        self._entries.pop(key, None)

    async def _asked(self, entry: _Entry[V], load: Callable[[V | None], Awaitable[V]]) -> V:
        async with entry.turn:
            if entry.value is None or not self._is_fresh(entry):
                asked = time.monotonic()  # what changes while it is read counts as not seen
                entry.value = await load(entry.value)
                entry.since = asked
            return entry.value

    def _is_fresh(self, entry: _Entry[V]) -> bool:
        return time.monotonic() - entry.since < self.secs

    def _forget_oldest(self) -> None:
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
