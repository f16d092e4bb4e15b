"""Requests at a steady rate, however fast the answers come: what callers feel who do not wait for each other.

A request is due at its time. When the one before it on the same lane is not answered yet, it waits, and that
counts: a server that stands still for a second has made everybody wait who came in that second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Self

import msgspec

Act = Callable[[], Awaitable[bool]]
"""Does one request; False: there was nothing to do."""


class Reply(msgspec.Struct, frozen=True):
    """An answer: its status, its head in lower case, its body."""

    status: int
    head: bytes
    body: bytes


class Channel:
    """One keep-alive connection of an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connects to a server on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, message: bytes) -> Reply:
        """Sends a whole request.

        Raises:
            OSError, asyncio.IncompleteReadError: the connection broke.
        """
        self._writer.write(message)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r", 1)[0])
        body = await self._reader.readexactly(length)
        return Reply(int(head[9:12]), head, body)

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


class Latency(msgspec.Struct, frozen=True):
    """One request: when it was due (seconds since the beginning), and how long until its answer (seconds)."""

    due: float
    seconds: float


async def at_rate(
    lanes: Sequence[Act], rate: float, seconds: float, into: list[Latency] | None = None
) -> list[Latency]:
    """Does the acts of the lanes in turn, ``rate`` a second in all, for so many seconds.

    An act that raises ends everything. Each latency goes to the end of ``into``, which is returned.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    measured = [] if into is None else into

    async def lane(number: int, act: Act) -> None:
        for due in range(number, ceil(rate * seconds), len(lanes)):
            at = due / rate
            await asyncio.sleep(began + at - loop.time())
            if await act():
                measured.append(Latency(at, loop.time() - began - at))

    async with asyncio.TaskGroup() as group:
        for number, act in enumerate(lanes):
            group.create_task(lane(number, act))
    return measured


async def at_most(
    lanes: Sequence[Act], rate: float, seconds: float, into: list[Latency] | None = None
) -> list[Latency]:
    """Does the acts of the lanes in turn, at most ``rate`` a second in all, until so many seconds are over.

    Who is late waits for nobody and makes up for nothing: a latency begins when its act does. For acts that
    take longer the more there is, such as questions over a growing table, whose rate nobody can promise.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    measured = [] if into is None else into
    pause = len(lanes) / rate

    async def lane(number: int, act: Act) -> None:
        at = number / rate
        while at < seconds:
            await asyncio.sleep(began + at - loop.time())
            if await act():
                measured.append(Latency(at, loop.time() - began - at))
            at = max(at + pause, loop.time() - began)

    async with asyncio.TaskGroup() as group:
        for number, act in enumerate(lanes):
            group.create_task(lane(number, act))
    return measured


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that so large a part (0 to 1) of all does not exceed; 0 of none."""
    if not values:
        return 0.0
    in_order = sorted(values)
    return in_order[max(ceil(part * len(in_order)), 1) - 1]
