"""Connections on the wire: framing, malformed requests, half-closed clients, deadlines (H01, H11, H31)."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import pytest
from pytest_postgresql.executors import NoopExecutor

from app.http.connection import MAX_HEAD_BYTES, Connection
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import SECS, WireReply, converse, read_reply
from tests.support.postgres import Server, fresh_database
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

JSON = "Content-Type: application/json"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BODY = b'{"agent_id":"mailer","policy":null}'


@pytest.fixture
def token(service: Running) -> str:
    return f"Authorization: Bearer {service.operator_token}"


def post(*headers: str, path: str = "/v1/agents", body: bytes = BODY, host: str = "Host: x") -> bytes:
    """A whole request; its length is told unless it is chunked."""
    lines = [f"POST {path} HTTP/1.1", *([host] if host else []), JSON, *headers]
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def statuses(replies: list[WireReply]) -> list[int]:
    return [reply.status for reply in replies]


def refused(reply: WireReply) -> str:
    """The sentence of a refusal, which must be a whole problem document."""
    assert (reply.status, reply.headers["connection"]) == (400, "close"), reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["cache-control"] == "no-store"
    assert (reply.json["code"], reply.json["status"]) == ("bad_request", 400)
    assert reply.json["request_id"] == reply.headers["x-request-id"]
    return str(reply.json["error"])


# --- heads and trailers ---------------------------------------------------------------------------------


def test_h01_a_head_is_bounded(service: Running) -> None:
    fits = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: %b\r\n\r\n"
    assert statuses(converse(service.port, fits % (b"a" * (MAX_HEAD_BYTES - 100)))) == [200]
    for excess in (b"a" * MAX_HEAD_BYTES, b"a\r\n" + b"Y: b\r\n" * 20_000):
        (reply,) = converse(service.port, fits % excess)
        assert str(MAX_HEAD_BYTES) in refused(reply)
    (reply,) = converse(service.port, b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert str(MAX_HEAD_BYTES) in refused(reply)


@pytest.mark.parametrize("piece", [b"x-a: " + b"b" * 500 + b"\r\n", b"b" * 512], ids=["many", "one"])
def test_h01_trailers_are_bounded(service: Running, token: str, piece: bytes) -> None:
    start = post(token, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nx: ")
    (reply,) = converse(service.port, start, *[piece] * 1000)
    assert str(MAX_HEAD_BYTES) in refused(reply)


def test_h01_trailers_change_nothing(service: Running, token: str) -> None:
    body = b"%x\r\n%b\r\n0\r\nContent-Type: text/plain\r\nIdempotency-Key: a b\r\n\r\n" % (len(BODY), BODY)
    replies = converse(service.port, post(token, "Transfer-Encoding: chunked", body=body), LAST)
    assert statuses(replies) == [200, 200]


# --- framing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["foo", "h2c", "websocket"])
def test_h11_a_wish_to_upgrade_is_ignored(service: Running, token: str, wish: str) -> None:
    upgrade = ("Connection: keep-alive, Upgrade", f"Upgrade: {wish}", "HTTP2-Settings: AAMAAABkAAQAAP__")
    replies = converse(service.port, HEALTH + post(token, *upgrade) + LAST)
    assert statuses(replies) == [200, 200, 200]
    assert replies[1].json["agent"]["agent_id"] == "mailer"


@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_h11_the_body_of_an_upgrade_request_is_no_request(
    service: Running, operator: Client, token: str, coding: str
) -> None:
    hidden = post(token)
    framed = hidden if coding == "length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
    more = ("Transfer-Encoding: chunked",) if coding == "chunked" else ()
    whole = post(token, "Connection: Upgrade", "Upgrade: foo", "Expect: 100-continue", *more, body=framed)
    head, body = whole[: -len(framed)], whole[-len(framed) :]
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
        stream = connection.makefile("rb")
        connection.sendall(head)
        interim = read_reply(stream)  # the head is parsed, and the body is waited for
        assert interim is not None
        assert interim.status == 100
        connection.sendall(body)
        connection.sendall(LAST)
        replies = [read_reply(stream), read_reply(stream), read_reply(stream)]
    assert [reply and reply.status for reply in replies] == [400, 200, None]
    assert operator.get("/v1/agents").json == {"agents": []}


CODINGS = [
    ["Transfer-Encoding: gzip, chunked"],
    ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked, chunked"],
    ["Transfer-Encoding: identity"],
    ["Transfer-Encoding: xchunked"],
    ["Transfer-Encoding: chunked", "Content-Length: 3"],
]


@pytest.mark.parametrize("headers", CODINGS, ids=", ".join)
def test_h11_other_transfer_encodings_are_refused(
    service: Running, operator: Client, token: str, headers: list[str]
) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    (reply,) = converse(service.port, post(token, *headers, body=body), LAST)
    refused(reply)
    assert operator.get("/v1/agents").json == {"agents": []}


def test_h11_http_1_0_knows_no_chunks(service: Running, token: str) -> None:
    old = post(token, "Transfer-Encoding: chunked", body=b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    (reply,) = converse(service.port, old)
    refused(reply)


@pytest.mark.parametrize("host", ["", "Host: a\r\nHost: b"])
def test_h11_a_request_names_one_host(service: Running, token: str, host: str) -> None:
    (reply,) = converse(service.port, post(token, host=host))
    assert "Host" in refused(reply)


def test_h11_http_1_0_needs_no_host(service: Running) -> None:
    assert statuses(converse(service.port, b"GET /healthz HTTP/1.0\r\n\r\n")) == [200]


# --- what the parser refuses ----------------------------------------------------------------------------

MALFORMED = [
    "GET /v1/agents/é HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    b"GET /v1/agents/\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/agents?limit=\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: a\r\n b\r\n\r\n",
    b"GET http://host HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"secret-word\r\n\r\n",
]


@pytest.mark.parametrize("raw", MALFORMED)
def test_what_is_not_http_is_told_as_a_problem(
    service: Running, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trails.http")
    (reply,) = converse(service.port, raw)
    assert "secret-word" not in refused(reply)
    (record,) = [record for record in caplog.records if record.message.startswith("refused: ")]
    told = {"request_id": reply.json["request_id"], "peer": "127.0.0.1"}
    assert vars(record)["fields"] == told


def test_what_came_before_a_malformed_request_is_answered_first(service: Running, token: str) -> None:
    replies = converse(service.port, post(token) + HEALTH + b"\xe9")
    assert statuses(replies) == [200, 200, 400]
    refused(replies[2])


def test_a_queued_request_with_a_malformed_body_is_refused_in_its_turn(
    service: Running, operator: Client, token: str
) -> None:
    broken = post(token, "Transfer-Encoding: chunked", body=b"%x\r\n%b\r\nzz" % (len(BODY), BODY))
    replies = converse(service.port, HEALTH + broken)
    assert statuses(replies) == [200, 400]
    assert operator.get("/v1/agents").json == {"agents": []}


def test_a_malformed_body_is_refused_and_nothing_recorded(
    service: Running, operator: Client, token: str
) -> None:
    broken = post(token, "Transfer-Encoding: chunked", body=b"%x\r\n%b\r\nzz" % (len(BODY), BODY))
    (reply,) = converse(service.port, broken)
    refused(reply)
    assert operator.get("/v1/agents").json == {"agents": []}


# --- clients that end their side ------------------------------------------------------------------------


def test_a_client_that_ends_its_side_gets_its_answers(service: Running, operator: Client) -> None:
    agent = operator.create("mailer")
    ask = post(
        f"Authorization: Bearer {agent.token}", path="/v1/agents/mailer/actions", body=b'{"tool":"search"}'
    )
    replies = converse(service.port, ask + ask, end=True)
    assert statuses(replies) == [200, 200]
    assert [reply.json["remaining"] for reply in replies] == [49, 48]


@pytest.mark.parametrize("kept", [10, -3], ids=["head", "body"])
def test_a_request_that_ends_early_is_told(service: Running, operator: Client, token: str, kept: int) -> None:
    (reply,) = converse(service.port, post(token)[:kept], end=True)
    assert "ended" in refused(reply)
    assert operator.get("/v1/agents").json == {"agents": []}


def test_a_connection_that_ends_between_requests_is_closed(service: Running) -> None:
    assert converse(service.port, end=True) == []
    assert statuses(converse(service.port, HEALTH, end=True)) == [200]


# --- deadlines ------------------------------------------------------------------------------------------

HEAD_SECS = 0.5


class Impatient(Connection):
    """The server's connection with a deadline that a test can wait for."""

    head_secs = HEAD_SECS


@pytest.fixture(scope="module")
def impatient(postgres: Server, template: NoopExecutor) -> Iterator[Running]:
    with (
        fresh_database(postgres, template.template_dbname) as own,
        serve(own.app_url, protocol=Impatient) as running,
    ):
        yield running


def test_h31_a_head_must_arrive_in_time(impatient: Running) -> None:
    for before in (b"", HEALTH):
        replies = converse(impatient.port, before + b"GET /healthz HTTP/1.1\r\nHo")
        assert f"{HEAD_SECS:g} seconds" in refused(replies[-1])


@pytest.mark.parametrize("stray", [b"", b"\r\n"])
def test_h31_a_connection_that_asks_nothing_is_closed(impatient: Running, stray: bytes) -> None:
    assert converse(impatient.port, stray) == []


def test_h31_an_idle_connection_is_not_hit_by_the_deadline_of_heads(impatient: Running) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=SECS) as connection:
        stream = connection.makefile("rb")
        for _ in range(2):
            connection.sendall(HEALTH)
            reply = read_reply(stream)
            assert reply is not None
            assert reply.status == 200
            time.sleep(HEAD_SECS * 3)  # the promise itself is a time
