"""How many event streams there are: bounded in a process and for each tenant, and counted.

A stream is cheap while nothing happens, but it is a connection that never ends by itself: a client that opens
one after the other would keep others from having any.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.errors import TooManyRequestsError

if TYPE_CHECKING:
    from uuid import UUID


class Ending(enum.StrEnum):
    """Why a stream ended."""

    CLIENT = "client"
    """Its client is gone."""

    LEAVING = "leaving"
    """The service stops."""

    REFUSED = "refused"
    """Its caller may not have it any more."""

    UNTAKEN = "untaken"
    """Its client did not take it while the service stops."""

    OVER = "over"
    """There is nothing more to come."""

    FAILED = "failed"
    """What makes the events failed."""


class Streams:
    """The open streams of one process. For one event loop.

    Args:
        most: streams of the process.
        most_of_one: streams of one tenant in it.

    Attributes:
        opened: streams since the process began, by the route's template.
        ended: those that ended, by why.
        sent: events that were sent.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[UUID] = Counter()
        self._open: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.ended: Counter[Ending] = Counter()
        self.sent = 0

    @property
    def open(self) -> dict[str, int]:
        """How many are open now, by the route's template."""
        return {route: self._open[route] for route in self.opened}

    @contextmanager
    def entered(self, tenant_id: UUID, route: str) -> Iterator[None]:
        """A stream is open as long as the block runs.

        Raises:
            TooManyRequestsError: there are as many as there may be.
        """
        if self._open.total() >= self._most:
            raise TooManyRequestsError("too many event streams are open (TRAILS_MAX_STREAMS); try again")
        if self._of[tenant_id] >= self._most_of_one:
            raise TooManyRequestsError(
                "this tenant has as many event streams open as it may (TRAILS_MAX_STREAMS_PER_TENANT); "
                "close one first"
            )
        self._of[tenant_id] += 1
        self._open[route] += 1
        self.opened[route] += 1
        try:
            yield
        finally:
            self._open[route] -= 1
            self._of[tenant_id] -= 1
            if not self._of[tenant_id]:
                del self._of[tenant_id]
