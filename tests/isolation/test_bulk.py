"""Records in bulk, by the role of the service: INSERTs under row security, never COPY (case P36)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

import psycopg

from app.principal import Role
from tests.integration.http.client import Client
from tests.integration.http.posting import event, post_lines, results
from tests.isolation.matrix import client_of
from tests.isolation.world import Ids, World, served
from tests.support.postgres import Database

RECORDS: Final = int(os.environ.get("TRAILS_TEST_RECORDS", "5000"))
"""How many; the case asks for 50,000, which takes minutes."""

BATCH: Final = 1_000
SPANS_A_TRACE: Final = 20
SOURCES: Final = Path(__file__).resolve().parents[2]


def test_p36_bulk_is_inserted_under_row_security(populated: Database, world: World) -> None:
    """Batches of events, and spans by OTLP: all of it is there, its tenant's alone, and verifies."""
    before = _counts(populated)
    with served(populated.app_url, log_requests=False, command_timeout_secs=60.0) as running:
        operator = client_of(running.url, world.mine, Role.OPERATOR)
        path = f"/v1/agents/{world.mine.ids.observed}"
        for first in range(0, RECORDS, BATCH):
            lines = (event(data={"n": n}) for n in range(first, min(first + BATCH, RECORDS)))
            answers = results(post_lines(operator, f"{path}/events", lines))
            assert {answer.get("code") for answer in answers} == {None}
            _post_spans(operator, world.mine.ids, first)
        for agent in (world.mine.ids.observed, world.mine.ids.spanned):
            found = operator.get(f"/v1/agents/{agent}/verify").json
            assert found["ok"], found
    after = _counts(populated)
    mine, theirs = world.mine.ids.tenant_id, world.theirs.ids.tenant_id
    assert after[mine]["events"] - before[mine]["events"] == RECORDS
    assert after[mine]["spans"] - before[mine]["spans"] == RECORDS
    assert after[theirs] == before[theirs]


def _post_spans(operator: Client, ids: Ids, first: int) -> None:
    export: Any = ids.export()
    [scope] = export["resourceSpans"][0]["scopeSpans"]
    [model] = scope["spans"]
    scope["spans"] = [
        {**model, "traceId": f"{n // SPANS_A_TRACE + 1:032x}", "spanId": f"{n + 1:016x}"}
        for n in range(first, min(first + BATCH, RECORDS))
    ]
    reply = operator.post_raw("/v1/traces", json.dumps(export).encode())
    assert (reply.status, reply.json) == (200, {}), reply.raw


def _counts(database: Database) -> dict[str, dict[str, int]]:
    with psycopg.connect(database.admin_url) as connection:
        rows = connection.execute(
            "SELECT t.tenant_id::text,"
            "       (SELECT count(*) FROM trails.agent_audit_trails r"
            "         WHERE r.tenant_id = t.tenant_id AND r.kind = 'event'),"
            "       (SELECT count(*) FROM trails.spans s WHERE s.tenant_id = t.tenant_id)"
            "  FROM trails.tenants t"
        ).fetchall()
    return {tenant: {"events": events, "spans": spans} for tenant, events, spans in rows}


def test_p36_no_source_copies_into_a_table() -> None:
    """Row security refuses COPY FROM, so that only a role that passes by it could use it."""
    copies = re.compile(r"\bcopy_(records_)?to_table\b|\bCOPY\s+[\w.]+.*\bFROM\b")
    found = [
        path
        for folder in ("app", "db", "alembic")
        for path in (SOURCES / folder).rglob("*")
        if path.suffix in {".py", ".sql"} and copies.search(path.read_text("utf-8"))
    ]
    assert found == []
    assert copies.search("await connection.copy_records_to_table('t')")
    assert copies.search("COPY trails.agents (a, b) FROM STDIN")
