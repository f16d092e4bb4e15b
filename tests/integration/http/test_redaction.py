"""Secrets in what agents send are on no disk and in no answer, whichever way they come (T01)."""

from __future__ import annotations

import io
import json
from typing import Any, TypeAlias

import asyncpg
import msgspec
import pytest

from app.http import documents, examples
from app.redaction import DEFAULT_RULES
from tests.integration.http.client import POLICY, Client
from tests.integration.http.posting import event, fragment, node, post_lines, recorded
from tests.integration.http.serving import Running
from tests.support import otlp
from tests.support.sharing import service, shared
from tests.support.spans import as_json, protobuf, tool

__all__ = ["service", "shared"]

Admin: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ACTIONS = "/v1/agents/mailer/actions"
SECRETS = [f"T{number}zq" for number in range(1, 6)]
INPUT: dict[str, Any] = {
    "headers": {"Authorization": f"Bearer {SECRETS[0]}"},
    "cfg": [{"api_key": SECRETS[1]}],
    "password": SECRETS[2],
    "Cookie": f"s={SECRETS[3]}",
    "private_key": SECRETS[4],
    "to": "a@example.org",
}
SAID = f"it was done with Bearer {SECRETS[0]}, password={SECRETS[2]}"
MARK = "[REDACTED]"


@pytest.fixture
def agent(operator: Client) -> Client:
    return operator.create("mailer")


async def leaked(admin: Admin) -> set[str]:
    """Which secrets stand anywhere in the database, in any column of any table."""
    tables = await admin.fetch(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'trails'"
    )
    assert len(tables) > 8
    found = set()
    for table in tables:
        for secret in SECRETS:
            if await admin.fetchval(
                f"SELECT count(*) FROM {table['name']} AS t WHERE t::text LIKE '%' || $1 || '%'", secret
            ):
                found.add(secret)
    return found


async def test_t01_the_guards_requests_and_reports(
    operator: Client, agent: Client, admin: Admin, log: io.StringIO
) -> None:
    ask = {"tool": "send_email", "input": INPUT, "thought_process": SAID}
    replies = [agent.post(ACTIONS, ask)]
    replies.append(operator.get(f"{ACTIONS}/pending"))
    replies.append(operator.post(f"{ACTIONS}/act-1/approve", {"approver": SAID[:60], "note": SAID}))
    replies.append(
        agent.post(f"{ACTIONS}/act-1/claim", {"tool": "send_email", "input": {"password": SECRETS[2]}})
    )
    replies.append(agent.post(f"{ACTIONS}/act-1/claim", {"tool": "send_email", "input": INPUT}))
    replies.append(agent.post(f"{ACTIONS}/act-1/outcome", {"status": "failure", "detail": SAID}))
    replies.append(agent.post(f"{ACTIONS}/act-1/outcome", {"status": "success", "detail": SAID}))
    replies.append(agent.post(ACTIONS, {"tool": "send_email", "input": {"password": SECRETS[2]}}))
    replies.append(
        operator.post(f"{ACTIONS}/act-2/reject", {"approver": "Ada", "reason": SAID, "scar": "minor"})
    )
    replies.append(operator.post("/v1/agents/mailer/scars", {"severity": "minor", "reason": SAID}))
    replies.append(operator.post("/v1/agents/mailer/terminate", {"reason": SAID, "by": "Ada"}))
    assert [reply.status for reply in replies] == [200, 200, 200, 409, 200, 200, 409, 200, 200, 200, 200]
    assert await leaked(admin) == set()
    replies += [operator.get(f"{ACTIONS}/act-1"), operator.get("/v1/agents/mailer/log")]
    for secret in SECRETS:
        assert not any(secret.encode() in reply.raw for reply in replies)
        assert secret not in log.getvalue()
    asked = recorded(operator, "action_requested")[0]["payload"]
    assert asked["input"]["headers"] == {"Authorization": MARK}
    assert asked["input"]["to"] == "a@example.org"
    assert asked["redacted"]["rules"] == DEFAULT_RULES.version
    assert {"path": "/input/cfg/0/api_key", "rule": "secret_members"} in asked["redacted"]["values"]
    assert len(asked["redacted"]["input"]) == 64
    for kind in ("action_allowed", "outcome", "action_rejected", "terminated"):
        assert recorded(operator, kind)[0]["payload"]["redacted"]["count"] >= 1, kind
    assert len(recorded(operator, "scar")) == 3
    assert recorded(operator, "scar")[-1]["payload"]["redacted"]["count"] == 2


async def test_t01_traces_events_and_spans(
    operator: Client, agent: Client, admin: Admin, log: io.StringIO
) -> None:
    first = node(1, inputs=INPUT, outputs={"status": "failed", "error": SAID}, thought_process=SAID)
    second = node(2, 1, name=f"GET /?token={SECRETS[1]}", metadata={"env": f"DB_PASSWORD={SECRETS[2]}"})
    assert agent.post("/v1/agents/mailer/traces", fragment(first, second, note=SAID)).status == 200
    assert (
        agent.post("/v1/agents/mailer/events", event(data={"api_key": SECRETS[1], "b": [SAID]})).status == 200
    )
    lines = [event(data=SAID), event(type=f"x {SAID}"[:100]), event(data="nothing secret")]
    assert post_lines(agent, "/v1/agents/mailer/events", lines).status == 200
    call = tool("fetch", attributes={"gen_ai.tool.call.arguments": json.dumps({"password": SECRETS[2]}),
                                     "http.request.header.authorization": [f"Bearer {SECRETS[0]}"],
                                     "api_key": SECRETS[1]}, message=SAID, code=2)  # fmt: skip
    assert otlp.post(agent, protobuf(call)).rejected == 0
    again = tool("fetch", attributes={"input.value": SAID}, events=(("e", {"cookie": f"s={SECRETS[3]}"}),))
    assert otlp.post(operator, as_json(again), otlp.JSON, zipped=True).rejected == 0
    assert await leaked(admin) == set()
    assert not any(secret in log.getvalue() for secret in SECRETS)
    traces = [record["payload"] for record in recorded(operator, "trace")]
    assert traces[0]["trace_tree"][0]["inputs"]["password"] == MARK
    assert traces[0]["trace_tree"][0]["outputs"]["status"] == "failed"
    assert traces[0]["trace_tree"][1]["name"] == f"GET /?token={MARK}"
    assert traces[0]["note"] == f"it was done with Bearer {MARK}, password={MARK}"
    assert {"path": "/trace_tree/1/name", "rule": "secret_members"} in traces[0]["redacted"]["values"]
    assert traces[1]["redacted"]["count"] >= 3
    events = [record["payload"] for record in recorded(operator, "event")]
    assert events[0]["data"]["api_key"] == MARK
    assert "redacted" not in events[3], "what holds no secret is kept as it is"
    session = operator.get(f"/v1/sessions/{fragment()['session_id']}")
    assert session.status == 200
    assert MARK.encode() in session.raw


async def test_t01_members_of_a_nodes_and_a_traces_own(operator: Client, agent: Client, admin: Admin) -> None:
    headers = {
        "http.request.header.authorization": [SECRETS[0]],
        "env": [{"name": "API_KEY", "value": SECRETS[1]}],
    }
    sent = fragment(node(1, password=SECRETS[2], metadata=headers), cookie=f"s={SECRETS[3]}")
    assert agent.post("/v1/agents/mailer/traces", sent).status == 200
    assert otlp.post(agent, protobuf(tool("fetch", attributes=headers))).rejected == 0
    assert await leaked(admin) == set()
    posted, span = (record["payload"] for record in recorded(operator, "trace"))
    assert posted["trace_tree"][0]["password"] == posted["cookie"] == MARK
    assert {"path": "/trace_tree/0/password", "rule": "secret_members"} in posted["redacted"]["values"]
    assert span["redacted"]["count"] >= 2


async def test_t01_the_answer_about_spans_that_are_not_kept(
    operator: Client, agent: Client, admin: Admin, log: io.StringIO
) -> None:
    call = msgspec.structs.replace(tool("fetch"), name=f"GET ?token={SECRETS[1]}", span_id=bytes(8))
    answer = otlp.post(agent, protobuf(call))
    assert answer.rejected == 1
    assert f"'GET ?token={MARK}'" in answer.message
    assert await leaked(admin) == set()
    assert SECRETS[1] not in log.getvalue()
    [event] = recorded(operator, "event")
    assert event["payload"]["redacted"]["values"][0]["path"] == "/data/spans/0/name"


async def test_t01_reasons_of_administrative_acts(
    service: Running, operator: Client, admin: Admin, log: io.StringIO
) -> None:
    operator.create("mailer")
    root = Client(service.url, service.root_token)
    slug = root.post("/v1/tenants", examples.NEW_TENANT).json["tenant"]["slug"]
    for key in (None, "k", "k"):
        headers = {} if key is None else {"Idempotency_Key": key}
        path = "/v1/agents/mailer/token/revoke"
        assert operator.post(path, {"reason": SAID}, **headers).status == 200
    for act in ("suspend", "resume"):
        assert root.post(f"/v1/tenants/{slug}/{act}", {"reason": SAID}).status == 200
    assert await leaked(admin) == set()
    assert not any(secret in log.getvalue() for secret in SECRETS)
    records = operator.get("/v1/agents/_administration/log").json["records"]
    payloads = [record["payload"] for record in records]
    acts = [payload for payload in payloads if payload.get("act") == "agent_token_revoked"]
    assert [act["redacted"]["count"] for act in acts] == [2, 2]
    assert acts[0]["redacted"]["values"][0] == {"path": "/reason", "rule": "secret_members"}
    assert operator.get("/v1/agents/_administration/verify").json["ok"] is True


def test_a_span_that_comes_again_is_known_without_its_secret(operator: Client, agent: Client) -> None:
    call = tool("fetch", attributes={"password": SECRETS[2], "n": 1})
    first = otlp.post(agent, protobuf(call))
    assert otlp.post(agent, protobuf(call)) == first
    other = msgspec.structs.replace(call, attributes={**dict(call.attributes), "n": 2})
    assert "other content" in otlp.post(agent, protobuf(other)).message
    [conflict] = otlp.records(operator, "mailer", "event")
    assert conflict["payload"]["type"] == "span_conflict"
    assert SECRETS[2] not in str(conflict)
    assert {"path": "/data/node/metadata/otel/attributes/password", "rule": "secret_members"} in conflict[
        "payload"
    ]["redacted"]["values"]


def test_g01_what_differs_in_a_secret_alone_is_another_action(operator: Client, agent: Client) -> None:
    def ask(secret: str) -> str:
        reply = agent.post(ACTIONS, {"tool": "send_email", "input": {"to": "a", "password": secret}})
        return str(reply.json["action_id"])

    assert [ask("one"), ask("two"), ask("one")] == ["act-1", "act-2", "act-1"]
    assert operator.post(f"{ACTIONS}/act-1/approve", {"approver": "Ada"}).status == 200
    path = f"{ACTIONS}/act-1/claim"
    refused = agent.post(path, {"tool": "send_email", "input": {"to": "a", "password": "two"}})
    assert refused.json["code"] == "claim_mismatch"
    assert agent.post(path, {"tool": "send_email", "input": {"to": "a", "password": MARK}}).status == 409
    assert agent.post(path, {"tool": "send_email", "input": {"to": "a", "password": "one"}}).status == 200
    reason = recorded(operator, "claim_refused")[0]["payload"]["reason"]
    assert (
        reason["allowed"] == recorded(operator, "action_claimed")[0]["payload"]["digest"] != reason["claimed"]
    )


async def test_t01_a_tool_that_is_named_by_a_whole_command(operator: Client, admin: Admin) -> None:
    agent = operator.create("mailer", {**POLICY, "default_rule": {"cost": 0}})
    tools = [f"curl -H 'X-Api-Key: {secret}' {'a' * 90}" for secret in SECRETS[:2]]
    asked = [agent.post(ACTIONS, {"tool": tool}).json for tool in tools]
    assert [answer["decision"] for answer in asked] == ["allowed", "allowed"]
    path = f"{ACTIONS}/{asked[0]['action_id']}/claim"
    assert agent.post(path, {"tool": tools[1]}).json["code"] == "claim_mismatch"
    assert agent.post(path, {"tool": tools[0].replace(SECRETS[0], MARK)}).json["code"] == "claim_mismatch"
    assert agent.post(path, {"tool": tools[0]}).status == 200
    assert await leaked(admin) == set()
    payload = recorded(operator, "action_requested")[0]["payload"]
    assert payload["tool"] == tools[0].replace(SECRETS[0], MARK)[:128]
    assert payload["redacted"]["values"] == [{"path": "/tool", "rule": "secret_members"}]


@pytest.mark.parametrize("strict", [True, False])
def test_an_approval_outlives_a_change_of_the_rules(operator: Client, agent: Client, *, strict: bool) -> None:
    rules = {"patterns": ["secret_members"], "paths": []}
    assert operator.post("/v1/redaction", rules if strict else {"patterns": [], "paths": []}).status == 200
    ask = {"tool": "send_email", "input": {"to": "a", "password": "one"}}
    first = agent.post(ACTIONS, ask, Idempotency_Key="k")
    assert operator.post(f"{ACTIONS}/act-1/approve", {"approver": "Ada"}).status == 200
    assert operator.post("/v1/redaction", {"patterns": [], "paths": []} if strict else rules).status == 200
    assert agent.post(ACTIONS, ask, Idempotency_Key="k").json == first.json
    other = {"tool": "send_email", "input": {"to": "a", "password": "two"}}
    assert agent.post(ACTIONS, other, Idempotency_Key="k").json["code"] == "idempotency_conflict"
    assert agent.post(f"{ACTIONS}/act-1/claim", other).json["code"] == "claim_mismatch"
    assert agent.post(f"{ACTIONS}/act-1/claim", ask).status == 200


def test_keys_of_requests_tell_secrets_apart(operator: Client, agent: Client) -> None:
    one, two = event(data={"password": "one"}), event(data={"password": "two"})
    path = "/v1/agents/mailer/events"
    first = agent.post(path, one, Idempotency_Key="k")
    assert agent.post(path, one, Idempotency_Key="k").json == first.json
    assert agent.post(path, two, Idempotency_Key="k").json["code"] == "idempotency_conflict"
    batch = post_lines(agent, path, [two, event()], Idempotency_Key="b")
    assert post_lines(agent, path, [two, event()], Idempotency_Key="b").raw == batch.raw
    assert post_lines(agent, path, [one, event()], Idempotency_Key="b").raw != batch.raw
    assert len(recorded(operator, "event")) == 3


def test_rules_are_the_tenants_own_and_on_record(service: Running, operator: Client) -> None:
    acme = operator.as_(
        Client(service.url, service.root_token).post("/v1/tenants", examples.NEW_TENANT).json["token"]
    )
    default = msgspec.json.decode(
        operator.get("/v1/redaction").raw, type=documents.RedactionRules, strict=True
    )
    assert (default.version, default.paths) == (0, [])
    assert "card_numbers" in [pattern.name for pattern in default.available]
    assert "card_numbers" not in default.patterns
    wanted = {"patterns": ["card_numbers"], "paths": ["$..ssn", "$.customer.email"]}
    told = operator.post("/v1/redaction", wanted, Idempotency_Key="k").json
    assert {name: told[name] for name in ("version", "patterns", "paths")} == {"version": 1, **wanted}
    assert operator.post("/v1/redaction", wanted, Idempotency_Key="k").json == told
    assert operator.get("/v1/redaction").json == told
    assert acme.get("/v1/redaction").json["version"] == 0
    sent = {
        "ssn": "1",
        "customer": {"email": "e", "name": "n"},
        "card": "4111 1111 1111 1111",
        "password": "p",
    }
    for tenant in (operator, acme):
        tenant.create("mailer").post("/v1/agents/mailer/events", event(data=sent))
    assert recorded(operator, "event")[0]["payload"]["data"] == {
        "ssn": MARK, "customer": {"email": MARK, "name": "n"}, "card": MARK, "password": "p",
    }  # fmt: skip
    assert recorded(operator, "event")[0]["payload"]["redacted"]["rules"] == 1
    assert recorded(acme, "event")[0]["payload"]["data"] == {**sent, "password": MARK}
    acts = [
        record["payload"]
        for record in operator.get("/v1/agents/_administration/log").json["records"]
        if record["payload"].get("act") == "redaction_set"
    ]
    assert acts[0]["rules"] == {"version": 1, **wanted}
    assert len(acts) == 1


def test_rules_that_are_none_are_refused_by_name(operator: Client) -> None:
    for body, says in (
        ({"patterns": ["cards"], "paths": []}, "patterns: there are secret_members"),
        ({"patterns": [], "paths": ["$.a["]}, "paths[0]: at character 4"),
        ({"patterns": []}, "paths: must be an array"),
        ({}, "patterns: must be an array"),
    ):
        reply = operator.post("/v1/redaction", body)
        assert (reply.status, reply.json["code"]) == (400, "bad_request")
        assert says in reply.json["error"], reply.json
    assert operator.get("/v1/redaction").json["version"] == 0


def test_nobody_writes_the_note_but_the_service(agent: Client) -> None:
    reply = agent.post("/v1/agents/mailer/traces", fragment(redacted={"count": 0}))
    assert (reply.status, reply.json["error"]) == (400, "redacted: is the service's own")


def test_a_large_body_of_secrets_is_redacted_too(operator: Client, agent: Client) -> None:
    many = [{"password": f"{SECRETS[2]}{number}"} for number in range(20_000)]
    assert agent.post("/v1/agents/mailer/events", event(data=many)).status == 200
    payload = recorded(operator, "event")[0]["payload"]
    assert payload["data"] == [{"password": MARK}] * 20_000
    assert (payload["redacted"]["count"], len(payload["redacted"]["values"])) == (20_000, 100)


def test_the_policy_is_none_of_it(operator: Client) -> None:
    policy = {**POLICY, "tools": {"rotate_password": {"cost": 1}, "token": {"cost": 1}}}
    agent = operator.create("mailer", policy)
    assert agent.post(ACTIONS, {"tool": "token", "input": {"max_tokens": 5}}).json["decision"] == "allowed"
