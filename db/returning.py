"""Connections on their return to the pool.

The pool resets a session before the next caller gets it: one more round trip, which both sides pay. A caller
who sent a single statement that sets nothing beyond its own transaction has left nothing to be reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection


class Session(_Connection):
    """A connection that is reset on its return, unless its caller says that it is as it was."""

    _is_untouched = False

    def leave_untouched(self) -> None:
        """Says so, for this one return."""
        self._is_untouched = True

    def get_reset_query(self) -> str:
        """What is sent on its return; asyncpg ends a transaction and drops listeners beside."""
        is_untouched, self._is_untouched = self._is_untouched, False
        return "" if is_untouched else str(super().get_reset_query())
