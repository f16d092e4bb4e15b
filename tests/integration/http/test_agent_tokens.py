"""The tokens that are derived for agents: ended on the record, in every server process, for good."""

from __future__ import annotations

import pytest

from app.client.settings import service as client_service
from app.http import examples
from tests.integration.http.client import POLICY, Client
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

PATH = "/v1/agents/mailer"
REVOKE = f"{PATH}/token/revoke"
WHY = {"reason": "leaked"}


def test_a_revoked_token_is_401_and_the_next_one_is_another(operator: Client) -> None:
    agent = operator.create("mailer")
    other = operator.create("other")
    tokens = [agent.token]
    for _ in range(2):
        tokens.append(operator.post(REVOKE, WHY).json["token"])
        assert operator.get(f"{PATH}/token").json == {"token": tokens[-1]}
        for old in tokens[:-1]:
            reply = operator.as_(old).get(PATH)
            assert (reply.status, reply.json["code"]) == (401, "unauthorized")
            assert "this agent's token was revoked" in reply.json["error"]
        assert operator.as_(tokens[-1]).get(PATH).status == 200
    assert len(set(tokens)) == 3
    assert other.get("/v1/agents/other").status == 200
    assert client_service("http://127.0.0.1", tokens[-1], None).agent == "mailer", "the client reads it"


def test_a_revocation_is_on_record_and_answered_again_under_its_key(operator: Client) -> None:
    new = {"agent_id": "mailer", "policy": POLICY}
    created = operator.post("/v1/agents", new, Idempotency_Key="c")
    first = operator.post(REVOKE, WHY, Idempotency_Key="k")
    assert operator.post(REVOKE, WHY, Idempotency_Key="k").raw == first.raw
    other = operator.post(REVOKE, {"reason": "another"}, Idempotency_Key="k")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    assert operator.post("/v1/agents", new, Idempotency_Key="c").json["token"] == first.json["token"]
    assert operator.as_(created.json["token"]).get(PATH).status == 401
    log = operator.get("/v1/agents/_administration/log").json["records"]
    told = [r["payload"] for r in log if r["payload"].get("act") == "agent_token_revoked"]
    assert [(act["agent_id"], act["epoch"], act["reason"]) for act in told] == [("mailer", 1, "leaked")]
    assert operator.get("/v1/agents/_administration/verify").json["ok"] is True


def test_an_agents_api_key_is_no_token_of_this_kind(operator: Client) -> None:
    operator.create("mailer")
    wanted = {"role": "agent", "agent_id": "mailer", "name": "the mailer"}
    key = operator.as_(operator.post("/v1/keys", wanted).json["token"])
    assert operator.post(REVOKE, WHY).status == 200
    assert key.get(PATH).status == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/agents/nobody/token/revoke", examples.REASON, 404),
        ("/v1/agents/_administration/token/revoke", examples.REASON, 403),
        (REVOKE, {}, 400),
        (REVOKE, {"reason": ""}, 400),
        (REVOKE, {"reason": "r", "by": "A"}, 400),
    ],
)
def test_what_is_no_revocation_changes_nothing(
    operator: Client, path: str, body: dict[str, str], status: int
) -> None:
    agent = operator.create("mailer")
    assert operator.post(path, body).status == status
    assert agent.get(PATH).status == 200
