"""What the description promises is what the service answers, and its examples are requests that work."""

from __future__ import annotations

from typing import Any

import msgspec

from app.http import documents, examples
from tests.integration.http.client import Client, Reply


def is_a(reply: Reply, struct: Any) -> Any:
    assert reply.status == 200, reply.raw
    return msgspec.json.decode(reply.raw, type=struct)


def test_every_answer_has_its_described_shape(operator: Client) -> None:
    is_a(operator.get("/healthz"), documents.Ok)
    is_a(operator.get("/readyz"), documents.Ok)
    is_a(operator.get("/v1/public-key"), documents.PublicKey)
    created = is_a(operator.post("/v1/agents", examples.NEW_AGENT), documents.CreatedAgent)
    agent = operator.as_(created.token)
    base = "/v1/agents/mailer"

    assert isinstance(
        is_a(agent.post(f"{base}/actions", examples.NEW_ACTION), documents.Decision), documents.Allowed
    )
    for number in range(2):
        ask = {"tool": "send_email", "input": number}
        assert isinstance(is_a(agent.post(f"{base}/actions", ask), documents.Decision), documents.Pending)
    denied = is_a(agent.post(f"{base}/actions", {"tool": "rm"}), documents.Decision)
    assert isinstance(denied, documents.Denied)

    assert len(is_a(operator.get(f"{base}/actions/pending"), documents.PendingList).pending) == 2
    assert len(is_a(operator.get("/v1/approvals"), documents.ApprovalQueue).approvals) == 2
    is_a(operator.post(f"{base}/actions/act-2/approve", examples.APPROVAL), documents.Decision)
    is_a(operator.post(f"{base}/actions/act-3/reject", examples.REJECTION), documents.Decision)
    is_a(agent.post(f"{base}/actions/act-1/outcome", examples.OUTCOME), documents.Status)
    for action_id in ("act-1", "act-2", "act-3", "act-4"):
        is_a(agent.get(f"{base}/actions/{action_id}"), documents.Action)
    is_a(operator.post(f"{base}/scars", examples.NEW_SCAR), documents.Status)
    is_a(operator.get(base), documents.Status)
    is_a(operator.get(f"{base}/token"), documents.AgentToken)
    is_a(operator.post(f"{base}/terminate", examples.TERMINATION), documents.Status)
    is_a(agent.post(f"{base}/traces", examples.NEW_TRACE), documents.TraceReceipt)
    assert is_a(agent.post(f"{base}/events", examples.NEW_EVENT), documents.EventReceipt).clock_skewed
    is_a(agent.post(f"{base}/events", {"events": [examples.NEW_EVENT]}), documents.EventReceipts)
    assert is_a(operator.get("/v1/sessions"), documents.SessionList).sessions
    session = examples.NEW_TRACE["session_id"]
    assert is_a(operator.get(f"/v1/sessions/{session}"), documents.Session).nodes
    is_a(operator.get(f"{base}/log"), documents.Log)
    is_a(operator.get(f"{base}/verify"), documents.Verification)
    is_a(operator.get("/v1/agents"), documents.AgentList)


def test_an_observed_agents_answers_have_their_described_shape(operator: Client) -> None:
    created = is_a(operator.post("/v1/agents", {"agent_id": "seen", "policy": None}), documents.CreatedAgent)
    assert created.agent.budget is None
    is_a(operator.get("/v1/agents/seen"), documents.Status)
    is_a(operator.get("/v1/agents"), documents.AgentList)


def test_every_error_has_its_described_shape(operator: Client) -> None:
    for reply in (
        operator.get("/v1/agents/nobody"),
        operator.post("/v1/agents", {}),
        operator.post_raw("/v1/agents", b"{"),
        operator.get("/nowhere"),
        operator.as_(None).get("/v1/agents"),
    ):
        problem = msgspec.json.decode(reply.raw, type=documents.Problem)
        assert problem.status == reply.status
        assert problem.type == f"urn:lineage-trails:problem:{problem.code}"
