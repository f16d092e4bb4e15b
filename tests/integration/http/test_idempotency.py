"""Idempotency-Key over HTTP (case P21): the same request is the same act, another body is refused."""

from __future__ import annotations

from tests.integration.http.client import POLICY, Client
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

ACTIONS = "/v1/agents/mailer/actions"


def test_p21_a_retry_gets_the_first_answer_and_is_charged_once(operator: Client) -> None:
    agent = operator.create("mailer")
    ask = {"tool": "search", "input": {"a": 1, "b": 2}}
    first = agent.post(ACTIONS, ask, Idempotency_Key="k1")
    agent.post(ACTIONS, {"tool": "search"})
    again = agent.post(ACTIONS, ask, Idempotency_Key="k1")
    assert (again.status, again.raw) == (200, first.raw)
    assert agent.get("/v1/agents/mailer").json["spent"] == 2


def test_p21_reordered_json_is_the_same_request(operator: Client) -> None:
    agent = operator.create("mailer")
    first = agent.post_raw(ACTIONS, b'{"tool":"search","input":{"a":1,"b":2}}', Idempotency_Key="k1")
    again = agent.post_raw(
        ACTIONS, b'{ "input": {"b":2, "a":1}, "tool":"se\\u0061rch" }', Idempotency_Key="k1"
    )
    assert again.raw == first.raw


def test_p21_another_body_is_a_conflict(operator: Client) -> None:
    agent = operator.create("mailer")
    agent.post(ACTIONS, {"tool": "search", "input": 1}, Idempotency_Key="k1")
    other = agent.post(ACTIONS, {"tool": "search", "input": 2}, Idempotency_Key="k1")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    assert agent.get("/v1/agents/mailer").json["spent"] == 1


def test_p21_a_key_belongs_to_one_agent_and_endpoint(operator: Client) -> None:
    operator.create("mailer")
    operator.create("other")
    body = {"tool": "search"}
    assert operator.post(ACTIONS, body, Idempotency_Key="k").json["action_id"] == "act-1"
    assert operator.post("/v1/agents/other/actions", body, Idempotency_Key="k").json["action_id"] == "act-1"
    report = {"status": "success", "detail": ""}
    assert operator.post(f"{ACTIONS}/act-1/outcome", report, Idempotency_Key="k").status == 200


def test_p21_every_post_takes_a_key(operator: Client) -> None:
    new = {"agent_id": "mailer", "policy": POLICY}
    created = operator.post("/v1/agents", new, Idempotency_Key="k")
    agent = operator.as_(created.json["token"])
    assert operator.post("/v1/agents", new, Idempotency_Key="k").raw == created.raw
    changed = operator.post("/v1/agents", {"agent_id": "mailer", "policy": None}, Idempotency_Key="k")
    assert (changed.status, changed.json["code"]) == (409, "idempotency_conflict")

    agent.post(ACTIONS, {"tool": "send_email", "input": 1})
    agent.post(ACTIONS, {"tool": "send_email", "input": 2})
    acts = [
        (f"{ACTIONS}/act-1/approve", {"approver": "A"}),
        (f"{ACTIONS}/act-2/reject", {"approver": "A", "reason": "r"}),
        (f"{ACTIONS}/act-1/outcome", {"status": "failure", "detail": "x"}),
        ("/v1/agents/mailer/scars", {"severity": "minor", "reason": "r"}),
        ("/v1/agents/mailer/terminate", {"reason": "r", "by": "A"}),
    ]
    for path, body in acts:
        first = operator.post(path, body, Idempotency_Key="k")
        head = operator.get("/v1/agents/mailer").json["head"]
        assert first.status == 200, (path, first.raw)
        again = operator.post(path, body, Idempotency_Key="k")
        assert (again.status, again.raw) == (200, first.raw), path
        assert operator.get("/v1/agents/mailer").json["head"] == head
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True
