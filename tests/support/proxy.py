"""A TCP proxy between the service and PostgreSQL that fails where a test says (cases P18, P19, G27).

It reads the frames of the wire protocol (version 3), so that it knows the moment: before a statement with
certain values was forwarded, or after the server has committed it and before the client has heard of it.
A test arms one fault, or lets a ``Storm`` choose at random; a network that swallows everything and resets
nothing is ``silent``.
"""

from __future__ import annotations

import asyncio
import enum
import random
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from sqlalchemy import make_url

_BIND = b"B"
_QUERY = b"Q"
_EXECUTE = b"E"
_READY = b"Z"
_SSL_REQUEST = 80877103


class Fault(enum.Enum):
    """What happens to the next statement whose values contain the marker."""

    DROP = "cut before it is forwarded: certainly not committed"
    SWALLOW = "forwarded and carried out; cut before the answer: certainly committed"
    CUT = "forwarded, cut at once: nobody knows"


class Silence(enum.Enum):
    """The connection stays open, and from the next statement on nothing passes any more, either way."""

    BEFORE = "the statement is swallowed: certainly not committed"
    AFTER = "the statement is carried out, its answer is swallowed: certainly committed"


Trouble = Fault | Silence


class Storm:
    """Chooses what happens to each statement, by a seed; also to BEGIN and COMMIT.

    Args:
        seed: the same seed, the same choices.
        every: one statement in so many is in trouble.
        delays: seconds by which statements in trouble may be late instead.
    """

    def __init__(self, seed: int, *, every: int, delays: tuple[float, ...]) -> None:
        self._random = random.Random(seed)  # noqa: S311  chooses faults
        self._every = every
        self._choices: tuple[Trouble | float, ...] = (*Fault, *Silence, *delays)
        self.calm = False
        """Whether it is over."""
        self.chosen: Counter[str] = Counter()
        """How often what was chosen."""

    async def strike(self) -> Trouble | None:
        """What happens to the next statement; one that is late returns when it is its time."""
        if self.calm or self._random.randrange(self._every):
            return None
        chosen = self._random.choice(self._choices)
        self.chosen[chosen.name if isinstance(chosen, enum.Enum) else f"{chosen:g} s late"] += 1
        if isinstance(chosen, enum.Enum):
            return chosen
        await asyncio.sleep(chosen)
        return None


class Proxy:
    """Forwards connections to one server. ``arm`` sets one fault, which fires once."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._fault: tuple[Fault, bytes] | None = None
        self.storm: Storm | None = None
        self.silent = False
        """Whether the network swallows what is sent, and new connections with it. Who was hit stays so."""
        self._links: set[_Link] = set()
        self._unheard: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.fired = 0
        self.struck: Callable[[], None] = lambda: None
        """Called when the fault happens: before the connection is cut."""
        self.executed = 0
        """Statements that were forwarded so far."""
        self.received = 0
        """Bytes that the server answered so far."""
        self.refused = 0
        """Connections for which no server was there."""

    def arm(self, fault: Fault, marker: bytes) -> None:
        """Lets ``fault`` happen to the next statement that carries ``marker`` among its values."""
        self._fault = (fault, marker)

    def lead_to(self, host: str, port: int) -> None:
        """From now on new connections reach another server."""
        self._target = (host, port)

    def cut(self) -> None:
        """Cuts all connections now."""
        for link in list(self._links):
            link.abort()
        for writer in self._unheard:
            writer.transport.abort()

    async def close(self) -> None:
        """Cuts everything, from now on new connections too, and waits for the end of it."""
        self._closed = True
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self, frame: bytes) -> Trouble | None:
        """What happens at this frame of the client; a late one returns when it is its time."""
        if self.silent:
            return Silence.BEFORE
        if self.storm is not None and frame[:1] in (_BIND, _QUERY):
            return await self.storm.strike()
        if self._fault is None or frame[:1] != _BIND or self._fault[1] not in frame:
            return None
        fault, self._fault = self._fault[0], None
        self.fired += 1
        return fault

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.silent:
            self._unheard.add(writer)
            await _swallow(reader)
            self._unheard.discard(writer)
            writer.transport.abort()
            return
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            self.refused += 1
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), upstream)
        if self._closed:  # while the server was called
            link.abort()
            return
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._swallowing = False
        self._silent = False

    def abort(self) -> None:
        self._client[1].transport.abort()
        self._server[1].transport.abort()

    async def run(self) -> None:
        pumps = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._answers())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            await asyncio.gather(*pumps, return_exceptions=True)
            for _, writer in (self._client, self._server):
                with suppress(OSError):
                    await writer.wait_closed()

    async def _requests(self) -> None:
        reader, writer = self._client[0], self._server[1]
        await self._start(reader, writer)
        while True:
            frame = await _frame(reader)
            fault = await self._proxy.take(frame)
            if fault is Fault.DROP:
                self._proxy.struck()
                return
            self._silent = isinstance(fault, Silence)
            if fault is Silence.BEFORE:
                await _swallow(reader)
                return
            self._swallowing = self._swallowing or fault is Fault.SWALLOW
            self._proxy.executed += frame[:1] == _EXECUTE
            writer.write(frame)
            if fault is None:
                continue
            if frame[:1] == _BIND:
                writer.write(await _frame(reader) + await _frame(reader))  # Execute, Sync
            await writer.drain()
            if fault is Fault.CUT:
                self._proxy.struck()
                return
            if fault is Silence.AFTER:
                await _swallow(reader)
                return

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The start-up messages have no type byte; a request for TLS comes before the real one."""
        while True:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            writer.write(head + await reader.readexactly(length - 8))
            if code != _SSL_REQUEST:
                return

    async def _answers(self) -> None:
        reader, writer = self._server[0], self._client[1]
        first = await reader.readexactly(1)
        if first in b"NS":  # the one-byte answer to a request for TLS; the tests' servers say no
            writer.write(first)
            first = b""
        while True:
            frame = first + await _frame(reader, known=len(first))
            first = b""
            self._proxy.received += len(frame)
            if self._silent:
                continue
            if not self._swallowing:
                writer.write(frame)
            elif frame[:1] == _READY:
                self._proxy.struck()
                return


async def _swallow(reader: asyncio.StreamReader) -> None:
    """Takes all that comes, and returns when the sender gives up."""
    with suppress(OSError):
        while await reader.read(65_536):
            pass


async def _frame(reader: asyncio.StreamReader, known: int = 0) -> bytes:
    """The next message: type byte, length (which counts itself), body. ``known``: bytes read before."""
    head = await reader.readexactly(5 - known)
    (length,) = struct.unpack("!I", head[-4:])
    return head + await reader.readexactly(length - 4)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of ``url``, and the URL that leads through it."""
    target = make_url(url)
    proxy = Proxy(target.host or "127.0.0.1", target.port or 5432)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        server.close()
        await proxy.close()


@contextmanager
def proxied_beside(url: str) -> Iterator[tuple[Proxy, str]]:
    """The same for tests that wait for processes: the proxy runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    way = proxied(url)
    try:
        yield asyncio.run_coroutine_threadsafe(way.__aenter__(), loop).result(20)
        asyncio.run_coroutine_threadsafe(way.__aexit__(None, None, None), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
