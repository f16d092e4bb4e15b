"""A TCP proxy between the service and PostgreSQL that fails where a test says (cases P18, P19, G27).

It reads the frames of the wire protocol (version 3), so that it knows the moment: before a statement with
certain values was forwarded, or after the server has committed it and before the client has heard of it.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url

_BIND = b"B"
_EXECUTE = b"E"
_READY = b"Z"
_SSL_REQUEST = 80877103


class Fault(enum.Enum):
    """What happens to the next statement whose values contain the marker."""

    DROP = "cut before it is forwarded: certainly not committed"
    SWALLOW = "forwarded and carried out; cut before the answer: certainly committed"
    CUT = "forwarded, cut at once: nobody knows"


class Proxy:
    """Forwards connections to one server. ``arm`` sets one fault, which fires once."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._fault: tuple[Fault, bytes] | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.fired = 0
        self.executed = 0
        """Statements that were forwarded so far."""
        self.received = 0
        """Bytes that the server answered so far."""

    def arm(self, fault: Fault, marker: bytes) -> None:
        """Lets ``fault`` happen to the next statement that carries ``marker`` among its values."""
        self._fault = (fault, marker)

    def cut(self) -> None:
        """Cuts all connections now."""
        for link in list(self._links):
            link.abort()

    async def close(self) -> None:
        """Cuts everything, from now on new connections too, and waits for the end of it."""
        self._closed = True
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, frame: bytes) -> Fault | None:
        """The fault that fires at this frame of the client."""
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
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
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
            fault = self._proxy.take(frame)
            if fault is Fault.DROP:
                return
            self._swallowing = self._swallowing or fault is Fault.SWALLOW
            self._proxy.executed += frame[:1] == _EXECUTE
            writer.write(frame)
            if fault is Fault.CUT:
                writer.write(await _frame(reader) + await _frame(reader))  # Execute, Sync
                await writer.drain()
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
            if not self._swallowing:
                writer.write(frame)
            elif frame[:1] == _READY:
                return


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
