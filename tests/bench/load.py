"""A load generator that costs little: HTTP/1.1 over raw sockets, one request after another a connection.

The client shares the machine with the server, so what it spends is taken from both sides of a ratio alike;
the less it spends, the more the ratio says about the servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence


class Connection:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connects to a server."""
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, request: bytes) -> bytes:
        """Sends one whole request and returns the body of its answer.

        Raises:
            RuntimeError: the answer is not 200; a benchmark of refusals says nothing.
        """
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(_header(head, b"content-length"))
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {body!r}")
        return body

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


def post(path: str, body: bytes, token: str, media_type: str = "application/json") -> bytes:
    """A POST request, ready to send."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def rate(host: str, port: int, requests: Sequence[bytes], turns: int) -> float:
    """Requests a second when each of ``requests`` is sent ``turns`` times on a connection of its own."""
    seconds = await duration(host, port, [[request] * turns for request in requests])
    return len(requests) * turns / seconds


async def duration(host: str, port: int, streams: Sequence[Sequence[bytes]]) -> float:
    """Seconds until all are answered, when each stream is sent one by one on a connection of its own."""
    connections = [await Connection.open(host, port) for _ in streams]

    async def worker(connection: Connection, requests: Sequence[bytes]) -> None:
        for request in requests:
            await connection.send(request)

    started = time.perf_counter()
    await asyncio.gather(*map(worker, connections, streams))
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return seconds


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(name + b":"):
            return line.split(b":", 1)[1].strip()
    raise RuntimeError(f"the answer has no {name.decode()}: {head!r}")
