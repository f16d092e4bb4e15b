"""Server-sent events (WHATWG HTML, section 9.2): an answer that goes on until one side has enough.

A route returns an ``EventStream`` over whatever makes events. The stream keeps the connection alive, and ends

- when the service is told to stop: its client is to come back, and finds another process or the next one;
- when the caller would be refused if it asked now: its key was revoked or has expired;
- when its client is gone. One that does not read is cut off (``app.http.taking``).

Each event is framed so that nothing in it can end it or begin another one (cases H21, H23). How a client
resumes is a matter of the route: it finds the id of the last event that it has seen in ``Last-Event-ID``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from app.errors import (
    ForbiddenError,
    NotFoundError,
    QuarantinedError,
    TrailsError,
    UnauthorizedError,
)
from app.http.auth import require_still
from app.http.exchange import CUT_OFF, ENDED, exchange_in
from app.http.streams import Ending

if TYPE_CHECKING:
    from uuid import UUID

    from app.http.exchange import Services

MEDIA_TYPE: Final = b"text/event-stream; charset=utf-8"

TICK_SECS: Final = 0.25
"""How soon a stream notices that the service stops."""

HEARTBEAT_SECS: Final = 15.0
"""After so long without an event a comment is sent: proxies end what is silent, mostly after a minute."""

DOUBT_SECS: Final = 1.0
"""The same for a client that has ended its sending side: only what is sent tells whether it still reads."""

CHECK_SECS: Final = 5.0
"""How often it is asked whether the caller still may have the stream."""

UNCHECKED_SECS: Final = 60.0
"""A stream ends when this could not be found out for so long, since the database is away."""

LEAVE_SECS: Final = 2.0
"""How long a client has to take what is being sent when the service stops."""

RETRY_MILLISECONDS: Final = (1_000, 5_000)
"""When clients come back: each at another time, so that those of a process that stopped spread."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_UNFIT: Final = re.compile(r"[\r\n\x00]")

_REFUSALS: Final = (UnauthorizedError, ForbiddenError, NotFoundError, QuarantinedError)
"""What says that a caller may not have its stream any more; anything else is passing trouble."""

_log = logging.getLogger("trails.http")

T = TypeVar("T")


class Event(msgspec.Struct, frozen=True):
    """One event.

    Attributes:
        data: any text; it arrives as it is, but for its line ends, each of which arrives as a line feed.
            None: nothing arrives, and the client resumes behind ``id`` from now on.
        id: where a client resumes that has seen it; None: it is no place to resume at.
        event: its type; None: ``message``.
    """

    data: str | None
    id: str | None = None
    event: str | None = None


def framed(event: Event) -> bytes:
    """The event as it is sent.

    Raises:
        ValueError: an id or a type that would end its line, or an id that clients ignore.
    """
    lines = []
    for name, value in (("id", event.id), ("event", event.event)):
        if value is not None:
            if _UNFIT.search(value):
                raise ValueError(f"the {name} of an event holds a line end or U+0000")
            lines.append(f"{name}: {value}\n")
    if event.data is not None:
        lines += [f"data: {line}\n" for line in _LINE_END.split(event.data)]
    return ("".join(lines) + "\n").encode("utf-8", "replace")


_HEARTBEAT: Final = b": \n\n"


def _farewell(code: str, detail: str) -> bytes:
    """The last event: why the stream ends, and by its code what to do."""
    return framed(Event(json.dumps({"code": code, "detail": detail}), event="end"))


_LEAVING: Final = _farewell("leaving", "the service stops; connect again, with the id of the last event")


class EventStream(ASGIResponse):
    """The answer of a route that streams.

    Args:
        events: what is sent. It is closed when the stream ends. It may wait as long as it likes; it is not
            asked for the next event before the client has taken those before it.
        tenant_id: whose stream it is, for the bound on how many there may be.
        still: raises an error when the caller may not have the stream any more; the default asks whether its
            ``Authorization`` would be accepted now.
    """

    __slots__ = ("_events", "_still", "_tenant_id")

    def __init__(
        self,
        events: AsyncIterator[Event],
        *,
        tenant_id: UUID,
        still: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        # As in app.http.responses.Answer, the base class is there for its type alone.
        self._events = events
        self._tenant_id = tenant_id
        self._still = still

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream until it ends.

        Raises:
            TooManyRequestsError: as many streams are open as there may be; nothing was sent.
        """
        services = exchange_in(scope).services
        streams = services.streams
        try:
            with streams.entered(self._tenant_id, scope.get("path_template") or ""):
                still = self._still or (lambda: require_still(scope))
                running = _Running(scope, receive, send, services, events=self._events, still=still)
                streams.ended[await running.run()] += 1
        finally:
            await _close(self._events)


async def _close(events: AsyncIterator[Event]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


class _Running:
    """A stream that is being sent."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        services: Services,
        *,
        events: AsyncIterator[Event],
        still: Callable[[], Awaitable[object]],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._services = services
        self._events = events
        self._still = still
        self._now = asyncio.get_running_loop().time
        self._sent_at = self._checked_at = self._sure_at = self._now()
        self._farewell: bytes | None = None

    async def run(self) -> Ending:
        """Sends everything; returns why it ended."""
        gone = asyncio.create_task(self._until_gone())
        following: asyncio.Task[Event | None] | None = None
        ending: Ending | None = None
        try:
            await self._begin()
            while ending is None:
                following = following or asyncio.create_task(_next(self._events))
                await asyncio.wait({following, gone}, timeout=TICK_SECS, return_when=asyncio.FIRST_COMPLETED)
                ending = await self._must_end(gone)
                if ending is None and following.done():
                    ending = await self._pass_on(following, gone)
                    following = None
                elif ending is None and self._is_silent():
                    ending = await self._write(_HEARTBEAT, gone)
            return await self._end(ending, gone)
        finally:
            for task in (gone, following):
                if task is not None:
                    await _cancelled(task)

    async def _begin(self) -> None:
        headers = [
            (b"content-type", MEDIA_TYPE),
            (b"cache-control", b"no-store"),
            # Reverse proxies (nginx) hand each event on at once.
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        # The head goes out with the first piece of the body: a client sees at once that it is connected.
        await self._piece(b"retry: %d\n\n" % random.randint(*RETRY_MILLISECONDS))  # noqa: S311  no secret

    def _is_silent(self) -> bool:
        """Whether nothing was sent for so long that a heartbeat is due."""
        most = DOUBT_SECS if self._scope.get(ENDED) else HEARTBEAT_SECS
        return self._now() - self._sent_at >= min(most, HEARTBEAT_SECS)

    async def _must_end(self, gone: asyncio.Task[None]) -> Ending | None:
        if gone.done():
            return Ending.CLIENT
        if self._services.draining:
            self._farewell = _LEAVING
            return Ending.LEAVING
        if self._now() - self._checked_at >= CHECK_SECS:
            return await self._check()
        return None

    async def _check(self) -> Ending | None:
        """Ends the stream of a caller that would be refused now."""
        self._checked_at = self._now()
        try:
            await self._still()
        except _REFUSALS as error:
            self._farewell = _farewell(error.code, error.message)
            return Ending.REFUSED
        except TrailsError as error:
            if self._now() - self._sure_at < UNCHECKED_SECS:
                return None
            self._farewell = _farewell(
                error.code, "nobody can tell whether this stream may go on; connect again"
            )
            return Ending.REFUSED
        self._sure_at = self._now()
        return None

    async def _pass_on(
        self, following: asyncio.Task[Event | None], gone: asyncio.Task[None]
    ) -> Ending | None:
        """Sends the event that has come, or finds that no more will."""
        try:
            event = following.result()
        except TrailsError as error:
            self._farewell = _farewell(error.code, error.message)
            return Ending.FAILED
        except Exception:  # noqa: BLE001  it is logged, and the client is told that this is no end in order
            _log.exception("an event stream failed")
            self._farewell = _farewell("internal", "an internal error; see the log")
            return Ending.FAILED
        if event is None:
            return Ending.OVER
        self._services.streams.sent += 1
        return await self._write(framed(event), gone)

    async def _write(self, piece: bytes, gone: asyncio.Task[None]) -> Ending | None:
        """Sends one piece, which waits for the client to take what came before."""
        writing = asyncio.create_task(self._piece(piece))
        leave_at: float | None = None
        try:
            while not writing.done():
                await asyncio.wait({writing, gone}, timeout=TICK_SECS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return Ending.CLIENT
                if self._services.draining and leave_at is None:
                    leave_at = self._now() + LEAVE_SECS
                if leave_at is not None and not writing.done() and self._now() >= leave_at:
                    return Ending.UNTAKEN
            writing.result()
        finally:
            await _cancelled(writing)
        self._sent_at = self._now()
        return None

    async def _end(self, ending: Ending, gone: asyncio.Task[None]) -> Ending:
        """Ends the answer in order, or the connection where its client does not take it."""
        if self._farewell is not None and ending is not Ending.UNTAKEN:
            ending = await self._write(self._farewell, gone) or ending
        if ending is Ending.UNTAKEN:
            cut_off: Callable[[str], None] | None = self._scope.get(CUT_OFF)  # type: ignore[assignment]  # a key of ours
            if cut_off is not None:
                cut_off("the service stops, and the client does not take its events")
        elif ending is not Ending.CLIENT:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        return ending

    async def _piece(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _until_gone(self) -> None:
        """Waits until the client has left; what it sends meanwhile is nobody's."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


async def _cancelled(task: asyncio.Task[T]) -> None:
    """Ends a task, whatever it was doing."""
    if not task.done():
        task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
