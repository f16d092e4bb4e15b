"""Liveness, readiness, and what is answered when nothing can be recorded (cases H29, G27)."""

from __future__ import annotations

import os
import time

import asyncpg
import pytest

from app.http.exchange import PROBE_KEPT_SECS
from tests.integration.http.client import Client
from tests.integration.http.serving import Running

ANSWER_SECS = 2.0
TABLE = "trails.agent_audit_trails"


async def test_h29_ready_while_it_can_record(service: Running) -> None:
    client = Client(service.url)
    assert (client.get("/readyz").status, client.get("/readyz").json) == (200, {"ok": True})
    assert client.get("/healthz").json == {"ok": True}


async def test_h29_the_probe_leaves_nothing_behind(service: Running, admin: asyncpg.Connection) -> None:
    before = await admin.fetchval(f"SELECT count(*) FROM {TABLE}")
    assert Client(service.url).get("/readyz").status == 200
    assert await admin.fetchval(f"SELECT count(*) FROM {TABLE}") == before


async def test_h29_not_ready_when_it_may_not_write_and_ready_again(
    service: Running, admin: asyncpg.Connection
) -> None:
    client = Client(service.url)
    await admin.execute(f"REVOKE INSERT ON {TABLE} FROM trails_app")
    reply = client.get("/readyz")
    assert (reply.status, reply.json["code"]) == (503, "unavailable")
    assert int(reply.headers["Retry-After"]) >= 1
    assert client.get("/healthz").status == 200
    await admin.execute(f"GRANT INSERT ON {TABLE} TO trails_app")
    deadline = time.monotonic() + PROBE_KEPT_SECS + ANSWER_SECS
    while client.get("/readyz").status != 200:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("ending", ["RETURN NEW", "RAISE insufficient_privilege"], ids=["well", "badly"])
async def test_h29_anybody_may_ask_and_there_is_one_probe_a_second(
    service: Running, admin: asyncpg.Connection, ending: str
) -> None:
    # A sequence keeps its count when the probe is rolled back.
    await admin.execute(
        f"""CREATE SEQUENCE probes; CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        AS $$ BEGIN PERFORM nextval('probes'); {ending}; END $$;
        CREATE TRIGGER note BEFORE INSERT ON {TABLE} FOR EACH STATEMENT EXECUTE FUNCTION note()"""
    )
    client = Client(service.url)
    started = time.monotonic()
    statuses = {client.get("/readyz").status for _ in range(40)}
    seconds = time.monotonic() - started
    assert statuses == ({200} if ending == "RETURN NEW" else {503})
    assert 1 <= await admin.fetchval("SELECT nextval('probes') - 1") <= 1 + seconds / PROBE_KEPT_SECS


async def test_h29_no_agent_can_stand_in_the_way_of_the_probe(operator: Client) -> None:
    operator.create(f"probe-{os.getpid()}")
    assert operator.get("/readyz").status == 200


async def test_h29_a_blocked_database_is_told_within_two_seconds(
    service: Running, admin: asyncpg.Connection
) -> None:
    client = Client(service.url)
    async with admin.transaction():
        await admin.execute(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        reply = client.get("/readyz")
        assert time.monotonic() - started < ANSWER_SECS
        assert (reply.status, reply.json["code"]) == (503, "unavailable")
        assert client.get("/healthz").json == {"ok": True}
    assert client.get("/readyz").status == 200


async def test_h27_readiness_goes_red_when_the_service_drains(service: Running) -> None:
    client = Client(service.url)
    service.app.services.draining = True
    assert (client.get("/readyz").status, client.get("/healthz").status) == (503, 200)


async def test_g27_nothing_is_allowed_without_a_record(operator: Client, admin: asyncpg.Connection) -> None:
    agent = operator.create("mailer")
    await admin.execute(f"REVOKE INSERT ON {TABLE} FROM trails_app")
    reply = agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    assert (reply.status, reply.json["code"]) == (503, "unavailable")
    assert int(reply.headers["Retry-After"]) >= 1
    for word in ("INSERT", "permission", "trails_app", "agent_audit_trails", "asyncpg"):
        assert word not in reply.raw.decode()
    await admin.execute(f"GRANT INSERT ON {TABLE} TO trails_app")
    assert agent.post("/v1/agents/mailer/actions", {"tool": "search"}).json["decision"] == "allowed"
    assert operator.get("/v1/agents/mailer").json["spent"] == 1


async def test_an_unexpected_error_says_nothing_and_is_logged(
    operator: Client, admin: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    agent = operator.create("mailer")
    # A CHECK that nobody knows of: a defect, as far as the service can tell.
    await admin.execute(
        f"ALTER TABLE {TABLE} ADD CONSTRAINT odd CHECK (kind <> 'action_requested') NOT VALID"
    )
    reply = agent.post("/v1/agents/mailer/actions", {"tool": "search"})
    assert (reply.status, reply.json["code"]) == (500, "internal")
    for word in ("odd", "CHECK", "constraint", "asyncpg", "Traceback", "agent_audit_trails"):
        assert word not in reply.raw.decode()
    assert "CheckViolation" in caplog.text
