"""Requests and answers: nothing is followed, nothing is believed that is not the service's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import threading
from collections.abc import Iterator
from email.utils import format_datetime

import pytest

from app.client import transport as transport_module
from app.client.errors import (
    BrokenAnswerError,
    BusyError,
    ClientError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    ServiceError,
    UnauthorizedError,
    UnreachableError,
)
from app.client.settings import Service, service
from app.client.transport import AsyncTransport, Request, Transport
from tests.support.scripted import Reply, Scripted, problem

JSON = "application/json"


@pytest.fixture
def target(answering: Scripted) -> Service:
    return service(answering.url, "secret-token", "bot", {})


@pytest.mark.parametrize(
    ("status", "leaf"),
    [
        (400, RefusedError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, RefusedError),
        (415, RefusedError),
        (429, BusyError),
        (500, BusyError),
        (503, BusyError),
    ],
)
def test_problem_documents_become_errors(
    target: Service, answering: Scripted, status: int, leaf: type[ServiceError]
) -> None:
    answering.script = [problem(status, "some_code", Retry_After="7", X_Request_Id="r-1")]
    with Transport(target) as transport, pytest.raises(leaf) as caught:
        transport.call("POST", "/v1/x", {"a": 1})
    error = caught.value
    assert (error.status, error.code, error.message) == (status, "some_code", "it is some_code")
    assert (error.retry_after, error.request_id) == (7, "r-1")
    assert str(error) == f"{status} some_code: it is some_code"
    assert "secret-token" not in repr(error)


def test_a_proxys_page_is_an_error_with_its_beginning(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(502, b"<h1>Bad gateway</h1>" * 99, "text/html")]
    with Transport(target) as transport, pytest.raises(BusyError, match="Bad gateway") as caught:
        transport.call("GET", "/v1/x")
    assert caught.value.code == "http_502"
    assert len(str(caught.value)) < 400


def test_a_redirect_is_not_followed(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(302, headers=(("Location", "/elsewhere"),))]
    with Transport(target) as transport, pytest.raises(ServiceError):
        transport.call("GET", "/v1/x")
    assert len(answering.got) == 1


def test_a_success_that_is_no_json_is_broken(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(200, b"<html>", "text/html")]
    with Transport(target) as transport, pytest.raises(BrokenAnswerError):
        transport.call("GET", "/v1/x")


def test_no_answer_is_unreachable(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(None)]
    with Transport(target) as transport, pytest.raises(UnreachableError, match="did not answer"):
        transport.call("POST", "/v1/x", {})
    with (
        Transport(service("http://127.0.0.1:1", "t", "a", {})) as nobody,
        pytest.raises(ClientError, match=r"127\.0\.0\.1:1 did not answer"),
    ):
        nobody.call("GET", "/")


def test_a_request_is_sent_as_it_is(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(200, b"{}", JSON)] * 2
    with Transport(target) as transport:
        transport.send(Request("POST", "/v1/x", b'{ "a":1 }', "text/x", "key-1"))
        assert transport.call("POST", "/v1/y", {"a": 1}, idempotency_key="key-2") == {}
    first, second = answering.got
    assert (first.body, first.key, first.headers["content-type"]) == (b'{ "a":1 }', "key-1", "text/x")
    assert (second.body, second.key, second.headers["content-type"]) == (b'{"a":1}', "key-2", JSON)
    assert first.headers["authorization"] == "Bearer secret-token"


def test_a_path_in_the_url_is_kept(answering: Scripted) -> None:
    answering.script = [Reply(200, b"{}", JSON)]
    with Transport(service(f"{answering.url}/below/", "t", "a", {})) as transport:
        transport.call("GET", "/v1/x")
    assert answering.got[0].path == "/below/v1/x"


@pytest.mark.parametrize(
    ("header", "expected"), [("7", 7), ("0.5", 0.5), ("-3", 0), ("soon", None), ("inf", None), ("nan", None)]
)
def test_retry_after_is_seconds(
    target: Service, answering: Scripted, header: str, expected: float | None
) -> None:
    answering.script = [problem(503, "unavailable", Retry_After=header)]
    with Transport(target) as transport:
        assert transport.send(Request("GET", "/")).retry_after == expected


def test_retry_after_is_a_date_too(target: Service, answering: Scripted) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    answering.script = [problem(503, "unavailable", Retry_After=format_datetime(later, usegmt=True))]
    with Transport(target) as transport:
        found = transport.send(Request("GET", "/")).retry_after
    assert found is not None
    assert 3_000 < found <= 3_600


def test_one_async_transport_serves_several_loops(target: Service, answering: Scripted) -> None:
    answering.script = [Reply(200, b"[1]", JSON), Reply(None), Reply(200, b"[2]", JSON)]
    transport = AsyncTransport(target)

    async def call() -> object:
        try:
            return await transport.call("POST", "/v1/x", {}, idempotency_key="k")
        finally:
            await transport.aclose()

    assert asyncio.run(call()) == [1]
    with pytest.raises(UnreachableError):
        asyncio.run(call())
    assert asyncio.run(call()) == [2]


@contextlib.contextmanager
def answering_for_ever(head: bytes, chunk: bytes, pause: float) -> Iterator[Service]:
    """A service that begins to answer and does not come to an end."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head)
            while not over.wait(pause):
                connection.sendall(chunk)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield service(f"http://127.0.0.1:{listener.getsockname()[1]}", "token", "bot", {})
    finally:
        over.set()
        thread.join()
        listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
TRICKLES = {"body": (HEAD, b" "), "head": (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n")}


@pytest.mark.parametrize("trickle", TRICKLES.values(), ids=TRICKLES)
async def test_an_answer_that_trickles_is_too_late(trickle: tuple[bytes, bytes]) -> None:
    with answering_for_ever(*trickle, pause=0.05) as target:
        transport = AsyncTransport(target, timeout=0.4)
        with pytest.raises(UnreachableError):
            await asyncio.wait_for(transport.send(Request("GET", "/")), 20)
        await transport.aclose()


def test_a_trickling_body_is_too_late_for_threads_too() -> None:
    with (
        answering_for_ever(*TRICKLES["body"], pause=0.05) as target,
        Transport(target, timeout=0.4) as transport,
        pytest.raises(UnreachableError, match="in time"),
    ):
        transport.send(Request("GET", "/"))


def test_an_answer_without_end_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_ANSWER_BYTES", 100_000)
    with (
        answering_for_ever(HEAD, b" " * 10_000, pause=0) as target,
        Transport(target) as transport,
        pytest.raises(UnreachableError, match="more than 100000 bytes"),
    ):
        transport.send(Request("GET", "/"))
