"""Reading a body from ASGI events: limits, deadlines, connections that end (cases H01, H31)."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import BadRequestError, PayloadTooLargeError
from app.http import bodies
from app.http.inflate import Collected


def scope(*headers: tuple[bytes, bytes]) -> Any:
    return {"type": "http", "headers": list(headers)}


def events(*messages: dict[str, Any]) -> Any:
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    return receive


def chunk(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def read(scope: Any, receive: Any, limit: int) -> bytes:
    body = Collected(limit)
    await bodies.collect(scope, receive, body)
    return body.finish()


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
        import asyncio

        await asyncio.Event().wait()

    with pytest.raises(BadRequestError, match="did not arrive"):
        await read(scope(), never, 4)
