"""Approvals over HTTP: whose they are, and whose they cannot be."""

from __future__ import annotations

from tests.integration.http.client import POLICY, Client

ACTIONS = "/v1/agents/mailer/actions"
MAIL = {"tool": "send_email", "input": {"to": "a@example.org"}}


def key_of(operator: Client, name: str, **members: object) -> Client:
    issued = operator.post("/v1/keys", {"role": "operator", "name": name, **members})
    return operator.as_(issued.json["token"])


def approve(client: Client, action_id: str = "act-1", approver: str = "Ada") -> tuple[int, str]:
    reply = client.post(f"{ACTIONS}/{action_id}/approve", {"approver": approver})
    return reply.status, reply.json.get("code", reply.json.get("decision"))


def test_g08_nobody_approves_what_the_same_key_asked_for(operator: Client) -> None:
    operator.create("mailer")
    ada, ben = key_of(operator, "ada"), key_of(operator, "ben")
    for number, asker in enumerate((operator, ada), start=1):
        assert asker.post(ACTIONS, {**MAIL, "cost": number + 5}).json["decision"] == "pending_approval"
        for approver in ("Ben", "operator", "mailer"):  # whatever the body says
            assert approve(asker, f"act-{number}", approver) == (403, "forbidden")
    refused = ada.post(f"{ACTIONS}/act-2/approve", {"approver": "Ben"}).json["error"]
    assert refused == "act-2 was asked for with this key, which cannot approve it; another key can"
    assert approve(ada, "act-1") == (200, "allowed")
    assert approve(ben, "act-2") == (200, "allowed")


def test_g08_an_agents_key_approves_nothing(operator: Client) -> None:
    agent = operator.create("mailer")
    key = key_of(operator, "its key", role="agent", agent_id="mailer")
    agent.post(ACTIONS, MAIL)
    for client in (agent, key):
        assert approve(client) == (403, "forbidden")
    assert key.post(ACTIONS, MAIL).json["action_id"] == "act-1"
    assert approve(operator) == (200, "allowed")


def test_g08_a_second_key_of_the_same_person_is_another_key(operator: Client) -> None:
    """The service sees keys and not people: the guides say so."""
    operator.create("mailer")
    first, second = key_of(operator, "ada"), key_of(operator, "ada again")
    first.post(ACTIONS, MAIL)
    assert approve(second) == (200, "allowed")


def test_g08_a_key_of_the_same_name_that_came_after_it_is_nobody_else(operator: Client) -> None:
    policy = {**POLICY, "tools": {"send_email": {"cost": 5, "requires_approval": True, "approvers": 2}}}
    operator.create("mailer", policy)

    def revoke(name: str) -> None:
        [key] = [
            k for k in operator.get("/v1/keys").json["keys"] if k["name"] == name and not k["revoked_at"]
        ]
        assert operator.send("DELETE", f"/v1/keys/{key['key_id']}").status == 200

    ada, ben = key_of(operator, "ada"), key_of(operator, "ben")
    ada.post(ACTIONS, MAIL)
    assert approve(ben) == (200, "pending_approval")
    revoke("ada")
    revoke("ben")
    assert approve(key_of(operator, "ada")) == (403, "forbidden")
    assert approve(key_of(operator, "ben")) == (409, "conflict")
    assert approve(operator) == (200, "allowed")


def test_g08_ones_own_request_may_be_rejected(operator: Client) -> None:
    operator.create("mailer")
    ada = key_of(operator, "ada")
    ada.post(ACTIONS, MAIL)
    rejected = ada.post(f"{ACTIONS}/act-1/reject", {"approver": "Ben", "reason": "a slip"})
    assert rejected.json["reason"] == {"code": "rejected", "by": "ada", "reason": "a slip"}


def test_g08_an_agent_called_as_the_installations_token_is_somebody_else(operator: Client) -> None:
    agent = operator.create("operator")
    path = "/v1/agents/operator/actions"
    agent.post(path, MAIL)
    assert operator.post(f"{path}/act-1/approve", {"approver": "A"}).json["decision"] == "allowed"
    operator.post(path, {**MAIL, "cost": 6})
    assert operator.post(f"{path}/act-2/approve", {"approver": "A"}).status == 403


def test_the_approver_on_record_is_the_key(operator: Client) -> None:
    agent = operator.create("mailer")
    ada = key_of(operator, "ada")
    agent.post(ACTIONS, MAIL)
    ada.post(f"{ACTIONS}/act-1/approve", {"approver": "the board", "note": "fine"})
    shown = agent.get(f"{ACTIONS}/act-1").json
    assert (shown["approved_by"], shown["approver_claimed"]) == ("ada", "the board")
    [record] = [
        record
        for record in operator.get("/v1/agents/mailer/log").json["records"]
        if record["kind"] == "action_allowed"
    ]
    assert record["actor"] == record["payload"]["approved_by"] == "ada"
    [key] = [key for key in operator.get("/v1/keys").json["keys"] if key["name"] == "ada"]
    assert record["payload"]["by_key"] == key["key_id"]
