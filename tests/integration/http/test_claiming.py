"""Claims over HTTP: what a backend is told, and who may claim."""

from __future__ import annotations

import msgspec
import pytest

from app.http import documents, examples
from tests.integration.http.client import Client
from tests.support.standing import OPERATOR, database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

ACTIONS = "/v1/agents/mailer/actions"
MAIL = {"tool": "send_email", "input": {"to": "a@example.org"}}


@pytest.fixture
def agent(operator: Client) -> Client:
    """An agent whose first action was allowed and whose second one was approved."""
    made = operator.create("mailer")
    made.post(ACTIONS, examples.NEW_ACTION)
    made.post(ACTIONS, MAIL)
    operator.post(f"{ACTIONS}/act-2/approve", {"approver": "Ada"})
    return made


def test_a_claim_has_the_described_answer(operator: Client, agent: Client) -> None:
    reply = operator.post(f"{ACTIONS}/act-1/claim", examples.NEW_CLAIM)
    msgspec.json.decode(reply.raw, type=documents.Claim, strict=True)
    assert reply.json == examples.CLAIM
    assert agent.get(f"{ACTIONS}/act-1").json["claimed_by"] == OPERATOR


def test_g01_a_refused_claim_is_409_with_the_codes_of_its_reason(operator: Client, agent: Client) -> None:
    path = f"{ACTIONS}/act-2/claim"

    def said(body: dict[str, object]) -> tuple[int, str]:
        reply = agent.post(path, body)
        return reply.status, reply.json["code"]

    for other in (
        {"tool": "send_email"},
        {"tool": "search", "input": MAIL["input"]},
        {"tool": "send_email", "input": {"to": "b@example.org"}},
        {"tool": "send_email", "input": {"to": "a@example.org", "cc": "b@example.org"}},
    ):
        assert said(other) == (409, "claim_mismatch")
    assert agent.post(path, MAIL).json["claimed"] is True
    assert said(MAIL) == (409, "already_claimed")
    agent.post(f"{ACTIONS}/act-2/outcome", {"status": "failure", "detail": "bounced"})
    assert said(MAIL) == (409, "completed")
    problem = msgspec.json.decode(agent.post(path, MAIL).raw, type=documents.Problem)
    assert problem.type == "urn:lineage-trails:problem:completed"
    assert problem.error == "action act-2 is not to be carried out: its outcome is on record"
    log = operator.get("/v1/agents/mailer/log").json["records"]
    assert [r["kind"] for r in log].count("claim_refused") == 7
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True


def test_g04_a_backend_that_lost_the_answer_asks_again_with_its_key(operator: Client, agent: Client) -> None:
    del agent
    first = operator.post(f"{ACTIONS}/act-2/claim", MAIL, Idempotency_Key="run-7")
    again = operator.post(f"{ACTIONS}/act-2/claim", MAIL, Idempotency_Key="run-7")
    assert (first.status, again.raw) == (200, first.raw)
    other = operator.post(f"{ACTIONS}/act-2/claim", MAIL, Idempotency_Key="run-8")
    assert (other.status, other.json["code"]) == (409, "already_claimed")


def test_an_agent_claims_its_own_actions_only(operator: Client, agent: Client) -> None:
    del agent
    other = operator.create("other")
    assert other.post(f"{ACTIONS}/act-2/claim", MAIL).status == 403


@pytest.mark.parametrize(
    "body", [{}, {"tool": ""}, {"tool": 1}, {"tool": "x" * 129}, {"tool": "search", "inputs": {}}, []]
)
def test_a_claim_that_is_none_is_400(operator: Client, agent: Client, body: object) -> None:
    del agent
    reply = operator.post(f"{ACTIONS}/act-1/claim", body)  # type: ignore[arg-type]
    assert (reply.status, reply.json["code"]) == (400, "bad_request")


def test_an_action_that_is_unknown_is_404(operator: Client, agent: Client) -> None:
    del agent
    for action_id in ("act-3", "act-0", "x"):
        reply = operator.post(f"{ACTIONS}/{action_id}/claim", MAIL)
        assert (reply.status, reply.json["code"]) == (404, "unknown_action")
