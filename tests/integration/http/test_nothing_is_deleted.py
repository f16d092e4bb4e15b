"""Nothing takes the trail along (case T08): over HTTP nothing is deleted, and ids are not used again."""

from __future__ import annotations

import pytest

from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.integration.http.wire import all_routes

TENANT = {"slug": "acme", "name": "Acme", "operator": "Ada"}


@pytest.fixture
def root(service: Running) -> Client:
    return Client(service.url, service.root_token)


def test_t08_routes_that_delete_end_a_key_or_a_webhook(root: Client, operator: Client) -> None:
    operator.create("mailer")
    assert root.post("/v1/tenants", TENANT).status == 200
    deleting = {path.rpartition("/")[0] for method, path, _ in all_routes() if method == "DELETE"}
    assert deleting == {"/v1/keys", "/v1/webhooks"}
    for client, path in (
        (operator, "/v1/agents/mailer"),
        (operator, "/v1/agents/mailer/log"),
        (operator, "/v1/agents/mailer/token"),
        (operator, "/v1/agents"),
        (root, "/v1/tenants/acme"),
        (root, "/v1/tenants"),
    ):
        assert client.send("DELETE", path).status in {404, 405}, path
    assert operator.get("/v1/agents/mailer").status == 200
    assert [tenant["slug"] for tenant in root.get("/v1/tenants").json["tenants"]] == ["acme", "default"]


def test_t08_what_a_key_did_stays_on_record_when_the_key_has_ended(operator: Client) -> None:
    operator.create("mailer", None)
    made = operator.post("/v1/keys", {"role": "writer", "name": "ingest"}).json
    writer, key_id = operator.as_(made["token"]), made["key"]["key_id"]
    assert writer.post("/v1/agents/mailer/events", {"type": "seen", "data": 1}).status == 200
    before = operator.get("/v1/agents/mailer/log").raw
    assert operator.send("DELETE", f"/v1/keys/{key_id}").status == 200
    assert operator.get("/v1/agents/mailer/log").raw == before
    assert operator.get("/v1/agents/mailer/log").json["records"][-1]["actor"] == "ingest"
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True
    listed = {key["key_id"]: key["name"] for key in operator.get("/v1/keys").json["keys"]}
    assert listed == {key_id: "ingest"}


def test_t08_ids_are_not_used_again(root: Client, operator: Client) -> None:
    operator.create("mailer")
    ended = operator.post("/v1/agents/mailer/terminate", {"reason": "over", "by": "A"})
    assert ended.status == 200
    again = operator.post("/v1/agents", {"agent_id": "mailer", "policy": None})
    assert (again.status, again.json["code"]) == (409, "agent_exists")
    assert root.post("/v1/tenants", TENANT).status == 200
    assert root.post("/v1/tenants/acme/suspend", {"reason": "over"}).status == 200
    assert root.post("/v1/tenants", TENANT).status == 409
    ids = set()
    for _ in range(2):
        key_id = operator.post("/v1/keys", {"role": "writer", "name": "ingest"}).json["key"]["key_id"]
        assert operator.send("DELETE", f"/v1/keys/{key_id}").status == 200
        ids.add(key_id)
    assert len(ids) == 2
    assert len(operator.get("/v1/keys").json["keys"]) == 2
