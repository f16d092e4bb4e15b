"""The running service has the planner's statistics gathered, whether autovacuum comes or not."""

from __future__ import annotations

import time

import psycopg

from tests.integration.http.client import Client
from tests.integration.http.posting import EVENTS, event, post_lines, results
from tests.support.postgres import Database

RECORDS = 100
WAIT_SECS = 60.0
KNOWN = "SELECT reltuples FROM pg_class WHERE oid = 'trails.agent_audit_trails'::regclass"


def test_a_young_tables_statistics_are_gathered(database: Database, operator: Client) -> None:
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        admin.execute("ALTER TABLE trails.agent_audit_trails SET (autovacuum_enabled = off)")
        operator.create("mailer")
        told = results(post_lines(operator, EVENTS, [event() for _ in range(RECORDS)]))
        assert len(told) == RECORDS
        deadline = time.monotonic() + WAIT_SECS
        while admin.execute(KNOWN).fetchall()[0][0] < RECORDS:
            assert time.monotonic() < deadline, "nobody has gathered them"
            time.sleep(0.1)
