"""Verifying is itself on record (case T15): who verified which chain, and how it came out."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.ledgers import TABLE
from tests.support.postgres import Database

ADMINISTRATION = "/v1/agents/_administration"


@pytest.fixture
def auditor(operator: Client) -> Client:
    """An auditor's key, in a tenant with one agent."""
    operator.create("mailer")
    issued = operator.post("/v1/keys", {"role": "auditor", "name": "Grace"}).json
    return operator.as_(issued["token"])


def verifications(client: Client) -> list[dict[str, Any]]:
    """The records of verifications: payload and actor."""
    records = client.get(f"{ADMINISTRATION}/log?limit=5000").json["records"]
    return [
        record["payload"] | {"actor": record["actor"]}
        for record in records
        if record["payload"].get("act") == "verified"
    ]


def key_id(operator: Client, name: str) -> str:
    return next(str(key["key_id"]) for key in operator.get("/v1/keys").json["keys"] if key["name"] == name)


def tamper(database: Database, agent: str) -> None:
    """A superuser changes what one record of the agent says, and its hash with it."""
    with psycopg.connect(database.admin_url) as admin:
        for table in (TABLE, "trails.agents"):
            admin.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL".encode())
        text = 'replace(signed_text, \'"payload":{\', \'"payload":{"Note":1,\')'
        digest = f"encode(sha256(convert_to(E'lineage-audit-v1\\n' || {text}, 'UTF8')), 'hex')"
        change = f"UPDATE {TABLE} SET signed_text = {text}, hash = {digest} WHERE agent_id = %s AND seq = 1"
        admin.execute(change.encode(), [agent])


def test_t15_a_verification_is_on_record_with_who_what_and_how(operator: Client, auditor: Client) -> None:
    verdict = auditor.get("/v1/agents/mailer/verify").json
    status = operator.get("/v1/agents/mailer").json
    assert verdict["ok"] is True
    assert verifications(operator) == [
        {
            "act": "verified",
            "actor": "Grace",
            "agent_id": "mailer",
            "log_uuid": status["log_uuid"],
            "length": verdict["records"],
            "head": status["head"],
            "intact": True,
            "key": key_id(operator, "Grace"),
        }
    ]


def test_t15_verifying_the_administration_is_on_record_and_never_verifies_its_own_record(
    operator: Client, auditor: Client
) -> None:
    verdicts = [auditor.get(f"{ADMINISTRATION}/verify").json for _ in range(3)]
    told = verifications(operator)
    # Each one told of all before it and none of itself.
    assert [one["length"] for one in told] == [verdicts[0]["records"] + n for n in range(3)]
    assert [one["head"] for one in told] == [verdict["head"] for verdict in verdicts]
    assert {one["agent_id"] for one in told} == {"_administration"}


def test_t15_reading_a_log_writes_nothing(operator: Client, auditor: Client) -> None:
    before = operator.get(f"{ADMINISTRATION}/log").json["head"]
    for path in ("log", "log?limit=1", "token"):
        auditor.get(f"/v1/agents/mailer/{path}")
    assert operator.get(f"{ADMINISTRATION}/log").json["head"] == before


def test_a_verification_that_finds_something_is_on_record_as_such(
    operator: Client, auditor: Client, database: Database
) -> None:
    tamper(database, "mailer")
    verdict = auditor.get("/v1/agents/mailer/verify").json
    assert verdict["ok"] is False
    [told] = verifications(operator)
    assert (told["intact"], told["length"], told["head"]) == (False, verdict["records"], verdict["head"])


def test_what_cannot_be_verified_is_on_no_record(operator: Client, auditor: Client) -> None:
    mailer = operator.as_(operator.get("/v1/agents/mailer/token").json["token"])
    assert auditor.get("/v1/agents/nobody/verify").status == 404
    assert mailer.get("/v1/agents/mailer/verify").status == 403
    assert verifications(operator) == []


def test_many_auditors_at_once_are_all_answered_and_all_on_record(operator: Client, auditor: Client) -> None:
    with ThreadPoolExecutor(24) as threads:
        replies = list(threads.map(lambda _: auditor.get("/v1/agents/mailer/verify"), range(96)))
    assert [reply.status for reply in replies] == [200] * 96
    assert len(verifications(operator)) == 96
    assert operator.get(f"{ADMINISTRATION}/verify").json["ok"] is True


def test_t08_in_a_suspended_tenant_verifying_goes_on_and_is_on_record(
    service: Running, operator: Client
) -> None:
    root = Client(service.url, service.root_token)
    made = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"}).json
    ada = operator.as_(made["token"])
    ada.create("mailer")
    assert root.post("/v1/tenants/acme/suspend", {"reason": "unpaid"}).status == 200
    assert ada.post("/v1/agents/mailer/events", {"type": "x", "data": 1}).status == 403
    assert ada.get("/v1/agents/mailer/verify").json["ok"] is True
    [told] = verifications(ada)
    assert (told["actor"], told["agent_id"]) == ("Ada", "mailer")
    assert operator.get(f"{ADMINISTRATION}/log").status == 404  # another tenant's has nothing to tell


def test_a_verdict_that_cannot_be_put_on_record_is_answered_all_the_same(
    operator: Client, auditor: Client, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    del auditor
    tamper(database, "_administration")
    with caplog.at_level(logging.WARNING, "trails.ledger"):
        verdict = operator.get(f"{ADMINISTRATION}/verify").json
        assert (verdict["ok"], verdict["failure"]["seq"]) == (False, 1)
        assert operator.get("/v1/agents/mailer/verify").json["ok"] is True
    said = [record.getMessage() for record in caplog.records if record.name == "trails.ledger"]
    assert said.pop(0) == "a chain does not verify and is quarantined"
    assert [line.partition(" is not on record: ")[0] for line in said] == [
        "a verification of _administration",
        "a verification of mailer",
    ]
    with psycopg.connect(database.admin_url) as admin:
        query = f"SELECT count(*) FROM {TABLE} WHERE trace_data ->> 'act' = 'verified'"
        assert admin.execute(query.encode()).fetchone() == (0,)


def test_a_tenant_whose_administration_was_repaired_releases_it_itself(service: Running) -> None:
    """No token of the installation reaches into it: its own keys have it verified, and nothing else."""
    root = Client(service.url, service.root_token)
    made = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"}).json
    ada = root.as_(made["token"])
    ada.create("mailer")
    issued = [ada.post("/v1/keys", {"role": role, "name": role}).json for role in ("auditor", "writer")]
    gone = ada.post("/v1/keys", {"role": "auditor", "name": "gone"}).json
    assert ada.send("DELETE", f"/v1/keys/{gone['key']['key_id']}").status == 200
    chains = service.app.services.ledger._chains._chains
    chains[UUID(made["tenant"]["tenant_id"]), "_administration"].quarantine("for this test")
    auditor, writer = (root.as_(one["token"]) for one in issued)
    for path in ("/v1/agents", f"{ADMINISTRATION}/log", "/v1/agents/mailer/verify"):
        assert [one.get(path).status for one in (ada, auditor)] == [503, 503]
    assert ada.post("/v1/agents/mailer/events", {"type": "t", "data": {}}).status == 503
    assert writer.get(f"{ADMINISTRATION}/verify").status == 403
    assert root.as_(gone["token"]).get(f"{ADMINISTRATION}/verify").status == 401
    assert ada.get("/v1/agents").status == 503
    assert auditor.get(f"{ADMINISTRATION}/verify").json["ok"] is True
    assert ada.get("/v1/agents").status == 200
    assert root.as_(gone["token"]).get("/v1/agents").status == 401
