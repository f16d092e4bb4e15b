"""Pages of other origins (case H32)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import WireReply, all_routes, request
from tests.support.postgres import Server, fresh_database

OURS = "https://console.example.com"
LOCAL = "http://localhost:5173"
OTHERS = [
    "https://console.example.com.evil.io",
    "https://evilconsole.example.com",
    "https://evil.io#console.example.com",
    "http://console.example.com",
    "https://console.example.com:8443",
    "https://console.example.com:443",
    "https://console.example.com/",
    "https://CONSOLE.example.com",
    "https://consoleXexample.com",
    "https://console.example.com, https://evil.io",
    "https://console.example.com https://evil.io",
    "http://localhost",
    "null",
    "*",
    "",
]
EXPOSED = "retry-after, trails-receipt, www-authenticate, x-request-id"
PREFLIGHT = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, x-evil")


@pytest.fixture(scope="module")
def open_(postgres: Server, template: NoopExecutor) -> Iterator[Running]:
    """A service with two origins and an agent."""
    with (
        fresh_database(postgres, template.template_dbname) as database,
        serve(database.app_url, cors_origins=(OURS, LOCAL)) as running,
    ):
        Client(running.url, running.operator_token).create("mailer")
        yield running


def cors(reply: WireReply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def every_path() -> list[tuple[str, str]]:
    rows = [(method, path) for method, path, _ in all_routes()]
    return [*rows, ("GET", "/schema"), ("GET", "/nowhere"), ("PUT", "/v1/agents"), ("GET", "/v1/agents/%00")]


def test_h32_closed_as_long_as_no_origin_is_named(service: Running) -> None:
    for method, path in every_path():
        for origin in (OURS, "null", "http://localhost", f"http://127.0.0.1:{service.port}"):
            answer = request(service.port, method, path, f"Origin: {origin}")
            preflight = request(service.port, "OPTIONS", path, f"Origin: {origin}", *PREFLIGHT)
            for reply in (answer, preflight):
                assert not cors(reply), (path, reply)
                assert "vary" not in reply.headers


@pytest.mark.parametrize("origin", OTHERS)
def test_h32_another_origin_gets_no_header_of_cors(open_: Running, origin: str) -> None:
    token = f"Authorization: Bearer {open_.operator_token}"
    for path in ("/v1/agents", "/healthz", "/nowhere", "/v1/agents/%00"):
        for method, more in (("GET", (token,)), ("GET", ()), ("OPTIONS", PREFLIGHT)):
            reply = request(open_.port, method, path, f"Origin: {origin}", *more)
            assert not cors(reply), (path, reply)
            assert reply.headers["vary"] == "Origin"


def test_h32_two_origins_are_none(open_: Running) -> None:
    for more in ((), PREFLIGHT):
        method = "OPTIONS" if more else "GET"
        reply = request(open_.port, method, "/healthz", f"Origin: {OURS}", f"Origin: {LOCAL}", *more)
        assert not cors(reply)


@pytest.mark.parametrize("origin", [OURS, LOCAL])
def test_h32_an_origin_that_is_named_may_read_every_answer_without_credentials(
    open_: Running, origin: str
) -> None:
    token = f"Authorization: Bearer {open_.operator_token}"
    for method, path in every_path():
        for headers in ([], [token]):
            reply = request(open_.port, method, path, f"Origin: {origin}", *headers)
            assert cors(reply) == {
                "access-control-allow-origin": origin,
                "access-control-expose-headers": EXPOSED,
            }, (path, reply)
            assert reply.headers["vary"] == "Origin"
            assert reply.headers["cache-control"] == "no-store"


def test_h32_who_sends_no_origin_is_told_that_answers_differ_by_it(open_: Running) -> None:
    for method, path in every_path():
        reply = request(open_.port, method, path)
        assert reply.headers["vary"] == "Origin"
        assert not cors(reply)


def test_h32_a_preflight_is_told_exactly_what_its_path_takes(open_: Running) -> None:
    methods: dict[str, set[str]] = {}
    for method, path, _ in all_routes():
        methods.setdefault(path, {"OPTIONS"}).add(method)
    for path, allowed in methods.items():
        reply = request(open_.port, "OPTIONS", path, f"Origin: {OURS}", *PREFLIGHT)
        assert (reply.status, reply.body) == (204, b""), (path, reply)
        assert cors(reply) == {
            "access-control-allow-origin": OURS,
            "access-control-allow-methods": ", ".join(sorted(allowed)),
            "access-control-allow-headers": "authorization, content-type, idempotency-key, x-request-id",
            "access-control-max-age": "600",
        }, path
    nowhere = request(open_.port, "OPTIONS", "/nowhere", f"Origin: {OURS}", *PREFLIGHT)
    assert nowhere.status == 404
    assert "access-control-allow-methods" not in nowhere.headers


def test_options_tell_every_method_of_a_path_and_a_wrong_method_the_same(service: Running) -> None:
    for path in ("/v1/agents", "/v1/keys", "/v1/tenants", "/healthz"):
        told = request(service.port, "OPTIONS", path).headers["allow"]
        assert set(told.split(", ")) == set(request(service.port, "PUT", path).headers["allow"].split(", "))
