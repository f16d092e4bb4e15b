"""Names that the service is called by, over the wire (case H13)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import WireReply, all_routes, converse
from tests.support.postgres import Database
from tests.support.server import StartServer, start_server  # noqa: F401  a fixture

OURS = "trails.example.com"
PROBES = ("/healthz", "/readyz")


@pytest.fixture
def named(database: Database) -> Iterator[Running]:
    """A service with one name."""
    with serve(database.app_url, allowed_hosts=(OURS,)) as running:
        yield running


def ask(port: int, target: str, *headers: str, method: str = "GET", version: str = "1.1") -> WireReply:
    head = "\r\n".join([f"{method} {target} HTTP/{version}", "Connection: close", *headers, "", ""])
    (reply,) = converse(port, head.encode("latin-1"))
    assert reply.headers["cache-control"] == "no-store"
    return reply


def is_refused(reply: WireReply) -> bool:
    if reply.status != 421:
        return False
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["code"] == "misdirected"
    assert "TRAILS_ALLOWED_HOSTS" in reply.json["error"]
    return True


def test_h13_another_name_is_refused_on_every_route(named: Running) -> None:
    token = f"Authorization: Bearer {named.operator_token}"
    for method, path, _ in [*all_routes(), ("GET", "/schema", False), ("GET", "/nowhere", False)]:
        reply = ask(named.port, path, "Host: evil.example", token, method=method)
        assert is_refused(reply) is (path not in PROBES), (path, reply)
        assert b"evil.example" not in reply.body
        ours = ask(named.port, path, f"Host: {OURS}:8443", token, method=method)
        assert ours.status != 421, (path, ours)


@pytest.mark.parametrize("header", ["X-Forwarded-Host: {}", "Forwarded: host={}", "X-Original-Host: {}"])
def test_h13_a_forwarded_host_is_no_host(named: Running, header: str) -> None:
    path = "/v1/public-key"
    assert is_refused(ask(named.port, path, "Host: evil.example", header.format(OURS)))
    assert ask(named.port, path, f"Host: {OURS}", header.format("evil.example")).status == 200
    assert ask(named.port, path, header.format(OURS)).status == 400
    assert is_refused(ask(named.port, path, header.format(OURS), version="1.0"))


@pytest.mark.parametrize("host", ["", "a b", "a, b", "a@b", "[::1", "caf\xe9", "a:80:80", "http://a"])
def test_h13_a_host_that_is_none_is_refused(service: Running, host: str) -> None:
    for path in ("/v1/agents", *PROBES):
        reply = ask(service.port, path, f"Host: {host}")
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), reply
    assert ask(service.port, "/v1/agents", "Host: a", "Host: a").status == 400


def test_h13_a_target_with_another_host_is_refused(service: Running) -> None:
    path = "/v1/public-key"
    assert ask(service.port, f"http://trails{path}", "Host: trails:80").status == 200
    assert ask(service.port, f"http://[::1]:9{path}", "Host: [::1]").status == 200
    for target in (f"http://evil{path}", f"http://trails@evil{path}", f"http://evil.trails{path}"):
        reply = ask(service.port, target, "Host: trails")
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), target
    assert ask(service.port, f"http://trails{path}", version="1.0").status == 400


def test_h13_nothing_that_is_answered_holds_the_host(service: Running, operator: Client) -> None:
    operator.create("mailer")
    token = f"Authorization: Bearer {service.operator_token}"
    told = ["/schema", "/schema/openapi.json", "/schema/openapi.yaml", "/schema/", "/nowhere"]
    for method, path in [*((method, path) for method, path, _ in all_routes()), *(("GET", p) for p in told)]:
        reply = ask(service.port, path, "Host: who-are-you.example", token, method=method)
        assert "who-are-you" not in str(reply), path
        assert "location" not in reply.headers, path


def test_h13_as_it_is_started_the_service_answers_to_local_names(start_server: StartServer) -> None:  # noqa: F811
    server = start_server()
    port = int(server.base_url.rpartition(":")[2])
    for name in ("localhost", f"127.0.0.1:{port}", "[::1]"):
        assert ask(port, "/v1/public-key", f"Host: {name}").status == 200
    assert is_refused(ask(port, "/v1/public-key", f"Host: evil.example:{port}"))
    server.stop()
    anywhere = start_server(env={"TRAILS_ALLOWED_HOSTS": f"{OURS},127.0.0.1"})
    port = int(anywhere.base_url.rpartition(":")[2])
    assert ask(port, "/v1/public-key", f"Host: {OURS}").status == 200
    assert is_refused(ask(port, "/v1/public-key", "Host: localhost"))
