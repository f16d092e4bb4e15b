"""Where in the session's tree a guarded call stands: what the tracker knows of the caller's context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from app.client.tracker import LineageTracker


class Place:
    """The tracker's context, or nothing without a tracker."""

    def __init__(self, tracker: LineageTracker | None) -> None:
        self._tracker = tracker

    @property
    def known(self) -> bool:
        """Whether the caller is in a session just now."""
        return self.now()[0] is not None

    def now(self) -> tuple[str | None, str | None]:
        """Session and current node of the caller's context."""
        return None, None

    @contextmanager
    def inside(self, node: UUID | None) -> Iterator[None]:
        """Makes ``node`` the current one: nodes that are begun in the block get it as their parent."""
        del node
        yield
