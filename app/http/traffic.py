"""What one process has answered, in plain numbers by route: counting must cost nothing beside a request.

Routes are told by their template, so that how many series there are depends on nothing that is sent.
"""

from __future__ import annotations

from typing import Final

from app.ledger.meter import SECONDS, Distribution

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD: Final = "other"
"""Stands for methods that a route does not have."""

CLASSES: Final = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
"""Classes of status by the first digit; none: the client was gone before there was an answer."""


class Answered:
    """Requests of one route and method: how many by class of status, and how long they took."""

    __slots__ = ("by_class", "seconds")

    def __init__(self) -> None:
        self.by_class = [0] * len(CLASSES)
        self.seconds = Distribution(SECONDS)


class Traffic:
    """Counts since the process began. For one event loop.

    Attributes:
        in_flight: requests that are not answered yet.
        answered: by method and the route's template.
        limited: requests that were refused for coming too fast, by the limit's name.
    """

    __slots__ = ("answered", "in_flight", "limited")

    def __init__(self) -> None:
        self.in_flight = 0
        self.answered: dict[tuple[str, str], Answered] = {}
        self.limited: dict[str, int] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered with ``status`` (0: with nothing)."""
        place = (method if method in METHODS and status != 405 else OTHER_METHOD), route
        answered = self.answered.get(place)
        if answered is None:
            answered = self.answered[place] = Answered()
        answered.by_class[status // 100] += 1
        answered.seconds.add(seconds)

    def refuse(self, limit: str) -> None:
        """A request is refused since it came too fast; ``limit`` is a word of ours, nothing that was sent."""
        self.limited[limit] = self.limited.get(limit, 0) + 1
