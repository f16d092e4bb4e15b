"""Keys and tenants over HTTP: each role on each route, with its own tenant's ids and with another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from app.http import documents, examples
from app.http.access import PERMISSION
from app.http.routes import ROUTES
from app.principal import PERMISSIONS, READING, Permission, Role
from tests.integration.http.client import Client, Reply
from tests.integration.http.posting import event, fragment
from tests.integration.http.serving import Running
from tests.integration.http.wire import all_routes

BODIES: dict[str, dict[str, Any]] = {
    "agents": {"agent_id": "another", "policy": None},
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
    "keys": {"role": "writer", "name": "one more"},
    "tenants": {"slug": "third", "name": "Third", "operator": "Eve"},
    "suspend": {"reason": "r"},
    "resume": {"reason": "r"},
    "webhooks": examples.NEW_WEBHOOK,
    "enable": examples.WEBHOOK_REASON,
    "test": {},
}
OTLP_BODY: dict[str, Any] = {"resourceSpans": []}


class World(msgspec.Struct):
    """Two tenants with an agent ``mailer`` each, and a key of each role in the default one."""

    root: Client
    operator: Client
    acme: Client
    by_role: dict[Role, Client]
    key_ids: dict[Role, str]


@pytest.fixture
def root(service: Running) -> Client:
    return Client(service.url, service.root_token)


@pytest.fixture
def acme(root: Client) -> Client:
    """The operator of a second tenant."""
    made = is_a(root.post("/v1/tenants", examples.NEW_TENANT), documents.CreatedTenant)
    return root.as_(made.token)


@pytest.fixture
def world(root: Client, operator: Client, acme: Client) -> World:
    for tenant in (operator, acme):
        agent = tenant.create("mailer")
        assert agent.post("/v1/agents/mailer/actions", {"tool": "search"}).status == 200
    by_role, key_ids = {Role.ROOT: root}, {}
    for role in Role:
        if role is not Role.ROOT:
            wanted = {"role": role.value, "name": f"the {role.value}"}
            if role is Role.AGENT:
                wanted["agent_id"] = "mailer"
            issued = is_a(operator.post("/v1/keys", wanted), documents.IssuedApiKey)
            by_role[role], key_ids[role] = operator.as_(issued.token), issued.key.key_id
    return World(root, operator, acme, by_role, key_ids)


def is_a(reply: Reply, struct: Any) -> Any:
    assert reply.status == 200, reply.raw
    return msgspec.json.decode(reply.raw, type=struct, strict=True)


def send(client: Client, method: str, path: str) -> Reply:
    if method != "POST":
        return client.send(method, path)
    body: Mapping[str, Any] = OTLP_BODY if path == "/v1/traces" else BODIES[path.rpartition("/")[2]]
    return client.post(path, body)


def permission_of(method: str, path: str) -> Permission:
    [found] = [
        handler.opt[PERMISSION]
        for handler, row in zip(_flat(), all_routes(), strict=True)
        if row[:2] == (method, path)
    ]
    return Permission(found)


def _flat() -> list[Any]:
    return [handler for handler in ROUTES for _ in sorted(handler.paths)]


PROTECTED = [(method, path) for method, path, needs_token in all_routes() if needs_token]


@pytest.mark.parametrize("role", Role)
def test_h14_each_role_may_do_on_each_route_what_the_table_says(world: World, role: Role) -> None:
    """403 exactly where the table of permissions has no entry; another answer of the route elsewhere."""
    for method, path in PROTECTED:
        reply = send(world.by_role[role], method, path)
        told = {403: "refused", 401: "unknown"}.get(reply.status, "let in")
        allowed = permission_of(method, path) in PERMISSIONS[role]
        assert told == ("let in" if allowed else "refused"), (role, method, path, reply.raw)
        assert reply.status != 500


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AUDITOR, Role.WRITER, Role.AGENT])
def test_h14_no_role_sees_or_changes_anything_of_another_tenant(world: World, role: Role) -> None:
    """Ids of the other tenant (an agent, a session, a key) are as unknown as ids that nobody has."""
    world.acme.create("theirs")
    assert world.acme.post("/v1/agents/theirs/traces", fragment(session_id=examples.SESSION_ID)).status == 200
    key = is_a(world.acme.post("/v1/keys", {"role": "auditor", "name": "x"}), documents.IssuedApiKey).key
    before = world.acme.get("/v1/agents").raw, world.acme.get("/v1/keys").raw
    for method, path in PROTECTED:
        theirs = path.replace("mailer", "theirs").replace("0123456789abcdef", key.key_id)
        nobodys = path.replace("mailer", "nobody")
        if theirs == path:
            continue
        answers = [send(world.by_role[role], method, at) for at in (theirs, nobodys)]
        said = [
            (reply.status, reply.json.get("code"), reply.json.get("error", "").replace("theirs", "nobody"))
            for reply in answers
        ]
        assert said[0] == said[1], (method, path)
        assert said[0][0] in {403, 404}, (method, path, said)
    assert (world.acme.get("/v1/agents").raw, world.acme.get("/v1/keys").raw) == before
    session = world.by_role[role].get(f"/v1/sessions/{examples.SESSION_ID}")
    assert session.status in {403, 404}
    for path in ("/v1/agents", "/v1/sessions", "/v1/keys"):
        assert b"theirs" not in world.by_role[role].get(path).raw
        assert examples.SESSION_ID.encode() not in world.by_role[role].get(path).raw


def test_a_writer_posts_for_any_agent_of_its_tenant_and_reads_nothing(world: World) -> None:
    writer = world.by_role[Role.WRITER]
    assert writer.post("/v1/agents/mailer/events", event()).status == 200
    assert writer.post("/v1/agents/mailer/traces", fragment()).status == 200
    log = world.operator.get("/v1/agents/mailer/log").json["records"]
    assert [record["actor"] for record in log[-2:]] == ["the writer", "the writer"]
    assert writer.get("/v1/agents/mailer/log").status == 403


def test_an_auditor_reads_everything_and_writes_nothing(world: World) -> None:
    auditor = world.by_role[Role.AUDITOR]
    for path in (
        "/v1/agents",
        "/v1/agents/mailer",
        "/v1/agents/mailer/log",
        "/v1/agents/mailer/verify",
        "/v1/agents/mailer/actions/pending",
        "/v1/agents/_administration/log",
        "/v1/sessions",
        "/v1/keys",
    ):
        assert auditor.get(path).status == 200, path
    assert PERMISSIONS[Role.AUDITOR] == READING


def test_a_revoked_key_is_401_at_once_and_listed_for_ever(world: World) -> None:
    writer, key_id = world.by_role[Role.WRITER], world.key_ids[Role.WRITER]
    assert writer.post("/v1/agents/mailer/events", event()).status == 200
    gone = is_a(world.operator.send("DELETE", f"/v1/keys/{key_id}"), documents.ApiKeyEntry)
    assert gone.revoked_at is not None
    refused = writer.post("/v1/agents/mailer/events", event())
    assert (refused.status, refused.json["code"]) == (401, "unauthorized")
    assert (
        refused.json["error"] == f"this key was revoked on {gone.revoked_at}; ask an operator for another one"
    )
    again = is_a(world.operator.send("DELETE", f"/v1/keys/{key_id}"), documents.ApiKeyEntry)
    assert again.revoked_at == gone.revoked_at
    listed = is_a(world.operator.get("/v1/keys"), documents.ApiKeyList).keys
    assert [entry.revoked_at for entry in listed if entry.key_id == key_id] == [gone.revoked_at]


def test_what_is_done_to_keys_is_on_the_record_of_the_tenant(world: World) -> None:
    world.operator.send("DELETE", f"/v1/keys/{world.key_ids[Role.WRITER]}")
    records = world.operator.get("/v1/agents/_administration/log").json["records"]
    done = [(record["actor"], record["payload"]["act"]) for record in records[1:]]
    acts = ["agents_created", *["key_issued"] * 4, "key_revoked"]
    assert done == [("operator", act) for act in acts]
    assert world.operator.get("/v1/agents/_administration/verify").json["ok"] is True
    assert world.operator.post("/v1/agents/_administration/events", event()).status == 403
    assert world.operator.post("/v1/agents", {"agent_id": "_administration", "policy": None}).status == 403
    assert [entry["agent_id"] for entry in world.operator.get("/v1/agents").json["agents"]] == ["mailer"]


def test_roots_answers_have_their_described_shape(root: Client, acme: Client) -> None:
    listed = is_a(root.get("/v1/tenants"), documents.TenantList).tenants
    assert [tenant.slug for tenant in listed] == ["acme", "default"]
    assert [t.slug for t in is_a(root.get("/v1/tenants?after=acme"), documents.TenantList).tenants] == [
        "default"
    ]
    acme.create("bot")
    why = examples.REASON
    assert is_a(root.post("/v1/tenants/acme/suspend", why), documents.TenantStanding).suspended
    assert (root.post("/v1/tenants/acme/suspend", why).status, acme.get("/v1/agents/bot").status) == (
        409,
        200,
    )
    refused = acme.post("/v1/agents/bot/events", event())
    assert (refused.status, "suspended" in refused.json["error"]) == (403, True)
    assert not is_a(root.post("/v1/tenants/acme/resume", why), documents.TenantStanding).suspended
    assert acme.post("/v1/agents/bot/events", event()).status == 200
    assert root.post("/v1/tenants/nobody/suspend", why).status == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "role: is required"),
        ({"role": "root", "name": "x"}, "role: must be one of operator, auditor, writer, agent"),
        ({"role": "boss", "name": "x"}, "role: must be one of operator, auditor, writer, agent"),
        ({"role": "writer"}, "name: is required"),
        ({"role": "writer", "name": " x"}, "name: must have"),
        ({"role": "writer", "name": "x", "agent_id": "mailer"}, "agent_id: is required for role agent"),
        ({"role": "agent", "name": "x"}, "agent_id: is required for role agent"),
        ({"role": "agent", "name": "x", "agent_id": "a/b"}, "agent_id: must have"),
        (
            {"role": "writer", "name": "x", "expires_at": "2020-01-01T00:00:00Z"},
            "expires_at: must be in the future",
        ),
        ({"role": "writer", "name": "x", "expires_at": "soon"}, "expires_at: must be a time"),
        ({"role": "writer", "name": "x", "expires_at": "9999-12-31T23:59:59-01:00"}, "expires_at"),
        ({"role": "writer", "name": "x", "scopes": []}, "scopes: is no member here"),
    ],
)
def test_a_wrong_key_is_refused_with_its_member(operator: Client, body: dict[str, Any], said: str) -> None:
    reply = operator.post("/v1/keys", body)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["error"].startswith(said)
    assert operator.get("/v1/keys").json["keys"] == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"slug": "default", "name": "D", "operator": "O"}, 409, "slug"),
        ({"slug": "A", "name": "D", "operator": "O"}, 400, "slug: must have"),
        ({"slug": "", "name": "D", "operator": "O"}, 400, "slug: must have"),
        ({"slug": " ", "name": "D", "operator": "O"}, 400, "slug: must have"),
        ({"slug": "b", "name": "a\nb", "operator": "O"}, 400, "name: must be printable"),
        ({"slug": "b", "name": "B"}, 400, "operator: is required"),
        ({"slug": "b", "name": "B", "operator": "\x1b"}, 400, "name: must have"),
    ],
)
def test_p13_a_wrong_tenant_is_refused(root: Client, body: dict[str, Any], status: int, said: str) -> None:
    reply = root.post("/v1/tenants", body)
    assert (reply.status, said in reply.json["error"]) == (status, True), reply.raw
    assert [tenant["slug"] for tenant in root.get("/v1/tenants").json["tenants"]] == ["default"]


def test_p21_a_tenant_that_is_asked_for_again_is_made_once(root: Client) -> None:
    first = root.post("/v1/tenants", examples.NEW_TENANT, Idempotency_Key="k")
    again = root.post("/v1/tenants", examples.NEW_TENANT, Idempotency_Key="k")
    assert (first.status, again.status, again.json["code"]) == (200, 409, "conflict")
    assert "made by the first request" in again.json["error"]
    assert first.json["tenant"]["tenant_id"] in again.json["error"]
    assert first.json["token"].encode() not in again.raw
    other = root.post("/v1/tenants", {**examples.NEW_TENANT, "name": "Other"}, Idempotency_Key="k")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    unknown = root.post("/v1/tenants", examples.NEW_TENANT, Idempotency_Key="another")
    assert (unknown.status, unknown.json["error"]) == (409, "a tenant of this slug exists already")
    default = {"slug": "default", "name": "D", "operator": "O"}
    assert root.post("/v1/tenants", default, Idempotency_Key="k").json["code"] == "conflict"
    assert [tenant["slug"] for tenant in root.get("/v1/tenants").json["tenants"]] == [
        examples.NEW_TENANT["slug"],
        "default",
    ]


def test_p21_a_suspension_is_answered_again_under_its_key(root: Client, acme: Client) -> None:
    why = examples.REASON
    for act, suspended in (("suspend", True), ("resume", False)):
        path = f"/v1/tenants/acme/{act}"
        first = root.post(path, why, Idempotency_Key="k")
        assert first.json == {"slug": "acme", "suspended": suspended}
        assert root.post(path, why, Idempotency_Key="k").raw == first.raw
        other = root.post(path, {"reason": "another"}, Idempotency_Key="k")
        assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
        assert root.post(path, why).json["code"] == "conflict", "without its key it is another request"
    assert root.post("/v1/tenants/acme/suspend", why, Idempotency_Key="k").json["suspended"] is True
    log = acme.get("/v1/agents/_administration/log").json["records"]
    acts = [record["payload"].get("act") for record in log]
    assert (acts.count("tenant_suspended"), acts.count("tenant_resumed")) == (1, 1)
    assert acme.post("/v1/agents", {"agent_id": "bot", "policy": None}).status == 200


def test_p21_a_key_that_is_asked_for_again_is_issued_once(operator: Client) -> None:
    first = operator.post("/v1/keys", examples.NEW_API_KEY, Idempotency_Key="k")
    again = operator.post("/v1/keys", examples.NEW_API_KEY, Idempotency_Key="k")
    assert (first.status, again.status, again.json["code"]) == (200, 409, "conflict")
    assert "not shown again" in again.json["error"]
    other = operator.post("/v1/keys", {"role": "writer", "name": "another"}, Idempotency_Key="k")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    assert len(operator.get("/v1/keys").json["keys"]) == 1


def test_without_a_root_token_nobody_is_root(service: Running) -> None:
    service.app.services.tokens._root = None
    assert Client(service.url, service.root_token).get("/v1/tenants").status == 401
