"""Limits on how often, over the wire: keys, and peers whose tokens are not valid (case H12)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from app.http.limits import BURST_SECS
from tests.integration.http.client import POLICY, Client
from tests.integration.http.serving import Running, serve
from tests.integration.http.wire import OTLP, WireReply, all_routes, request
from tests.support.postgres import Database

JSON = "Content-Type: application/json"
FORGED = "Bearer trk_" + "0" * 32 + "." + "1" * 16 + "." + "a" * 43 + "." + "2" * 16
INVALID = [
    FORGED,
    "Bearer agt_" + "0" * 32 + ".mailer." + "0" * 64,
    "Bearer nothing-of-the-kind",
    "Basic dXNlcjpwYXNz",
]
ENOUGH = 30
"""Requests in a row that no limit of one a second with its burst can let pass, unless each takes a second."""


@pytest.fixture
def strict(database: Database) -> Iterator[Running]:
    """One invalid token a second from one address; keys are not limited."""
    with serve(database.app_url, failures_per_peer=1) as running:
        yield running


@pytest.fixture
def slow(database: Database) -> Iterator[Running]:
    """One request a second of one key."""
    with serve(database.app_url, rate_per_key=1) as running:
        yield running


def is_over(reply: WireReply, *, otlp: bool = False) -> bool:
    """Whether it is the refusal, whole: a document with a moment to come back."""
    if reply.status != 429:
        return False
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["cache-control"] == "no-store"
    assert (reply.json["code"] == 8) if otlp else (reply.json["code"] == "too_many_requests"), reply
    return True


def attempts(port: int, authorization: str, header: str, path: str = "/v1/agents") -> list[WireReply]:
    """Many attempts, each with another value in ``header``."""
    return [
        request(port, "GET", path, f"Authorization: {authorization}", header.format(number))
        for number in range(ENOUGH)
    ]


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For: 198.51.100.{0}", "Forwarded: for=198.51.100.{0}", "X-Real-IP: 198.51.100.{0}"],
)
def test_h12_a_header_that_the_client_writes_gets_it_no_more_attempts(strict: Running, header: str) -> None:
    begun = time.monotonic()
    replies = [reply for invalid in INVALID for reply in attempts(strict.port, invalid, header)]
    told = [reply for reply in replies if reply.status == 401]
    assert 0 < len(told) <= BURST_SECS + (time.monotonic() - begun) + 1
    assert all(is_over(reply) for reply in replies if reply not in told)


def test_h12_two_tenants_behind_one_address_do_not_lock_each_other_out(strict: Running) -> None:
    root, operator = Client(strict.url, strict.root_token), Client(strict.url, strict.operator_token)
    acme = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ann"}).json["token"]
    agent = operator.create("mailer")
    valid = [operator, Client(strict.url, acme), agent]
    assert any(is_over(reply) for reply in attempts(strict.port, FORGED, "X-A: {0}", "/v1/public-key"))
    for client in valid:
        for _ in range(20):
            assert client.get("/v1/agents/mailer").status == (404 if client is valid[1] else 200)
    # Who sends no token at all guesses nothing.
    assert request(strict.port, "GET", "/v1/agents").status == 401
    assert request(strict.port, "GET", "/v1/public-key").status == 200


def test_h12_a_key_that_is_revoked_is_refused_and_counted(strict: Running) -> None:
    operator = Client(strict.url, strict.operator_token)
    issued = operator.post("/v1/keys", {"role": "auditor", "name": "gone"}).json
    assert operator.as_(issued["token"]).get("/v1/agents").status == 200
    assert operator.send("DELETE", f"/v1/keys/{issued['key']['key_id']}").status == 200
    told = {reply.status for reply in attempts(strict.port, f"Bearer {issued['token']}", "X-A: {0}")}
    assert told == {401, 429}


def test_h12_behind_a_trusted_proxy_each_peer_is_counted_alone(database: Database) -> None:
    with serve(
        database.app_url, failures_per_peer=1, trusted_proxies=(ip_network("127.0.0.0/8"),)
    ) as service:
        evil = "X-Forwarded-For: 198.51.100.{0}, 203.0.113.5"
        assert any(is_over(reply) for reply in attempts(service.port, FORGED, evil))
        other = request(
            service.port, "GET", "/v1/agents", f"Authorization: {FORGED}", "X-Forwarded-For: 203.0.113.6"
        )
        assert other.status == 401
        site = "X-Forwarded-For: 2001:db8::{0:x}"
        assert any(is_over(reply) for reply in attempts(service.port, FORGED, site))


def test_h12_a_key_over_its_limit_is_told_so_on_every_route(slow: Running) -> None:
    token = f"Authorization: Bearer {slow.operator_token}"
    for method, path, needs_token in all_routes():
        replies = [
            request(slow.port, method, path, token, JSON, body=b"{}" if method == "POST" else b"")
            for _ in range(ENOUGH if needs_token else 1)
        ]
        assert any(is_over(reply, otlp=path == OTLP) for reply in replies) is needs_token, path


def test_h12_a_key_over_its_limit_hinders_no_other_and_no_header_helps_it(slow: Running) -> None:
    operator = Client(slow.url, slow.operator_token)
    names = ["one", "two"]
    agents = {name: operator.create(name) for name in names}
    begun = time.monotonic()
    replies = attempts(
        slow.port, f"Bearer {agents['one'].token}", "X-Forwarded-For: 198.51.100.{0}", "/v1/agents/one"
    )
    served = [reply for reply in replies if reply.status == 200]
    assert 0 < len(served) <= BURST_SECS + (time.monotonic() - begun) + 1
    assert all(is_over(reply) for reply in replies if reply not in served)
    assert agents["two"].get("/v1/agents/two").status == 200


def test_h12_what_is_over_the_limit_is_not_read_and_not_recorded(slow: Running) -> None:
    operator = Client(slow.url, slow.operator_token)
    agent = operator.create("mailer", {**POLICY, "budget": 10_000})
    ask = b'{"tool":"search"}'
    asked = "/v1/agents/mailer/actions"
    token = f"Authorization: Bearer {agent.token}"
    statuses = [request(slow.port, "POST", asked, token, JSON, body=ask).status for _ in range(ENOUGH)]
    assert set(statuses) == {200, 429}
    # Its body never comes: whoever waited for it would not answer.
    announced = request(slow.port, "POST", asked, token, JSON, "Content-Length: 1000")
    assert is_over(announced)
    log = operator.get("/v1/agents/mailer/log").json["records"]
    assert len(log) == 2 + 2 * statuses.count(200)


def test_h12_by_default_no_key_is_limited(service: Running, operator: Client) -> None:
    operator.create("mailer")
    token = f"Authorization: Bearer {service.operator_token}"
    assert {request(service.port, "GET", "/v1/agents/mailer", token).status for _ in range(300)} == {200}
