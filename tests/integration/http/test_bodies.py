"""Bodies on the wire: limits, content types, encodings, lengths that lie (cases H01, H09, P26)."""

from __future__ import annotations

import json
import socket

import pytest

from app.http import bodies, edge
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.integration.http.wire import (
    SECS,
    WireReply,
    chunked,
    converse,
    post_routes,
    read_reply,
    request,
    routes_with_a_body,
    send,
)
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

LIMIT = 4 * 1024 * 1024
JSON = "Content-Type: application/json"


@pytest.fixture
def token(service: Running) -> str:
    return f"Authorization: Bearer {service.operator_token}"


def problem(reply: WireReply, status: int, code: str) -> None:
    assert (reply.status, reply.json["code"]) == (status, code), reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["request_id"] == reply.headers["x-request-id"]


def test_h01_an_announced_huge_body_is_refused_before_it_is_read(service: Running, token: str) -> None:
    for path in post_routes():
        # Only the headers are sent: an answer at all means that nothing was waited for.
        raw = f"POST {path} HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\nContent-Length: {LIMIT + 1}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
            connection.sendall(raw.encode())
            head = connection.recv(65_536)
        assert head.startswith(b"HTTP/1.1 413 "), (path, head)
        assert b"connection: close" in head.lower()


def test_h01_the_sender_of_a_huge_body_gets_to_read_why(service: Running, token: str) -> None:
    for path in post_routes():
        reply = request(service.port, "POST", path, JSON, token, body=b" " * (11 * 1024 * 1024))
        problem(reply, 413, "payload_too_large")
        assert str(LIMIT) in reply.json["error"]
        assert reply.closed


def test_h01_a_standard_client_sees_413(operator: Client) -> None:
    reply = operator.post_raw("/v1/agents", b" " * (11 * 1024 * 1024))
    assert (reply.status, reply.json["code"]) == (413, "payload_too_large")


def test_h01_a_chunked_body_is_cut_at_the_limit(service: Running, token: str) -> None:
    for path in post_routes():
        body = chunked(LIMIT + 128 * 1024)
        reply = request(service.port, "POST", path, JSON, token, "Transfer-Encoding: chunked", body=body)
        problem(reply, 413, "payload_too_large")
        assert reply.closed


def test_h01_a_chunked_body_within_the_limit_is_read(service: Running, token: str) -> None:
    body = [b'e\r\n{"agent_id":"m\r\n', b'10\r\n","policy":null}\r\n0\r\n\r\n']
    reply = request(
        service.port, "POST", "/v1/agents", JSON, token, "Transfer-Encoding: chunked", body=iter(body)
    )
    assert reply.status == 200
    assert reply.json["agent"]["agent_id"] == "m"


def test_h01_without_a_token_nothing_of_the_body_is_read(service: Running) -> None:
    for path in post_routes():
        reply = request(
            service.port, "POST", path, JSON, "Transfer-Encoding: chunked", body=chunked(LIMIT * 2)
        )
        problem(reply, 401, "unauthorized")
        assert reply.closed


def test_h01_a_body_exactly_at_the_limit_is_read(service: Running, token: str) -> None:
    core = json.dumps({"agent_id": "mailer", "policy": None}).encode()
    body = core + b" " * (LIMIT - len(core))
    assert request(service.port, "POST", "/v1/agents", JSON, token, body=body).status == 200


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "99999999999999999999999", "3, 4", "+3"])
def test_h01_a_length_that_is_no_length_is_refused(service: Running, token: str, length: str) -> None:
    raw = f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\nContent-Length: {length}\r\n\r\n{{}}"
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
        connection.sendall(raw.encode())
        assert connection.recv(65_536).split()[1] in {b"400", b"413"}


def test_h01_a_length_that_is_too_small_records_nothing(
    service: Running, operator: Client, token: str
) -> None:
    head = f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\nContent-Length: 5\r\n\r\n"
    reply = send(service.port, [head.encode(), b'{"agent_id":"mailer","policy":null}'])
    # The rest of the body is no request, so the server itself may be the one that refuses.
    assert reply.status == 400
    assert operator.get("/v1/agents").json == {"agents": []}


def test_h01_a_sender_that_stops_early_leaves_the_service_well(service: Running, token: str) -> None:
    head = f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\nContent-Length: 50\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
        connection.sendall(head.encode())
    assert Client(service.url).get("/healthz").status == 200


def expecting(token: str, length: int) -> bytes:
    """The head of a request whose sender waits for 100 Continue."""
    return (
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\n"
        f"Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_h01_a_sender_that_asks_first_is_told_to_go_on(service: Running, token: str) -> None:
    body = b'{"agent_id":"mailer","policy":null}'
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(expecting(token, len(body)))
        first = read_reply(stream)
        assert first is not None
        assert first.status == 100
        connection.sendall(body)
        second = read_reply(stream)
        assert second is not None
        assert (second.status, second.closed) == (200, False)


@pytest.mark.parametrize("length", [10, LIMIT, LIMIT + 1, 10 * LIMIT])
@pytest.mark.parametrize("known", [True, False])
def test_h01_a_sender_that_asks_first_is_refused_once_and_for_all(
    service: Running, token: str, length: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "LINGER_SECS", 0.1)
    if known and length <= LIMIT:
        return  # it would be let in
    head = expecting(token if known else "Authorization: Bearer no", length)
    [reply] = converse(service.port, head, end=False)
    assert reply.status == (413 if known else 401)
    assert reply.closed, "what comes next could be the body or another request"


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 1000"])
def test_h31_a_body_that_never_ends_is_given_up_and_the_connection_closed(
    service: Running, token: str, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECS", 0.2)
    monkeypatch.setattr(edge, "LINGER_SECS", 0.1)
    head = f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{token}\r\n{framing}\r\n\r\n"
    piece = b"1\r\n \r\n" if "chunked" in framing else b" "
    [reply] = converse(service.port, head.encode(), *[piece] * 50)
    problem(reply, 400, "bad_request")
    assert "did not arrive" in reply.json["error"]
    assert reply.closed


def test_h01_a_body_in_chunks_of_one_byte_is_read(service: Running, token: str) -> None:
    body = b'{"agent_id":"mailer","policy":null}' + b" " * 100_000
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    stream = (pieces[at : at + 4096] for at in range(0, len(pieces), 4096))
    reply = request(
        service.port, "POST", "/v1/agents", JSON, token, "Transfer-Encoding: chunked", body=stream
    )
    assert reply.status == 200


def test_h01_the_limit_is_a_setting(service: Running) -> None:
    assert service.app.services.settings.max_body_bytes == LIMIT


WRONG_TYPES = [
    None,
    "Content-Type:",
    "Content-Type: text/plain",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Type: multipart/form-data; boundary=x",
    "Content-Type: text/plain; application/json",
    "Content-Type: application/json; charset=latin-1",
    "Content-Type: application/json; charset=utf-8; x=y",
    "Content-Type: application/json, text/plain",
    "Content-Type: application/jsonx",
    "Content-Type: application/problem+json",
    "Content-Type: application/json\r\nContent-Type: application/json",
    b"Content-Type: application/json\xe9",
]
"""What a form in a foreign page, or a careless client, would send."""


@pytest.mark.parametrize("header", WRONG_TYPES)
def test_h09_only_json_is_read_as_json(service: Running, token: str, header: bytes | str | None) -> None:
    for path in post_routes():
        headers = [token] if header is None else [token, header]
        reply = request(service.port, "POST", path, *headers, body=b"{}")
        problem(reply, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "header",
    [
        "Content-Type: application/json",
        "Content-Type: Application/JSON",
        "Content-Type: application/json; charset=utf-8",
        'Content-Type: application/json;charset="UTF-8"',
    ],
)
def test_h09_json_with_its_one_charset_is_read(service: Running, token: str, header: str) -> None:
    for path in post_routes():
        assert request(service.port, "POST", path, token, header, body=b"{}").status in {400, 404}


def test_h09_compressed_bodies_are_refused(service: Running, token: str) -> None:
    for path in post_routes():
        reply = request(service.port, "POST", path, JSON, token, "Content-Encoding: gzip", body=b"\x1f\x8b")
        problem(reply, 415, "unsupported_media_type")
        plain = request(service.port, "POST", path, JSON, token, "Content-Encoding: identity", body=b"{}")
        assert plain.status in {400, 404}


def test_an_empty_body_is_refused(service: Running, token: str) -> None:
    for path in routes_with_a_body():
        problem(request(service.port, "POST", path, JSON, token), 400, "bad_request")


def test_the_connection_lives_on_after_a_refused_small_body(service: Running) -> None:
    ask = f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECS) as connection:
        for _ in range(3):
            connection.sendall(ask)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "body",
    [
        {"tool": "a" * 3_000},
        {"tool": "search", "session_id": "f" * 3_000},
        {"tool": "search", "parent_id": "f" * 3_000},
        {"tool": "search", "input": "x" * (1024 * 1024 + 1)},
        {"tool": "search", "input": {f"k{number}": 0 for number in range(200_000)}},
    ],
    ids=["tool", "session_id", "parent_id", "string", "members"],
)
def test_p26_oversized_values_are_refused_with_the_limit(operator: Client, body: object) -> None:
    agent = operator.create("mailer")
    reply = agent.post("/v1/agents/mailer/actions", body)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert operator.get("/v1/agents/mailer").json["head"]["seq"] == 1


def test_p26_oversized_names_and_keys_are_refused(operator: Client) -> None:
    operator.create("mailer")
    long = "a" * 3_000
    assert operator.post("/v1/agents", {"agent_id": long, "policy": None}).status == 400
    assert operator.get(f"/v1/agents/{long}").status == 400
    path = "/v1/agents/mailer/actions"
    assert operator.post(path, {"tool": "search"}, Idempotency_Key=long).status == 400
    assert operator.post("/v1/agents/mailer/terminate", {"reason": "x", "by": long}).status == 400
    reply = operator.post(path, {"tool": "search", "input": "x" * (5 * 1024 * 1024)})
    assert (reply.status, reply.json["code"]) == (413, "payload_too_large")
