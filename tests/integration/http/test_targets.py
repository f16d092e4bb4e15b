"""Paths, queries, tokens and methods on the wire (cases G21, H11, H17, H18, H19)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import request, routes
from tests.support.postgres import Database
from tests.support.standing import database, service, tenant

__all__ = ["database", "service", "tenant"]

JSON = "Content-Type: application/json"

ODD_IDS = [
    b"%00",
    b"a%00b",
    b"%ff",
    b"%ed%a0%80",
    b"%c0%af",
    b"a%0d%0ab",
    b"a%1bb",
    b"a%c2%85b",
    b"a%7fb",
    b"%",
    b"%zz",
    b"..%2f..%2fetc",
    b"a%2Fb",
    b"a%5cb",
    b"a\\b",
    b"%252e%252e",
    b"%2525",
    b"%2e%2e",
    b"..",
    b".",
    b"%2e",
    b"a.b",
    b"a%20b",
    b"CON%3a",
    b"caf%c3%a9",
    b"a" * 65,
    b"a" * 300,
    b"a;b",
    b"a,b",
    b"",
]
"""Agent ids that are none: each as it stands in a request line."""


@pytest.fixture(scope="module")
def standing(database: Database) -> Iterator[Running]:
    """A service that answers any number of invalid tokens with 401."""
    with serve(database.app_url, failures_per_peer=0) as running:
        yield running


def with_agent_id(path: str, agent_id: bytes) -> bytes:
    return path.encode().replace(b"mailer", agent_id)


@pytest.mark.parametrize("odd", ODD_IDS)
def test_g21_an_agent_id_that_is_none_is_refused_on_every_route(service: Running, odd: bytes) -> None:
    token = f"Authorization: Bearer {service.operator_token}"
    for method, path, _ in routes():
        if "mailer" not in path:
            continue
        reply = request(service.port, method, with_agent_id(path, odd), token, JSON, body=b"{}")
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), (method, path, reply)
        assert reply.json["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "agent_id", ["../../x", "a/b", "a\\b", "", ".", "a\r\nb", "a\0b", "a" * 300, "é", 5, None]
)
def test_g21_an_agent_id_that_is_none_is_refused_in_a_body(operator: Client, agent_id: object) -> None:
    reply = operator.post("/v1/agents", {"agent_id": agent_id, "policy": None})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert operator.get("/v1/agents").json == {"agents": []}


def test_g21_a_reserved_name_is_an_id_like_any_other(operator: Client) -> None:
    for name in ("CON", "pending", "actions", "-", "_", "a" * 64):
        operator.create(name, None)
        assert operator.get(f"/v1/agents/{name}").json["agent_id"] == name


@pytest.mark.parametrize(
    "action_id", ["act-0", "act-01", "act-", "act--1", "1", "act-1x", "ACT-1", "act-" + "9" * 20]
)
def test_an_action_id_that_cannot_be_one_is_unknown(operator: Client, action_id: str) -> None:
    operator.create("mailer")
    reading = operator.get(f"/v1/agents/mailer/actions/{action_id}")
    assert (reading.status, reading.json["code"]) == (404, "not_found")
    for verb in ("outcome", "approve", "reject"):
        acting = operator.post(f"/v1/agents/mailer/actions/{action_id}/{verb}", {})
        assert acting.status in {400, 404}
        full = {"status": "success", "detail": "", "approver": "A", "reason": "r"}
        acting = operator.post(f"/v1/agents/mailer/actions/{action_id}/{verb}", full)
        assert (acting.status, acting.json["code"]) == (404, "unknown_action")


@pytest.mark.parametrize(
    "query", [b"q=%ff", b"q=%ed%a0%80", b"q=%00", b"q=%0d%0a", b"q=%", b"%zz=1", b"&".join([b"a=1"] * 21)]
)
def test_h11_odd_bytes_in_a_query_are_refused_on_every_route(service: Running, query: bytes) -> None:
    for method, path, _ in routes():
        reply = request(service.port, method, path.encode() + b"?" + query, JSON, body=b"{}")
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), (path, reply)


def test_h11_raw_odd_bytes_never_reach_a_route(service: Running) -> None:
    for method, path, _ in routes():
        for odd in (b"\xff", b"\x00", b"\xed\xa0\x80"):
            reply = request(service.port, method, path.encode() + odd)
            assert reply.status == 400, (path, odd, reply)


def test_h11_odd_bytes_in_header_values_are_no_500(service: Running) -> None:
    for method, path, needs_token in routes():
        for header in (
            b"X-A: a\xe9",
            b"Idempotency-Key: \xe9",
            b"X-Request-Id: \xe9\xe9\xe9\xe9\xe9\xe9\xe9\xe9",
            b"Accept: \xff",
        ):
            reply = request(service.port, method, path, header, JSON, body=b"{}")
            assert reply.status == (401 if needs_token else 200), (path, header, reply)
        assert request(service.port, method, path, b"X-A: a\x00b").status == 400


@pytest.mark.parametrize("key", [b"", b"a b", b"\xe9", b"a\tb", b"a" * 256, b"a\r\nIdempotency-Key: a"])
def test_h11_an_idempotency_key_is_visible_ascii(service: Running, operator: Client, key: bytes) -> None:
    operator.create("mailer")
    token = f"Authorization: Bearer {service.operator_token}"
    for method, path, _ in routes():
        if method == "POST":
            reply = request(service.port, method, path, token, JSON, b"Idempotency-Key: " + key, body=b"{}")
            assert (reply.status, reply.json["code"]) == (400, "bad_request")
            assert "Idempotency-Key" in reply.json["error"]


def test_h17_no_answer_may_be_stored(service: Running, operator: Client) -> None:
    operator.create("mailer")
    token = f"Authorization: Bearer {service.operator_token}"
    for method, path, _ in [
        *routes(),
        ("GET", "/nowhere", False),
        ("DELETE", "/v1/agents", False),
        ("GET", "/schema/openapi.json", False),
    ]:
        for headers in ([], [token], [token, JSON]):
            reply = request(service.port, method, path, *headers)
            assert reply.headers["cache-control"] == "no-store", (path, reply)
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert len(reply.headers["x-request-id"]) == 32


BAD_AUTHORIZATIONS = [
    b"Bearer caf\xe9",
    b"Bearer caf\xc3\xa9",
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer  ",
    b"Bearer " + b"a" * 10_000,
    b"Basic dXNlcjpwYXNz",
    b"Token abcdef",
    b"%TOKEN%",
    b"Bearer %TOKEN% ,",
    b"Bearer %TOKEN%x",
    b"Bearer x%TOKEN%",
    b"Bearer  %TOKEN%",
    b"Bearer %TOKEN%\r\nAuthorization: Bearer %TOKEN%",
    b"Bearer agt_" + b"0" * 32 + b".mailer." + b"0" * 64,
]


@pytest.mark.parametrize("value", BAD_AUTHORIZATIONS, ids=[str(n) for n in range(len(BAD_AUTHORIZATIONS))])
def test_h18_a_bad_authorization_is_401_on_every_route(service: Running, value: bytes) -> None:
    header = b"Authorization: " + value.replace(b"%TOKEN%", service.operator_token.encode())
    for method, path, needs_token in [*routes(), ("GET", "/v1/public-key", True)]:
        if needs_token:
            reply = request(service.port, method, path, header, JSON, body=b"{}")
            assert (reply.status, reply.json["code"]) == (401, "unauthorized"), (path, reply)
            assert reply.headers["www-authenticate"].startswith("Bearer")
            assert service.operator_token not in str(reply)


def test_h18_the_scheme_is_case_insensitive_as_rfc_9110_says(service: Running) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        reply = request(
            service.port, "GET", "/v1/agents", f"Authorization: {scheme} {service.operator_token}"
        )
        assert reply.status == 200


@pytest.mark.parametrize("field", ["token", "api_key", "access_token", "TOKEN", "to%6ben"])
def test_h19_a_token_in_the_url_is_refused_and_not_logged(
    service: Running, field: str, log: io.StringIO
) -> None:
    for method, path, _ in routes():
        target = f"{path}?{field}={service.operator_token}"
        reply = request(service.port, method, target, JSON, body=b"{}")
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), (path, reply)
        assert service.operator_token not in str(reply)
    assert len(re.findall(r"status\W+400\b", log.getvalue())) == len(routes())
    assert service.operator_token not in log.getvalue()


def test_unknown_paths_and_methods_are_problems_too(service: Running) -> None:
    nowhere = request(service.port, "GET", "/v1/nowhere")
    assert (nowhere.status, nowhere.json["code"]) == (404, "not_found")
    wrong = request(service.port, "DELETE", "/v1/agents")
    assert (wrong.status, wrong.json["code"]) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(wrong.headers["allow"].split(", "))
    for reply in (nowhere, wrong):
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["request_id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/traces/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("/", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("/v1/logs", "traces, no logs"),
        ("/v1/metrics", "traces, no metrics"),
    ],
)
def test_an_exporter_that_went_astray_is_told_the_way(service: Running, path: str, says: str) -> None:
    for media_type in ("application/x-protobuf", "application/json"):
        reply = request(service.port, "POST", path, f"Content-Type: {media_type}", body=b"{}")
        assert (reply.status, reply.json["code"]) == (404, "not_found")
        assert says in reply.json["detail"]


def test_a_callers_request_id_is_kept_when_it_is_sane(service: Running) -> None:
    kept = request(service.port, "GET", "/healthz", "X-Request-Id: my-trace-0001")
    assert kept.headers["x-request-id"] == "my-trace-0001"
    for odd in ("short", "a b c d e f g h", "x" * 65, "abcdefgh\tabc"):
        assert request(service.port, "GET", "/healthz", f"X-Request-Id: {odd}").headers["x-request-id"] != odd
