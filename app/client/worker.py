"""An event loop of its own, in a thread of its own, for clients that are called from anywhere.

Sync callers, threads and any number of event loops share one connection pool this way. What was begun is
carried to its end even when the caller gives up: an answer that nobody waits for any more is not lost, but
handed to ``abandoned``, so that the record can say what became of it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar

B = TypeVar("B")
R = TypeVar("R")

Abandoned: TypeAlias = Callable[[B, R], Coroutine[Any, Any, None]]
"""What is done with a result that nobody waits for any more."""

EXIT_SECS: Final = 5.0
"""How long the end of the program waits for what was begun."""

CLOSING_SECS: Final = 2.0
"""How long the backend may take to close connections; then it is left to itself."""


class WorkerClosedError(RuntimeError):
    """The worker was closed; nothing can be asked any more."""


class NoResultError(Exception):
    """The result did not come in time. What was begun is carried to its end, and its result is abandoned."""


class Worker(Generic[B]):
    """Runs coroutines that use one backend, which lives and dies with the loop.

    The backend is made at first use. A forked child makes its own: it must not speak on its parent's
    connections, and the parent's thread does not exist in it.

    Args:
        start: makes the backend, on the worker's loop.
        stop: closes it.
        name: of the thread.
    """

    def __init__(
        self, start: Callable[[], Awaitable[B]], stop: Callable[[B], Awaitable[None]], name: str
    ) -> None:
        self._start = start
        self._stop = stop
        self._name = name
        self._forget()
        self._closed = False
        atexit.register(_close_at_exit, weakref.ref(self))

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening: asyncio.Lock | None = None
        self._backend: B | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(
        self,
        use: Callable[[B], Coroutine[Any, Any, R]],
        abandoned: Abandoned[B, R] | None = None,
    ) -> concurrent.futures.Future[R]:
        """Begins ``use(backend)``. Cancelling the future ends the waiting, not the work.

        Args:
            use: what to do.
            abandoned: gets backend and result when the future was cancelled meanwhile.

        Raises:
            WorkerClosedError: after ``close``.
        """
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        if self._pid != os.getpid():
            self._forget()
        with self._lock:  # whatever got in before close() is seen by it
            self._running().call_soon_threadsafe(self._begin, use, future, abandoned)
        return future

    def call(
        self,
        use: Callable[[B], Coroutine[Any, Any, R]],
        abandoned: Abandoned[B, R] | None = None,
        timeout: float | None = None,
    ) -> R:
        """Waits for ``use(backend)``; blocks this thread.

        Raises:
            NoResultError: it took longer than ``timeout`` seconds.
        """
        future = self.spawn(use, abandoned)
        try:
            error = future.exception(timeout)  # raises only what the waiting itself brings
        except TimeoutError:
            self._give_up(future, abandoned)
            raise NoResultError from None
        except BaseException:  # an interrupt
            self._give_up(future, abandoned)
            raise
        if error is not None:
            raise error
        return future.result()

    async def acall(
        self,
        use: Callable[[B], Coroutine[Any, Any, R]],
        abandoned: Abandoned[B, R] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as in call
    ) -> R:
        """Awaits ``use(backend)`` from any event loop of asyncio. Raises as ``call``."""
        future = self.spawn(use, abandoned)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._give_up(future, abandoned)
            raise
        except TimeoutError:
            if not limit.expired():
                raise  # of the work itself
            self._give_up(future, abandoned)
            raise NoResultError from None

    def close(self, timeout: float) -> None:
        """Waits for what was begun, at most ``timeout`` seconds, then ends the loop. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._pid != os.getpid():
            return
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._finish(timeout), loop).result(timeout + CLOSING_SECS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _give_up(self, future: concurrent.futures.Future[R], abandoned: Abandoned[B, R] | None) -> None:
        """Stops waiting; a result that came at the same moment is abandoned like one that comes later."""
        if not future.cancel() and abandoned is not None and future.exception() is None:
            result = future.result()
            with suppress(WorkerClosedError):
                self.spawn(lambda backend: abandoned(backend, result))

    # --- on the worker's loop ----------------------------------------------------------------------

    def _begin(
        self,
        use: Callable[[B], Coroutine[Any, Any, R]],
        future: concurrent.futures.Future[R],
        abandoned: Abandoned[B, R] | None,
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(use, future, abandoned))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(
        self,
        use: Callable[[B], Coroutine[Any, Any, R]],
        future: concurrent.futures.Future[R],
        abandoned: Abandoned[B, R] | None,
    ) -> None:
        try:
            backend = await self._opened()
            result = await use(backend)
        except BaseException as error:  # noqa: BLE001  it is the caller's
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    WorkerClosedError("closed meanwhile")
                    if isinstance(error, asyncio.CancelledError)
                    else error
                )
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(result)
            elif abandoned is not None:
                await abandoned(backend, result)

    async def _opened(self) -> B:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._backend is None:
                self._backend = await self._start()
            return self._backend

    async def _finish(self, timeout: float) -> None:  # noqa: ASYNC109  waiting ends, nothing fails
        me = asyncio.current_task()
        pending = {task for task in self._tasks if task is not me}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._backend is not None:
            await self._stop(self._backend)
        await asyncio.get_running_loop().shutdown_asyncgens()

    # --- the thread --------------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise WorkerClosedError("this guard was closed")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _close_at_exit(reference: weakref.ref[Worker[Any]]) -> None:
    worker = reference()
    if worker is not None:
        worker.close(max(0.0, _exit_until() - time.monotonic()))


@cache
def _exit_until() -> float:
    """When the end of the program waits no longer: all workers share the time."""
    return time.monotonic() + EXIT_SECS
