"""Lineage's clients work unmodified: its paths, shapes and statuses."""

from __future__ import annotations

from tests.integration.http.client import POLICY, Client
from tests.integration.http.serving import Running

STATUS = {
    "agent_id",
    "alive",
    "termination_reason",
    "budget",
    "spent",
    "remaining",
    "scar_score",
    "scar_limit",
    "scars",
    "actions_allowed",
    "actions_denied",
    "actions_pending",
    "head",
    "public_key",
}


def test_health_and_public_key_need_no_token(service: Running) -> None:
    stranger = Client(service.url)
    assert stranger.get("/healthz").json == {"ok": True}
    key = stranger.get("/v1/public-key")
    assert key.status == 200
    assert key.json.keys() == {"public_key", "algorithm", "keys"}
    [listed] = key.json["keys"]
    assert (listed["public_key"], listed["retired"]) == (key.json["public_key"], False)
    assert key.json["algorithm"] == "ed25519"
    assert len(bytes.fromhex(key.json["public_key"])) == 32


def test_public_key_with_a_token_is_that_of_its_tenant(operator: Client) -> None:
    assert operator.get("/v1/public-key").json == operator.as_(None).get("/v1/public-key").json
    assert operator.as_("nonsense").get("/v1/public-key").status == 401


def test_creating_an_agent_gives_status_and_token(operator: Client) -> None:
    created = operator.post("/v1/agents", {"agent_id": "mailer", "policy": POLICY})
    assert created.status == 200
    assert created.json.keys() == {"agent", "token"}
    status = created.json["agent"]
    assert status.keys() >= STATUS
    assert status["agent_id"] == "mailer"
    assert status["alive"] is True
    assert status["termination_reason"] is None
    assert (status["budget"], status["spent"], status["remaining"]) == (50, 0, 50)
    assert (status["scar_score"], status["scar_limit"], status["scars"]) == (0, 10, [])
    assert status["head"]["seq"] == 1
    assert operator.get("/v1/agents/mailer/token").json == {"token": created.json["token"]}


def test_an_agents_life(operator: Client) -> None:
    agent = operator.create("mailer")
    asked = agent.post("/v1/agents/mailer/actions", {"tool": "search", "input": {"q": "rates"}})
    assert asked.status == 200
    assert asked.json == {"decision": "allowed", "action_id": "act-1", "cost": 1, "remaining": 49}

    reported = agent.post(
        "/v1/agents/mailer/actions/act-1/outcome", {"status": "success", "detail": "3 hits"}
    )
    assert reported.status == 200
    assert reported.json["actions_allowed"] == 1

    read = agent.get("/v1/agents/mailer/actions/act-1").json
    assert {key: read[key] for key in ("action_id", "tool", "input", "cost", "status")} == {
        "action_id": "act-1",
        "tool": "search",
        "input": {"q": "rates"},
        "cost": 1,
        "status": "completed",
    }
    assert read["outcome"] == "success"

    denied = agent.post("/v1/agents/mailer/actions", {"tool": "rm"})
    assert denied.status == 200
    assert denied.json == {
        "decision": "denied",
        "action_id": "act-2",
        "reason": {"code": "tool_not_allowed", "tool": "rm"},
    }
    status = agent.get("/v1/agents/mailer").json
    assert status["scars"] == [
        {
            "seq": status["head"]["seq"],
            "severity": "moderate",
            "reason": "tool 'rm' is not allowed",
            "action_id": "act-2",
        }
    ]


def test_approving_and_rejecting(operator: Client) -> None:
    agent = operator.create("mailer")
    ask = {"tool": "send_email", "input": {"to": "a@example.org"}}
    assert agent.post("/v1/agents/mailer/actions", ask).json == {
        "decision": "pending_approval",
        "action_id": "act-1",
    }
    other = {"tool": "send_email", "input": {"to": "b@example.org"}}
    assert agent.post("/v1/agents/mailer/actions", other).json["action_id"] == "act-2"

    pending = operator.get("/v1/agents/mailer/actions/pending").json
    assert pending.keys() == {"pending"}
    assert [entry["action"]["action_id"] for entry in pending["pending"]] == ["act-1", "act-2"]
    first = pending["pending"][0]
    assert first.keys() >= {"requested_at", "seq", "action"}
    assert first["action"]["input"] == ask["input"]

    path = "/v1/agents/mailer/actions"
    approved = operator.post(f"{path}/act-1/approve", {"approver": "Ada", "note": "fine"})
    assert approved.json == {"decision": "allowed", "action_id": "act-1", "cost": 5, "remaining": 45}
    rejected = operator.post(f"{path}/act-2/reject", {"approver": "Ada", "reason": "no", "scar": "minor"})
    assert rejected.status == 200
    assert rejected.json == {
        "decision": "denied",
        "action_id": "act-2",
        "reason": {"code": "rejected", "by": "operator", "reason": "no"},
    }
    again = operator.post(f"{path}/act-2/approve", {"approver": "Ada"})
    assert (again.status, again.json["code"]) == (409, "invalid_state")


def test_scars_and_termination(operator: Client) -> None:
    agent = operator.create("mailer")
    scarred = operator.post("/v1/agents/mailer/scars", {"severity": "minor", "reason": "rude"})
    assert scarred.status == 200
    assert scarred.json["scar_score"] == 1
    ended = operator.post("/v1/agents/mailer/terminate", {"reason": "done", "by": "Ada"})
    assert ended.status == 200
    assert ended.json["alive"] is False
    assert "done" in ended.json["termination_reason"]
    twice = operator.post("/v1/agents/mailer/terminate", {"reason": "done", "by": "Ada"})
    assert (twice.status, twice.json["code"]) == (409, "already_terminated")
    denied = agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    assert denied.status == 200
    assert denied.json["reason"]["code"] == "terminated"


def test_listing_and_verifying(operator: Client) -> None:
    operator.create("one")
    operator.create("two", None)
    listed = operator.get("/v1/agents").json["agents"]
    assert [(entry["agent_id"], entry["state"]) for entry in listed] == [("one", "active"), ("two", "active")]
    assert listed[0]["status"].keys() >= STATUS
    verdict = operator.get("/v1/agents/one/verify").json
    head = operator.get("/v1/agents/one").json["head"]
    key = operator.get("/v1/public-key").json["public_key"]
    assert {name: verdict[name] for name in ("ok", "records", "public_key", "head")} == {
        "ok": True,
        "records": 2,
        "public_key": key,
        "head": head,
    }


def test_errors_carry_code_and_error(operator: Client) -> None:
    operator.create("mailer")
    taken = operator.post("/v1/agents", {"agent_id": "mailer", "policy": POLICY})
    assert (taken.status, taken.json["code"]) == (409, "agent_exists")
    unknown = operator.get("/v1/agents/nobody")
    assert (unknown.status, unknown.json["code"]) == (404, "not_found")
    reading = operator.get("/v1/agents/mailer/actions/act-9")
    assert (reading.status, reading.json["code"]) == (404, "not_found")
    acting = operator.post("/v1/agents/mailer/actions/act-9/outcome", {"status": "success", "detail": ""})
    assert (acting.status, acting.json["code"]) == (404, "unknown_action")
    no_policy = operator.post("/v1/agents", {"agent_id": "other"})
    assert (no_policy.status, no_policy.json["code"]) == (400, "bad_request")
    for reply in (taken, unknown, reading, acting, no_policy):
        assert reply.headers["Content-Type"] == "application/problem+json"
        assert reply.json["error"] == reply.json["detail"]
        assert reply.json["status"] == reply.status
        assert reply.json["request_id"] == reply.headers["X-Request-Id"]


def test_a_rate_limited_denial_says_when_to_come_back(operator: Client) -> None:
    policy = {**POLICY, "rate_limit": {"max_actions": 1, "window_secs": 60}}
    agent = operator.create("mailer", policy)
    agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    denied = agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    assert denied.status == 200
    assert denied.json["reason"] == {"code": "rate_limited", "max_actions": 1, "window_secs": 60}
    assert 1 <= int(denied.headers["Retry-After"]) <= 60
