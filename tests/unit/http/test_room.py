"""Places in work: in order, within their number, given back whatever happens (cases H01, H02)."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import UnavailableError
from app.http import room as rooms
from app.http.room import Place, Places


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def ask(room: Places, size: int) -> asyncio.Task[Place]:
    return asyncio.create_task(room.place(size))


async def test_no_more_is_let_in_than_there_is_room_for() -> None:
    room = Places(10)
    first, second, third = ask(room, 6), ask(room, 6), ask(room, 5)
    await settle()
    assert first.done()
    assert not second.done()
    (await first).leave()
    await settle()
    assert second.done()
    assert not third.done(), "who came first gets in first"
    (await second).leave()
    await third


async def test_what_fits_passes_what_does_not() -> None:
    room = Places(10)
    first, large, small = ask(room, 6), ask(room, 10), ask(room, 4)
    await settle()
    assert small.done()
    assert not large.done()
    (await first).leave()
    (await small).leave()
    await large


async def test_leaving_twice_gives_back_once() -> None:
    room = Places(10)
    place, _ = await room.place(5), await room.place(5)
    place.leave()
    place.leave()
    late = ask(room, 6)
    await settle()
    assert not late.done()
    late.cancel()


async def test_a_body_larger_than_the_room_is_let_in_alone() -> None:
    room = Places(10)
    first, second = ask(room, 100), ask(room, 1)
    await settle()
    assert first.done()
    assert not second.done()
    (await first).leave()
    await second


async def test_who_finds_no_place_in_time_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Places(10)
    place = await room.place(6)
    monkeypatch.setattr(rooms, "PLACE_SECS", 0.01)
    large = ask(room, 10)
    await settle()
    monkeypatch.setattr(rooms, "PLACE_SECS", 10)
    small = ask(room, 4)
    with pytest.raises(UnavailableError):
        await large
    (await small).leave()
    place.leave()
    await room.place(10)


async def test_who_leaves_the_queue_leaves_no_trace() -> None:
    room = Places(10)
    place = await room.place(10)
    waiting = [ask(room, 10) for _ in range(3)]
    await settle()
    waiting[0].cancel()  # before its turn
    place.leave()
    waiting[1].cancel()  # at its turn
    await settle()
    (await waiting[2]).leave()
    await room.place(10)
