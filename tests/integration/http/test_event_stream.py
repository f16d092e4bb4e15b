"""Streams of events on a socket: how they begin, go on and end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.cli.server import configuration
from app.errors import TooManyRequestsError, UnauthorizedError, UnavailableError
from app.http import event_stream
from app.http.connection import Connection
from app.http.edge import Edge
from app.http.event_stream import Event, EventStream
from app.http.exchange import Services
from app.http.streams import Ending, Streams
from app.settings import Settings
from app.tokens import Tokens
from tests.integration.http.client import Client
from tests.integration.http.serving import START_SECS, _Server
from tests.support.events import streamed, stuck

TENANT = UUID(int=7)
TOKEN = "t" * 40


class Source:
    """Makes events as the test says, and notes what becomes of it."""

    def __init__(self, *data: str, endless: bool = True, flood: int = 0) -> None:
        self.data = data
        self.endless = endless
        self.flood = flood
        self.made = 0
        self.closed = threading.Event()
        self.refusal: Exception | None = None

    async def events(self) -> AsyncIterator[Event]:
        try:
            for number, data in enumerate(self.data):
                yield Event(data, id=str(number), event="told")
            for _ in range(self.flood):
                self.made += 1
                yield Event("x" * 65_536)
            if self.endless:
                await asyncio.Event().wait()
        finally:
            self.closed.set()

    async def still(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class Served:
    """Streams of one source at every path."""

    def __init__(self, source: Source, **settings: int) -> None:
        told = Settings(**settings)  # type: ignore[arg-type]  # fields of Settings
        self.services = Services(told, Tokens(b"k" * 32, TOKEN, uuid4()))
        self.source = source
        self.port = 0

    @property
    def streams(self) -> Streams:
        return self.services.streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        stream = EventStream(self.source.events(), tenant_id=TENANT, still=self.source.still)
        await stream(scope, receive, send)

    def ended(self, ending: Ending, count: int = 1) -> bool:
        """Waits until so many streams have ended so."""
        return until(lambda: self.streams.ended[ending] == count)


def until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + START_SECS
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


@contextmanager
def served(source: Source, protocol: type[Connection] = Connection, **settings: int) -> Iterator[Served]:
    found = Served(source, **settings)
    server = _Server(configuration(Edge(found, found.services), host="127.0.0.1", port=0, http=protocol))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.listening.wait(START_SECS)
        found.port = server.servers[0].sockets[0].getsockname()[1]
        yield found
    finally:
        server.should_exit = True
        thread.join(START_SECS)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every some seconds happens sooner."""
    monkeypatch.setattr(event_stream, "TICK_SECS", 0.02)
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECS", 0.1)
    monkeypatch.setattr(event_stream, "CHECK_SECS", 0.05)
    monkeypatch.setattr(event_stream, "LEAVE_SECS", 0.1)


def test_events_arrive_as_they_are_and_the_stream_ends_in_order() -> None:
    source = Source("one", "two\nlines", "", endless=False)
    with served(source) as at, streamed(at.port, "/", TOKEN) as stream:
        assert [(event.event, event.id, event.data) for event in stream] == [
            ("told", "0", "one"), ("told", "1", "two\nlines"), ("told", "2", "")
        ]  # fmt: skip
        low, high = event_stream.RETRY_MILLISECONDS
        assert low <= (stream.parser.retry or 0) <= high
        headers = stream.answer.headers
        assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert headers["X-Accel-Buffering"] == "no"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Request-Id"]
        assert at.ended(Ending.OVER)
        assert at.streams.sent == 3


def test_a_client_sees_at_once_that_it_is_connected_and_then_that_it_still_is() -> None:
    with served(Source()) as at, streamed(at.port, "/", TOKEN) as stream:
        stream.until_comment().until_comment()
        assert at.streams.open == {"": 1}


def test_h27_streams_end_in_order_when_the_service_stops() -> None:
    with served(Source("one")) as at, streamed(at.port, "/", TOKEN) as stream:
        assert stream.next().data == "one"
        at.services.draining = True
        [end] = stream
        assert end.event == "end"
        assert '"leaving"' in end.data
        assert end.id == "0", "the client resumes behind the last event"
        assert at.ended(Ending.LEAVING)
        # Who comes meanwhile is sent away in a way that browsers come back from: with 200.
        with streamed(at.port, "/", TOKEN) as late:
            assert '"leaving"' in list(late)[-1].data


def test_h27_a_server_that_is_told_to_stop_tells_its_streams() -> None:
    source = Source("one")
    with served(source) as at:
        stream = streamed(at.port, "/", TOKEN)
        opened = stream.__enter__()
        opened.next()
    [end] = opened
    assert '"leaving"' in end.data
    assert source.closed.is_set()
    stream.__exit__(None, None, None)


def test_a_client_that_leaves_ends_its_stream() -> None:
    source = Source("one")
    with served(source) as at:
        with streamed(at.port, "/", TOKEN) as stream:
            stream.next()
        assert at.ended(Ending.CLIENT)
        assert source.closed.wait(START_SECS)
        assert at.streams.open == {"": 0}


def test_who_would_be_refused_now_is_told_so() -> None:
    source = Source("one")
    with served(source) as at, streamed(at.port, "/", TOKEN) as stream:
        stream.next()
        source.refusal = UnauthorizedError()
        [end] = stream
        assert (end.event, '"unauthorized"' in end.data) == ("end", True)
        assert at.ended(Ending.REFUSED)


def test_g27_while_nobody_can_tell_a_stream_goes_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("one")
    source.refusal = UnavailableError("the database is away")
    with served(source) as at, streamed(at.port, "/", TOKEN) as stream:
        stream.next()
        stream.until_comment().until_comment()
        monkeypatch.setattr(event_stream, "UNCHECKED_SECS", 0.0)
        [end] = stream
        assert '"unavailable"' in end.data


def test_what_fails_is_told_and_is_no_end_in_order(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Source):
        async def events(self) -> AsyncIterator[Event]:
            yield Event("one")
            raise ZeroDivisionError("secret of the insides")

    with served(Failing()) as at, streamed(at.port, "/", TOKEN) as stream:
        one, end = stream
        assert (one.data, end.event) == ("one", "end")
        assert '"internal"' in end.data
        assert "secret" not in end.data
        assert at.ended(Ending.FAILED)
    assert "an event stream failed" in caplog.text


def test_there_are_so_many_streams_of_a_tenant_and_then_429() -> None:
    source = Source("one")
    with served(source, max_streams_per_tenant=1) as at:
        with streamed(at.port, "/", TOKEN) as stream:
            stream.next()
            refused = Client(f"http://127.0.0.1:{at.port}", TOKEN).get("/")
            assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
            assert refused.headers["Retry-After"]
        assert at.ended(Ending.CLIENT)
        with streamed(at.port, "/", TOKEN) as again:
            again.next()


def test_there_are_so_many_streams_of_a_process() -> None:
    streams = Streams(2, 10)
    with streams.entered(UUID(int=1), "/a"), streams.entered(UUID(int=2), "/b"):
        with pytest.raises(TooManyRequestsError), streams.entered(UUID(int=3), "/a"):
            pass
        assert streams.open == {"/a": 1, "/b": 1}
    with streams.entered(UUID(int=3), "/a"):
        assert streams.open == {"/a": 1, "/b": 0}


FLOOD = 2_000
"""Of 64 KiB each: more than any buffer between the two holds."""


class Impatient(Connection):
    take_secs = 0.2


def test_who_does_not_read_is_cut_off_and_keeps_no_events_in_memory() -> None:
    source = Source(flood=FLOOD)
    with served(source, Impatient) as at, stuck(at.port, "/", TOKEN):
        assert at.ended(Ending.CLIENT)
        assert 0 < source.made < FLOOD / 4


def test_h27_who_does_not_read_does_not_keep_the_service_from_stopping() -> None:
    source = Source(flood=FLOOD)
    with served(source) as at:
        channel = stuck(at.port, "/", TOKEN)
        made = -1
        while source.made != made:  # until nothing more fits anywhere
            made = source.made
            time.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert at.ended(Ending.UNTAKEN)
    channel.close()
