"""What an answer costs the socket: its head and its body are one write, whatever the answer is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from app.cli.server import configuration
from app.http.connection import Connection


class _Wire(asyncio.Transport):
    """Keeps what is written to it, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def _start(status: int, length: int | None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _body(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _answered(request: bytes, *messages: dict[str, Any], fails: bool = False) -> _Wire:
    """What a connection writes when the application answers ``request`` with ``messages``."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        if b"expect" in request.lower():
            await receive()
        for message in messages:
            await send(message)
        if fails:
            raise ValueError("on purpose")

    config = configuration(app, lifespan="off")
    config.load()
    config.loaded_app = app
    state = ServerState()
    connection, wire = Connection(config, state, {}), _Wire()
    connection.connection_made(wire)
    connection.data_received(request)
    async with asyncio.timeout(10):
        await asyncio.gather(*state.tasks)
    connection.connection_lost(None)
    return wire


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "messages", "pieces"),
    [
        (GET, [_start(200, 5), _body(b"hello")], [b"hello"]),
        (GET, [_start(200, 5), _body(b"he", more=True), _body(b"llo")], [b"he", b"llo"]),
        (GET, [_start(200, None), _body(b"hi")], [b"2\r\nhi\r\n0\r\n\r\n"]),
        (GET, [_start(204, 0), _body(b"")], [b""]),
        (GET.replace(b"GET", b"HEAD"), [_start(200, 5), _body(b"")], [b""]),
    ],
)
async def test_head_and_body_are_one_write(
    request_: bytes, messages: list[dict[str, Any]], pieces: list[bytes]
) -> None:
    first, *further = (await _answered(request_, *messages)).written
    head, blank, begin = first.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    assert blank
    assert [begin, *further] == pieces


async def test_a_client_that_waits_for_100_continue_gets_it_before_the_answer() -> None:
    asked = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx"
    written = (await _answered(asked, _start(200, 2), _body(b"ok"))).written
    assert written[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert [piece[-2:] for piece in written[1:]] == [b"ok"]


async def test_the_head_of_an_answer_that_breaks_off_is_sent() -> None:
    wire = await _answered(GET, _start(200, 5), fails=True)
    assert wire.closed
    assert b"".join(wire.written).startswith(b"HTTP/1.1 200 ")
