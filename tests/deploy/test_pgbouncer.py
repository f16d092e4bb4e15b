"""``pgbouncer.ini``: the real pgbouncer takes it, and the service appends through it."""

from __future__ import annotations

import re

from tests.support.pages import noted
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import Database
from tests.support.server import StartServer
from tests.support.tools import DEPLOY


def test_the_service_appends_through_it(database: Database, start_server: StartServer) -> None:
    told = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text("utf-8")
    with running_pooler(database, told=told) as pooler:
        server = start_server(
            database_url=pooler.app_url, env={"TRAILS_POOLER": "transaction", "TRAILS_WORKERS": "2"}
        )
        with server.client() as client:
            assert client.post("/v1/agents", json={"agent_id": "a", "policy": None}).status_code == 200
            posted = client.post("/v1/agents/a/events", json={"type": "deployed", "data": {"n": 1}})
            assert (posted.status_code, posted.json()["seq"]) == (200, 1)
        server.stop()
        columns = [row[:2] for row in pooler.console("SHOW CONFIG")]
        assert ("pool_mode", "transaction") in columns
        assert not re.search("WARNING|ERROR|unrecognized|unknown", pooler.log), pooler.log


def test_it_says_what_the_guide_says() -> None:
    """What matters to the service is in both; the file has what else a machine needs."""
    told = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text("utf-8")
    lines = noted("ini pgbouncer").splitlines()
    wanted = [line for line in lines if "=" in line and not line.startswith(";")]
    assert wanted
    for line in wanted:
        assert line in told.splitlines(), line
