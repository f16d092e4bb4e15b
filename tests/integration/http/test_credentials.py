"""Credentials and answers on the wire, of every kind of token and over every route (cases H17, H18, H19)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import WireReply, all_routes, converse, request
from tests.support.postgres import Server, fresh_database

JSON = "Content-Type: application/json"
PROTECTED = [
    *((method, path) for method, path, needs_token in all_routes() if needs_token),
    ("GET", "/v1/public-key"),
]


@pytest.fixture(scope="module")
def patient(postgres: Server, template: NoopExecutor) -> Iterator[Running]:
    """A service that answers any number of invalid tokens with 401."""
    with (
        fresh_database(postgres, template.template_dbname) as database,
        serve(database.app_url, failures_per_peer=0) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def tokens(patient: Running) -> dict[str, str]:
    """A valid token of each kind of that service."""
    return issued(patient)


def issued(service: Running) -> dict[str, str]:
    """A valid token of each kind."""
    operator = Client(service.url, service.operator_token)
    key = operator.post("/v1/keys", {"role": "operator", "name": "of the tests"}).json["token"]
    agent = operator.create("mailer").token
    assert agent is not None
    return {"key": key, "agent": agent, "operator": service.operator_token, "root": service.root_token}


# --- H17 ------------------------------------------------------------------------------------------------


def is_unstorable(reply: WireReply) -> bool:
    stored = {name for name in ("etag", "last-modified", "expires", "age") if name in reply.headers}
    return reply.headers["cache-control"] == "no-store" and not stored


def test_h17_no_answer_of_any_route_may_be_stored_whatever_it_is(service: Running) -> None:
    statuses = set()
    for token in issued(service).values():
        headers = (f"Authorization: Bearer {token}", "If-None-Match: *", JSON)
        for method, path, _ in all_routes():
            for asked, query in ((method, ""), (method, "?%zz"), ("OPTIONS", ""), ("PUT", "")):
                reply = request(service.port, asked, path + query, *headers)
                assert is_unstorable(reply), (asked, path, reply)
                statuses.add(reply.status)
    assert {200, 204, 400, 403, 404, 405} <= statuses
    assert 304 not in statuses


def test_h17_what_the_connection_refuses_may_not_be_stored_either(service: Running) -> None:
    for raw in (
        b"nonsense\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        (reply,) = converse(service.port, raw)
        assert reply.status == 400
        assert is_unstorable(reply)


# --- H18 ------------------------------------------------------------------------------------------------


def _swapped(token: str, old: str, new: str) -> str:
    return token.replace(old, new, 1)


def _tenant(token: str) -> str:
    return token[4:36]


DAMAGES: dict[str, Callable[[str], str]] = {
    "another tenant's": lambda token: _swapped(token, _tenant(token), UUID(int=7).hex),
    "an id changed": lambda token: token[:40] + ("0" if token[40] != "0" else "1") + token[41:],
    "the last digit changed": lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
    "cut by one": lambda token: token[:-1],
    "cut in half": lambda token: token[: len(token) // 2],
    "no more than its kind": lambda token: token[:4],
    "longer by one": lambda token: token + "0",
    "upper case": str.upper,
    "of another kind": lambda token: ("agt_" if token.startswith("trk_") else "trk_") + token[4:],
    "a part missing": lambda token: token.rpartition(".")[0],
    "a part more": lambda token: token + ".0",
    "an empty part": lambda token: _swapped(token, ".", ".."),
    "padded": lambda token: token + "=",
    "latin-1": lambda token: token[:50] + "\xe9" + token[51:],
    "UTF-8": lambda token: token[:50] + "é".encode().decode("latin-1") + token[51:],
    "ten thousand": lambda token: token + "0" * 10_000,
    "twice": lambda token: f"{token} {token}",
    "twice with a comma": lambda token: f"{token}, Bearer {token}",
    "two headers": lambda token: f"{token}\r\nAuthorization: Bearer {token}",
    "quoted": lambda token: f'"{token}"',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_h18_a_damaged_token_is_401_on_every_route(
    patient: Running, tokens: dict[str, str], damage: str
) -> None:
    for kind in ("key", "agent"):
        value = f"Authorization: Bearer {DAMAGES[damage](tokens[kind])}".encode("latin-1")
        for method, path in PROTECTED:
            reply = request(patient.port, method, path, value, JSON, body=b"{}" if method == "POST" else b"")
            assert (reply.status, "www-authenticate" in reply.headers) == (401, True), (path, reply)
            assert reply.json["code"] in {"unauthorized", 16}
            assert tokens[kind] not in str(reply)


@pytest.mark.parametrize("scheme", ["Basic", "Token", "Digest", "Bearer:", "", "\xe9"])
def test_h18_a_valid_token_under_another_scheme_is_401(
    patient: Running, tokens: dict[str, str], scheme: str
) -> None:
    for token in tokens.values():
        value = f"Authorization: {scheme} {token}".encode("latin-1")
        for method, path in PROTECTED:
            assert request(patient.port, method, path, value, JSON).status == 401, path


# --- H19 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["token", "api_key", "access_token", "apikey", "authorization", "ToKeN"])
def test_h19_a_token_in_the_url_is_refused_on_every_route_and_shown_nowhere(
    service: Running, field: str, log: io.StringIO
) -> None:
    tokens = issued(service)
    begun = len(log.getvalue())
    for kind, token in tokens.items():
        for method, path in [*((method, path) for method, path, _ in all_routes()), ("GET", "/nowhere")]:
            for more in ((), (f"Authorization: Bearer {token}",)) if kind == "key" else ((),):
                reply = request(service.port, method, f"{path}?a=1&{field}={token}", JSON, *more, body=b"{}")
                assert (reply.status, reply.json["code"]) == (400, "bad_request"), (path, reply)
                assert token[:40] not in str(reply)
    lines = log.getvalue()[begun:]
    assert lines.count("400") >= 4 * len(all_routes())
    for token in tokens.values():
        assert token not in lines
        assert token[-20:] not in lines


def test_h19_failures_with_valid_tokens_show_them_nowhere(service: Running, log: io.StringIO) -> None:
    tokens = issued(service)
    for token in tokens.values():
        for method, path, _ in all_routes():
            for body in (b"{", b'{"x":1}'):
                reply = request(service.port, method, path, f"Authorization: Bearer {token}", JSON, body=body)
                assert token not in str(reply)
        for target in (f"/nowhere/{token}", f"/v1/agents/{token}/actions", f"/{token}?q=1"):
            request(service.port, "GET", target, f"Authorization: Bearer {token}")
    for token in tokens.values():
        assert token[-20:] not in log.getvalue(), token[:8]
