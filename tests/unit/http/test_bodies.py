"""Reading a body from ASGI events: limits, deadlines, connections that end (cases H01, H31)."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from litestar.connection import Request

from app.errors import BadRequestError, PayloadTooLargeError, UnavailableError
from app.http import bodies
from app.http.exchange import Exchange, attach
from app.http.room import LARGE_BYTES, Room


def scope(*headers: tuple[bytes, bytes]) -> Any:
    return {"type": "http", "headers": list(headers)}


def events(*messages: dict[str, Any]) -> Any:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    return receive


def chunk(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def read(scope: Any, receive: Any, limit: int, room: Room | None = None) -> bytes:
    services: Any = SimpleNamespace(room=room or Room())
    attach(scope, Exchange(services, "for-this-test"))
    return await bodies.collect(Request(scope, receive), limit)


class Sender:
    """A body that comes when the test says so."""

    def __init__(self, size: int) -> None:
        self.pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.size = size

    def send(self, size: int) -> None:
        self.size -= size
        self.pieces.put_nowait(chunk(bytes(size), more=self.size > 0))


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_chunks_are_joined_up_to_the_limit() -> None:
    receive = events(chunk(b"ab", more=True), chunk(b"", more=True), chunk(b"cd", more=False))
    assert await read(scope(), receive, 4) == b"abcd"


async def test_h01_reading_stops_at_the_limit() -> None:
    receive = events(chunk(b"abc", more=True), chunk(b"de", more=True))
    with pytest.raises(PayloadTooLargeError):
        await read(scope(), receive, 4)


@pytest.mark.parametrize("length", [b"5", b"99999999999999999999", b"-1", b"x", b"4 "])
async def test_h01_an_announced_length_is_refused_before_reading(length: bytes) -> None:
    with pytest.raises(PayloadTooLargeError):
        await read(scope((b"content-length", length)), events(), 4)


async def test_events_may_leave_their_members_out() -> None:
    assert await read(scope(), events({"type": "http.request"}), 4) == b""


async def test_a_connection_that_ends_is_no_body() -> None:
    receive = events(chunk(b"{}", more=True), {"type": "http.disconnect"})
    with pytest.raises(BadRequestError, match="ended"):
        await read(scope(), receive, 4)


async def test_h31_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECS", 0.01)

    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(BadRequestError, match="did not arrive"):
        await read(scope(), never, 4)


async def test_h01_a_body_in_pieces_of_one_byte_is_joined() -> None:
    pieces = [chunk(b"x", more=True) for _ in range(10_000)]
    assert await read(scope(), events(*pieces, chunk(b"", more=False)), 10_000) == b"x" * 10_000


async def test_h31_the_slowest_body_makes_way_when_the_room_is_full() -> None:
    room = Room(arriving=4 * LARGE_BYTES)
    slow, quick = Sender(3 * LARGE_BYTES), Sender(3 * LARGE_BYTES)
    waits = asyncio.create_task(read(scope(), slow.pieces.get, 4 * LARGE_BYTES, room))
    slow.send(2 * LARGE_BYTES)
    await settle()
    comes = asyncio.create_task(read(scope(), quick.pieces.get, 4 * LARGE_BYTES, room))
    await settle()
    quick.send(3 * LARGE_BYTES)
    with pytest.raises(UnavailableError):
        await waits
    assert len(await comes) == 3 * LARGE_BYTES


async def test_h31_a_body_that_dawdles_keeps_no_place_from_a_whole_one() -> None:
    room = Room(arriving=8 * LARGE_BYTES, work=2 * LARGE_BYTES)
    slow = Sender(2 * LARGE_BYTES)
    waits = asyncio.create_task(read(scope(), slow.pieces.get, 4 * LARGE_BYTES, room))
    slow.send(2 * LARGE_BYTES - 1)
    await settle()
    whole = chunk(bytes(2 * LARGE_BYTES), more=False)
    assert len(await read(scope(), events(whole), 4 * LARGE_BYTES, room)) == 2 * LARGE_BYTES
    waits.cancel()


async def test_small_bodies_come_in_however_full_it_is() -> None:
    room = Room(arriving=0, work=0)
    body = chunk(bytes(LARGE_BYTES), more=False)
    assert len(await read(scope(), events(body), LARGE_BYTES, room)) == LARGE_BYTES


async def test_a_body_that_is_given_up_leaves_the_room() -> None:
    room = Room(arriving=2 * LARGE_BYTES)
    for end in ({"type": "http.disconnect"}, chunk(bytes(LARGE_BYTES), more=True)):
        with pytest.raises((BadRequestError, PayloadTooLargeError)):
            await read(scope(), events(chunk(bytes(2 * LARGE_BYTES), more=True), end), 2 * LARGE_BYTES, room)
    whole = chunk(bytes(2 * LARGE_BYTES), more=False)
    assert await read(scope(), events(whole), 2 * LARGE_BYTES, room)


async def test_the_garbage_collector_rests_while_a_large_body_is_worked_on_and_no_longer() -> None:
    frozen = gc.get_freeze_count()
    assert await bodies.in_thread(gc.isenabled) is False
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    bodies.take_leave(await Room().work.place(1))
    assert gc.get_freeze_count() == 0
    with pytest.raises(ZeroDivisionError):
        await bodies.in_thread(lambda: 1 // 0)
    assert gc.isenabled()
