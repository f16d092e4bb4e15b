"""Who may do what, over every route (case H14)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import pytest

from tests.integration.http.client import Client
from tests.integration.http.posting import event, fragment
from tests.integration.http.serving import Running
from tests.integration.http.wire import routes
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

BODIES: dict[str, dict[str, object]] = {
    "agents": {"agent_id": "mailer", "policy": None},
    "actions": {"tool": "search"},
    "approve": {"approver": "A"},
    "reject": {"approver": "A", "reason": "r"},
    "claim": {"tool": "search"},
    "outcome": {"status": "success", "detail": "d"},
    "scars": {"severity": "minor", "reason": "r"},
    "terminate": {"reason": "r", "by": "A"},
    "traces": fragment(),
    "events": event(),
    "redaction": {"patterns": [], "paths": []},
    "revoke": {"reason": "r"},
    "webhooks": {"name": "desk", "url": "https://siem.example.com/x"},
    "enable": {"reason": "r"},
    "test": {},
    "keys": {"role": "writer", "name": "ingest"},
}
"""A right body for every POST route, by the end of its path."""

AGENT_MAY = {
    ("GET", "/v1/agents/mailer"),
    ("POST", "/v1/agents/mailer/actions"),
    ("GET", "/v1/agents/mailer/actions/act-1"),
    ("POST", "/v1/agents/mailer/actions/act-1/claim"),
    ("POST", "/v1/agents/mailer/actions/act-1/outcome"),
    ("POST", "/v1/agents/mailer/traces"),
    ("POST", "/v1/agents/mailer/events"),
}

PROTECTED = [(method, path) for method, path, needs_token in routes() if needs_token]


def call(client: Client, method: str, path: str, body: Mapping[str, object] | None = None) -> tuple[int, str]:
    if method == "POST" and body is None:
        body = BODIES[path.rpartition("/")[2]]
    reply = client.send(method, path) if body is None else client.post(path, body)
    return reply.status, reply.json.get("code", "")


def test_the_matrix_holds_every_route() -> None:
    assert len(PROTECTED) == 34
    public = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/v1/public-key")}
    assert public == {(method, path) for method, path, needs_token in routes() if not needs_token}


def test_without_a_token_every_protected_route_is_401(service: Running) -> None:
    for method, path in PROTECTED:
        assert call(Client(service.url), method, path) == (401, "unauthorized")


def test_an_agent_does_its_own_and_nothing_else(operator: Client) -> None:
    agent = operator.create("mailer")
    agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    before = operator.get("/v1/agents/mailer").json["head"]
    for method, path in PROTECTED:
        if (method, path) not in AGENT_MAY:
            assert call(agent, method, path) == (403, "forbidden"), (method, path)
    assert operator.get("/v1/agents/mailer").json["head"] == before
    for method, path in sorted(AGENT_MAY):
        assert call(agent, method, path)[0] == 200, (method, path)


def test_an_agent_reaches_no_other_agent(operator: Client) -> None:
    operator.create("mailer").post("/v1/agents/mailer/actions", {"tool": "search"})
    other = operator.create("other")
    for method, path in PROTECTED:
        assert call(other, method, path) == (403, "forbidden"), (method, path)


def test_an_agent_learns_nothing_of_agents_that_do_not_exist(operator: Client) -> None:
    agent = operator.create("mailer")
    operator.create("other")
    assert agent.get("/v1/agents/other").json["error"] == agent.get("/v1/agents/nobody").json["error"]


def test_harm_is_reported_by_operators_only(operator: Client) -> None:
    agent = operator.create("mailer")
    agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    path, harm = "/v1/agents/mailer/actions/act-1/outcome", {"status": "harmful", "detail": "leak"}
    assert call(agent, "POST", path, harm) == (403, "forbidden")
    assert operator.get("/v1/agents/mailer").json["scar_score"] == 0
    assert operator.post(path, harm).json["scar_score"] == 10


@pytest.mark.parametrize("status", ["success", "failure", "unknown"])
def test_an_agent_reports_the_other_outcomes(operator: Client, status: str) -> None:
    agent = operator.create("mailer")
    agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    path = "/v1/agents/mailer/actions/act-1/outcome"
    assert agent.post(path, {"status": status, "detail": ""}).status == 200


def test_h14_another_tenants_agent_is_as_unknown_as_none(service: Running, operator: Client) -> None:
    operator.create("mailer").post("/v1/agents/mailer/actions", {"tool": "search"})
    before = operator.get("/v1/agents/mailer").json["head"]
    token = service.app.services.tokens.issue(uuid4(), "mailer")
    foreign = Client(service.url, token)
    for method, path in PROTECTED:
        expected = (404, "not_found") if (method, path) in AGENT_MAY else (403, "forbidden")
        assert call(foreign, method, path) == expected, (method, path)
    assert operator.get("/v1/agents/mailer").json["head"] == before


def test_a_forged_token_is_401(service: Running, operator: Client) -> None:
    token = operator.create("mailer").token
    assert token is not None
    operator.create("mailer2")
    for forged in (token[:-1], token + "0", token.replace("mailer", "mailer2"), token.swapcase(), token[4:]):
        for path in ("/v1/agents/mailer", "/v1/agents/mailer2", "/v1/public-key"):
            assert call(Client(service.url, forged), "GET", path) == (401, "unauthorized"), forged
