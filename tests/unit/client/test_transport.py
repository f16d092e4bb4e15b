"""Requests and answers: nothing is followed, nothing is believed that is not the service's."""

from __future__ import annotations

import asyncio
import datetime as dt
from email.utils import format_datetime

import pytest

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
