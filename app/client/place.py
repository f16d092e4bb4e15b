"""Where in a session's tree a guarded call stands: what the tracker knows of the caller's context."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from app.client.tracker import Session


class Place:
    """A session, or nothing without a tracker."""

    def __init__(self, session: Session | None) -> None:
        self._session = session

    @property
    def known(self) -> bool:
        """Whether the calls belong to a session."""
        return self._session is not None

    def now(self) -> tuple[str | None, str | None]:
        """The session, and the node of it whose block the caller is in."""
        return (None, None) if self._session is None else (self._session.session_id, self._session.current)

    def inside(self, node: UUID | None) -> AbstractContextManager[None]:
        """Makes ``node`` the parent of what the block records."""
        return nullcontext() if self._session is None or node is None else self._session.attach(str(node))
