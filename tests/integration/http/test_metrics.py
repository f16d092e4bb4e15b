"""``/metrics``: figures that move with what is done, for who may see them, and with nothing of a tenant's."""

from __future__ import annotations

import time
from ipaddress import ip_network
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from app.asgi import create_app
from app.errors import UnavailableError
from app.http.edge import Edge
from app.settings import Secrets
from tests.integration.http.client import POLICY, Client
from tests.integration.http.posting import event
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database
from tests.support.server import StartServer, start_server

__all__ = ["start_server"]

TOKEN = "metrics-token-of-the-tests-0123456789"  # noqa: S105  of throw-away servers
ACTIONS = "/v1/agents/{agent_id}/actions"

Figures = dict[tuple[str, frozenset[str]], float]


def figures(text: str, parse: Any = prometheus) -> Figures:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def read(client: Client) -> Figures:
    reply = client.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return figures(reply.raw.decode())


def risen(before: Figures, after: Figures, name: str, *labels: str) -> float:
    place = name, frozenset(labels)
    return after[place] - before.get(place, 0.0)


async def asked(app: Edge, peer: str | None, *headers: tuple[str, str], path: str = "/metrics") -> Any:
    """Status and body of a request that comes from ``peer``, which need not be this machine."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": None if peer is None else (peer, 40_000),
        "server": ("127.0.0.1", 9200),
        "state": {},
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_requests_are_counted_by_route_and_class(operator: Client) -> None:
    before = read(operator)
    agent = operator.create("mailer")
    for _ in range(3):
        agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    operator.as_(None).get("/v1/agents")
    operator.get("/nowhere/at/all?x=1")
    operator.send("PUT", "/v1/agents")
    operator.send("PUT", "/nowhere")
    after = read(operator)
    assert risen(before, after, "trails_requests_total", "POST", ACTIONS, "2xx") == 3
    assert risen(before, after, "trails_requests_total", "GET", "/v1/agents", "4xx") == 1
    assert risen(before, after, "trails_requests_total", "GET", "(no route)", "4xx") == 1
    assert risen(before, after, "trails_requests_total", "PUT", "(no route)", "4xx") == 1
    assert risen(before, after, "trails_requests_total", "GET", "/metrics", "2xx") == 1
    assert after["trails_request_duration_seconds_count", frozenset({"POST", ACTIONS})] == 3
    assert after["trails_request_duration_seconds_bucket", frozenset({"POST", ACTIONS, "+Inf"})] == 3
    assert after["trails_requests_in_flight", frozenset()] == 1
    assert not any("nowhere" in value for _, labels in after for value in labels)
    assert ("trails_requests_total", frozenset({"PUT", "/v1/agents", "4xx"})) not in after


def test_what_the_guard_decides_is_counted_once(operator: Client) -> None:
    before = read(operator)
    agent = operator.create("mailer", {**POLICY, "budget": 7})
    path = "/v1/agents/mailer/actions"
    for tool in ("search", "rm", "send_email", "send_email", "search"):
        agent.post(path, {"tool": tool})
    for _ in range(3):
        agent.post(path, {"tool": "search"}, Idempotency_Key="once")
    operator.post(f"{path}/act-3/reject", {"approver": "A", "reason": "r"})
    agent.post(f"{path}/act-1/claim", {"tool": "search"})
    agent.post(f"{path}/act-1/claim", {"tool": "search"})
    after = read(operator)

    def decided(*labels: str) -> float:
        return risen(before, after, "trails_decisions_total", "default", *labels)

    assert decided("allowed", "") == 3
    assert decided("denied", "tool_not_allowed") == 1
    assert decided("pending_approval", "") == 2
    assert decided("denied", "rejected") == 1
    assert decided("claimed", "") == 1
    assert decided("claim_refused", "already_claimed") == 1
    records = operator.get("/v1/agents/mailer").json["head"]["seq"] + 1
    assert risen(before, after, "trails_records_appended_total") == records
    # One append an act, but for the agent itself, which is begun with its registration.
    assert risen(before, after, "trails_append_duration_seconds_count") == 9
    assert risen(before, after, "trails_commit_appends_sum") == 9 + 2, "two were sent again, and refused"


def test_what_the_process_holds_is_told(operator: Client) -> None:
    operator.create("mailer")
    told = read(operator)
    assert told["trails_pool_size", frozenset()] == 8
    open_ones = sum(told["trails_pool_connections", frozenset({state})] for state in ("used", "idle"))
    assert 1 <= open_ones <= 8
    assert told["trails_chains_in_memory", frozenset()] >= 1
    assert told["trails_quarantined_chains", frozenset()] == 0
    assert told["trails_stale_retries_total", frozenset()] == 0
    assert told["trails_large_body_bytes", frozenset({"work"})] == 0
    assert told["trails_large_body_limit_bytes", frozenset({"work"})] > 0
    assert told["process_resident_memory_bytes", frozenset()] > 0


def test_what_is_verified_in_the_background_is_told(database: Database) -> None:
    with serve(database.app_url, verify_records_per_sec=100_000, pool_size=1) as service:
        client = Client(service.url, service.operator_token)
        deadline = time.monotonic() + 60
        while (told := read(client))["trails_verify_rounds_total", frozenset()] < 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert told["trails_verified_records_total", frozenset()] >= 0
        assert told["trails_verify_age_seconds", frozenset()] > 0
        assert told["trails_verify_round_seconds", frozenset()] > 0
        assert told["trails_broken_chains_total", frozenset()] == 0


def test_what_is_off_has_no_age(operator: Client) -> None:
    told = read(operator)
    assert told["trails_verify_rounds_total", frozenset()] == 0
    assert ("trails_verify_age_seconds", frozenset()) not in told


def test_what_is_refused_for_coming_too_fast_is_counted(database: Database) -> None:
    with serve(database.app_url, rate_per_key=1, failures_per_peer=1) as service:
        refused = {"key": 0, "peer": 0}
        for token, limit in ((service.operator_token, "key"), ("no-token-of-ours", "peer")):
            for _ in range(20):
                refused[limit] += Client(service.url, token).get("/v1/agents").status == 429
        told = read(Client(service.url))
        for limit, count in refused.items():
            assert told["trails_rate_limited_total", frozenset({limit})] == count > 0


def test_exports_are_counted_by_form_and_by_how_they_ended(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = operator.create("mailer")
    before = read(operator)
    assert before["trails_exports_total", frozenset({"parquet", "broken"})] == 0
    for _ in range(2):
        assert operator.get("/v1/agents/mailer/export?format=csv").status == 200
    assert operator.get("/v1/export?format=bundle").status == 200
    assert agent.get("/v1/agents/mailer/export").status == 403
    assert operator.get("/v1/agents/nobody/export").status == 404

    async def away(*_: object) -> str:
        raise UnavailableError("nothing signs")

    monkeypatch.setattr("app.ledger.export.exporter.signature", away)
    assert operator.get("/v1/agents/mailer/export?format=jsonl").status == 503
    after = read(operator)
    assert risen(before, after, "trails_exports_total", "csv", "whole") == 2
    assert risen(before, after, "trails_exports_total", "bundle", "whole") == 1
    assert risen(before, after, "trails_exports_total", "jsonl", "broken") == 1
    assert risen(before, after, "trails_exports_total", "jsonl", "whole") == 0


def test_who_accepts_openmetrics_gets_it(operator: Client) -> None:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    reply = operator.send("GET", "/metrics", headers=accept)
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    told = figures(reply.raw.decode(), open_metrics)
    assert told["trails_requests_in_flight", frozenset()] == 1


@pytest.mark.parametrize(
    "accept", ["", "*/*", "\xff", "application/openmetrics-text;version=x\xff", ";" * 500]
)
def test_an_odd_accept_is_no_error(operator: Client, accept: str) -> None:
    assert operator.send("GET", "/metrics", headers={"Accept": accept}).status == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
async def test_this_machine_may_read(service: Running, peer: str) -> None:
    assert (await asked(service.app, peer))[0] == 200


OF_PROXIES = [
    ("X-Forwarded-For", "127.0.0.1"),
    ("Forwarded", "for=127.0.0.1"),
    ("X-Real-IP", "127.0.0.1"),
    ("Via", "1.1 proxy"),
]


@pytest.mark.parametrize(
    "peer", ["192.0.2.7", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.7", "", "localhost", None]
)
async def test_nobody_else_sees_that_it_is_there(service: Running, peer: str | None) -> None:
    nowhere = await asked(service.app, peer, ("X-Request-Id", "of-the-test"), path="/metricz")
    bearer = ("Authorization", f"Bearer {service.operator_token}")
    for header in (("X-Request-Id", "of-the-test"), *OF_PROXIES, bearer):
        status, body = await asked(service.app, peer, ("X-Request-Id", "of-the-test"), header)
        assert status == 404
        if header[0] != "X-Request-Id":
            assert body == nowhere[1]


@pytest.mark.parametrize("header", OF_PROXIES, ids=lambda header: header[0])
async def test_h12_a_forwarded_header_makes_nobody_local(database: Database, header: tuple[str, str]) -> None:
    networks = ip_network("192.0.2.0/24"), ip_network("127.0.0.0/8")
    with serve(database.app_url, trusted_proxies=networks) as service:
        assert (await asked(service.app, "192.0.2.7", header))[0] == 404
        assert (await asked(service.app, "127.0.0.1", header))[0] == 404


async def test_with_a_token_it_is_asked_of_everybody(database: Database) -> None:
    with serve(database.app_url, metrics_token=TOKEN) as service:
        right = ("Authorization", f"Bearer {TOKEN}")
        for peer in ("127.0.0.1", "192.0.2.7"):
            assert (await asked(service.app, peer, right))[0] == 200
            for wrong in (
                [],
                [("Authorization", f"Bearer {TOKEN[:-1]}")],
                [("Authorization", f"Bearer {service.operator_token}")],
                [("Authorization", f"Basic {TOKEN}")],
                [("Authorization", "Bearer trk_x")],
                [right, right],
            ):
                assert (await asked(service.app, peer, *wrong))[0] == 404, wrong
        assert Client(service.url, TOKEN).get("/v1/agents").status == 401


def test_h19_labels_hold_nothing_of_a_tenants_but_its_slug(service: Running, operator: Client) -> None:
    root = operator.as_(service.root_token)
    acme = root.post("/v1/tenants", {"slug": "acme", "name": "Acme Secret Ltd", "operator": "Ada-L"}).json
    ada = operator.as_(acme["token"])
    agent = ada.create("agent-secret", {**POLICY, "tools": {"tool-secret": {"cost": 1}}})
    key = ada.post("/v1/keys", {"role": "writer", "name": "key-secret"}).json
    for tool in ("tool-secret", "other-secret"):
        agent.post("/v1/agents/agent-secret/actions", {"tool": tool, "input": "input-secret"})
    ada.as_(key["token"]).post("/v1/agents/agent-secret/events", event(type="type-secret"))
    ada.get("/v1/agents/agent-secret?token=query-secret")
    ada.get("/secret/path")
    raw = operator.get("/metrics").raw.decode()
    told = figures(raw)
    assert told["trails_decisions_total", frozenset({"acme", "allowed", ""})] == 1
    assert told["trails_decisions_total", frozenset({"acme", "denied", "tool_not_allowed"})] == 1
    for word in (
        "secret",
        "Secret",
        "Ada",
        acme["tenant"]["tenant_id"],
        key["key"]["key_id"],
        "trk_",
        "agt_",
    ):
        assert word not in raw
    for token in (acme["token"], key["token"], agent.token, service.operator_token):
        assert str(token)[:12] not in raw


def test_a_series_begins_with_a_route_and_not_with_what_is_sent(operator: Client) -> None:
    for number in range(5):
        operator.get(f"/v1/agents/nobody-{number}")
        operator.send("PROPFIND", f"/v1/agents/nobody-{number}")
        operator.send("PURGE", f"/nowhere/{number}")
    before = {place for place in read(operator) if place[0].startswith("trails_")}
    for number in range(5, 10):
        operator.get(f"/v1/agents/nobody-{number}")
        operator.send("MKCOL", f"/v1/agents/nobody-{number}")
        operator.send("LOCK", f"/nowhere/{number}")
    assert {place for place in read(operator) if place[0].startswith("trails_")} - before <= {
        place for place in read(operator) if "/metrics" in place[1]
    }


def test_one_of_several_processes_says_which_it_is(start_server: StartServer) -> None:
    server = start_server(arguments=("--workers", "2"))
    with server.client() as client:
        text = client.get("/metrics").text
    workers = {sample.labels.get("worker") for family in prometheus(text) for sample in family.samples}
    assert len(workers) == 1
    assert int(workers.pop() or 0) != server.pid


def test_two_applications_in_one_process_do_not_mix(database: Database) -> None:
    with serve(database.app_url) as one:
        known = Secrets(one.operator_token, b"k" * 32)
        other = create_app(one.app.services.settings, known)
        assert other.services.registry is not one.app.services.registry
        Client(one.url).get("/healthz")
        assert other.services.traffic.answered == {}
