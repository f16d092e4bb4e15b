"""Which node is the parent of the next one: a context variable, so that threads and tasks have their own.

A context variable alone would not do for generators, which run in their caller's context: a node that a
generator opened would stay the parent of whatever its caller does between two steps. So a scope remembers
the generator that opened it, and counts only while that generator runs. A generator that only serves as a
context manager (``contextlib.contextmanager``) is looked through: its scope belongs to the ``with``.
What it cannot see: a task or thread that one generator begins while a second one, of the same caller, stands
still inside a node of its own may take that node for its parent. Give such work ``parent_id`` or ``attach``.

The chain of scopes is immutable. Scopes may end in any order, and in another context than they began in; one
that has ended is skipped.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from contextvars import ContextVar
from types import FrameType
from typing import Final

_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_CONTEXTLIB: Final = contextlib.__file__


class Scope:
    """One node that is the parent of what comes, until it ends.

    Args:
        session_id: the session that the node belongs to; scopes of other sessions do not count for it.
        node_id: the parent; None makes what comes roots.
    """

    __slots__ = ("_frame", "_runner", "ended", "node_id", "outer", "session_id")

    def __init__(self, session_id: str, node_id: str | None) -> None:
        self.session_id = session_id
        self.node_id = node_id
        self.ended = False
        self.outer: Scope | None = None
        self._frame: FrameType | None = None
        self._runner: tuple[int, object] = (0, None)

    def begin(self, frame: FrameType | None) -> None:
        """Makes it the innermost scope of this context.

        Args:
            frame: the one that begins it, ``sys._getframe(1)`` of a public method.
        """
        self._frame = _owner(frame)
        if self._frame is not None:
            self._runner = _runner()
        self.outer = _trimmed(_innermost.get())
        _innermost.set(self)

    def end(self) -> None:
        """It counts no more, in whatever context. Idempotent."""
        self.ended = True
        self._frame, self._runner = None, (0, None)
        _innermost.set(_trimmed(_innermost.get()))

    def counts(self, session_id: str) -> bool:
        """Whether it is a parent for what is done here and now in this session."""
        if self.ended or self.session_id != session_id:
            return False
        frame = self._frame
        # Another thread or task got the context while the generator ran: it is what the generator began.
        return frame is None or self._runner != _runner() or _is_running(frame)


_innermost: ContextVar[Scope | None] = ContextVar("lineage_trails_scope", default=None)


def current(session_id: str) -> str | None:
    """The node that is the parent of what this context does in a session; None: it is a root."""
    scope = _innermost.get()
    while scope is not None:
        if scope.counts(session_id):
            return scope.node_id
        scope = scope.outer
    return None


def _trimmed(scope: Scope | None) -> Scope | None:
    """Without the innermost scopes that have ended."""
    while scope is not None and scope.ended:
        scope = scope.outer
    return scope


def _owner(frame: FrameType | None) -> FrameType | None:
    """The generator whose running decides whether a scope counts; None when no generator opened it."""
    while frame is not None:
        through = frame.f_code.co_filename == _CONTEXTLIB
        if not through and frame.f_code.co_flags & _GENERATOR:
            driver = frame.f_back
            through = driver is not None and driver.f_code.co_filename == _CONTEXTLIB
            if not through:
                return frame
        if not through:
            return None
        frame = frame.f_back
    return None


def _runner() -> tuple[int, object]:
    """Who runs here: the thread, and the task where there is one."""
    asyncio = sys.modules.get("asyncio")
    try:
        return threading.get_ident(), None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


def _is_running(frame: FrameType) -> bool:
    """Whether a frame is on this thread's stack."""
    here: FrameType | None = sys._getframe(1)  # noqa: SLF001  there is no other way to see the stack
    while here is not None:
        if here is frame:
            return True
        here = here.f_back
    return False
