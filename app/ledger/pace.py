"""Pace: server processes that write to one chain at the same moment take turns, without any lock.

An append is optimistic, and whoever appended last is the first who can append again: it knows the new head
already, and everybody else has to read and verify it first. So a process with many callers on one chain kept
it for as long as they came, and the others' callers waited until they were told to try later. Now a process
that has written to a chain for a while without a break leaves it alone for a moment, and one that came too
late waits for such a moment instead of trying again at once; what it tries in between costs the database
rows that it throws away.

A process that is alone finds that nobody came in its breaks, and makes them seldom. Nothing here is needed
for what is right, only for who is served when: the table decides which append stands.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from app.ledger.rebuild import catch_up

if TYPE_CHECKING:
    from app.ledger.chain import Chain
    from app.ledger.keys.keystore import TenantKeys
    from db.pool import Pool

SHORTEST_SECS: Final = 0.05
"""How long a process writes to a chain without a break while others do, too."""

LONGEST_SECS: Final = 2.0
"""The same while nobody came in its breaks: well below ``LOCK_SECS``, since somebody may wait for one."""

BREAK_SECS: Final = 0.015
"""A break, or twice as long as the last act took: enough to read what was written, decide, sign and append.

It is twice as long, and ends as soon as somebody came, where others are known to write.
"""

LONGEST_BREAK_SECS: Final = 0.5
"""The most of that: an act that waited for a silent database says nothing of how long others take, and while
a break lasts, nobody of this process writes."""

LOOKS: Final = 3
"""How often is looked in a break whether somebody came."""

REST_SECS: Final = 0.003
"""A chain on which nothing was written for so long is at rest: less than a break, more than one append."""

LATE_SECS: Final = 0.1
"""How long rest is waited for before it is tried all the same, for the case that others make no breaks."""


class Pace:
    """When this process has written to one chain, and how long it goes on before it makes a break.

    Times are monotonic seconds.
    """

    __slots__ = ("_began", "_came", "_left", "_run", "_took")

    def __init__(self) -> None:
        self._began = self._came = self._left = self._took = 0.0
        self._run = LONGEST_SECS

    def come(self, now: float) -> None:
        """Somebody of this process has the chain for himself from now on."""
        if now - self._left > BREAK_SECS:
            self._began = now
        self._came = now

    def leave(self, now: float) -> None:
        """He gives it back."""
        self._left, self._took = now, now - self._came

    def needs_break(self, now: float) -> bool:
        """Whether this process was busy on the chain for so long that others may wait for it."""
        return now - self._began >= self._run

    def broken(self, now: float, *, shared: bool) -> None:
        """There was a break; ``shared``: somebody else wrote in it."""
        self._began = self._came = now
        self._run = SHORTEST_SECS if shared else min(self._run * 2, LONGEST_SECS)

    @property
    def pause(self) -> float:
        """How long the next break is."""
        is_shared = self._run == SHORTEST_SECS
        return min(max(BREAK_SECS, 2 * self._took), LONGEST_BREAK_SECS) * (2 if is_shared else 1)


async def give_way(pool: Pool, chain: Chain, keys: TenantKeys) -> None:
    """Leaves the chain alone for a moment when this process had it for long. The caller has it exclusively.

    Raises:
        QuarantinedError: what others wrote meanwhile does not verify.
        UnavailableError: the database is away.
    """
    if not chain.pace.needs_break(time.monotonic()):
        return
    pause = chain.pace.pause
    try:
        for _ in range(LOOKS):
            await asyncio.sleep(pause / LOOKS)
            if await catch_up(pool, chain, keys):
                break
        else:
            return
    finally:  # one that ended because the database was away was one, too: it is no part of the act behind it
        chain.pace.broken(time.monotonic(), shared=False)
    await until_at_rest(pool, chain, keys)


async def until_at_rest(pool: Pool, chain: Chain, keys: TenantKeys) -> None:
    """Reads on until nobody writes to the chain any more, for a while. The caller has it exclusively.

    Raises:
        QuarantinedError: what others wrote does not verify.
        UnavailableError: the database is away.
    """
    deadline = time.monotonic() + LATE_SECS
    moved = True
    while moved and time.monotonic() < deadline:
        await asyncio.sleep(REST_SECS * random.uniform(0.5, 1))  # noqa: S311  spreads those who wait
        moved = await catch_up(pool, chain, keys)
    chain.pace.broken(time.monotonic(), shared=True)
