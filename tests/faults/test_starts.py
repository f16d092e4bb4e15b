"""Processes that start at once on an empty database (case P38), or die while they migrate or append (P16)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psycopg
import pytest

from app.cli.prepare import app_password
from app.settings import Secrets
from db import migrate
from db.schema import REVISION
from tests.integration.http.client import Client
from tests.support.aftermath import Work
from tests.support.faults import rounds
from tests.support.pgbouncer import running_pooler
from tests.support.postgres import APP_PASSWORD, Database, Server, fresh_database
from tests.support.server import MASTER_KEY, ROOT, ServerProcess, StartServer, service_environment

REPLICAS = 3
START_SECS = 90.0

_ONCE = """
SELECT 'trigger ' || tgname || ' of ' || tgrelid::regclass FROM pg_trigger
 WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'trails'::regnamespace)
UNION ALL SELECT 'policy ' || polname || ' of ' || polrelid::regclass FROM pg_policy
UNION ALL SELECT 'grant ' || privilege_type || ' on ' || table_name || ' to ' || grantee
  FROM information_schema.role_table_grants WHERE table_schema = 'trails'
UNION ALL SELECT 'revision ' || version_num FROM trails.alembic_version
"""


def catalog(url: str) -> list[str]:
    """Triggers, policies, grants and the revision: each as often as it is there."""
    with psycopg.connect(url) as connection:
        return sorted(str(row[0]) for row in connection.execute(_ONCE))


@pytest.fixture
def password_of_the_key(database: Database) -> Iterator[None]:
    """trails_app has the password that the master key gives, so that ``trails run`` may use it."""
    derived = migrate.scram_verifier(app_password(Secrets("", bytes.fromhex(MASTER_KEY))))
    usual = migrate.scram_verifier(APP_PASSWORD)
    with psycopg.connect(database.admin_url, autocommit=True) as connection:
        connection.execute(f"ALTER ROLE trails_app PASSWORD '{derived}'".encode())
        yield
        connection.execute(f"ALTER ROLE trails_app PASSWORD '{usual}'".encode())


class Replica:
    """A ``trails run`` process on a database that may hold nothing yet."""

    def __init__(self, url: str, folder: Path) -> None:
        self._log = folder / f"{time.monotonic_ns()}.log"
        environment = {
            **service_environment(url),
            "TRAILS_DATA_DIR": str(folder / "data"),
            "TRAILS_BIND": "127.0.0.1:0",
            "TRAILS_STOP_DELAY_SECS": "0",
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "run"], cwd=ROOT, stdout=log, stderr=log, env=environment
            )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def url(self) -> str:
        """Its address, as soon as it is ready."""
        deadline = time.monotonic() + START_SECS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = [line for line in self.log.splitlines() if line.startswith("Lineage Trails is at ")]
            if found and _is_ready(found[0].rpartition(" ")[2]):
                return found[0].rpartition(" ")[2]
            time.sleep(0.05)
        raise AssertionError(self.log)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.usefixtures("password_of_the_key")
def test_p38_replicas_that_start_at_once_all_serve_and_all_is_there_once(
    postgres: Server, database: Database, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    expected = catalog(database.admin_url)
    assert len(expected) == len(set(expected))
    assert f"revision {REVISION}" in expected
    for number in range(rounds(1, 10)):
        with subtests.test(round=number), fresh_database(postgres, None) as empty, ExitStack() as stack:
            replicas = [Replica(empty.admin_url, tmp_path) for _ in range(REPLICAS)]
            for replica in replicas:
                stack.callback(replica.kill)
            clients = [Client(replica.url(), ServerProcess.operator_token) for replica in replicas]
            own = clients[0].create("one")
            for client in clients:
                asked = client.as_(own.token).post("/v1/agents/one/actions", {"tool": "search"})
                assert asked.json["decision"] == "allowed", asked.raw
            assert [replica.stop() for replica in replicas] == [0] * REPLICAS
            assert catalog(empty.admin_url) == expected


_MIGRATOR = """
import sys, threading
from db import migrate
url = sys.argv[1]
with migrate.connected(url) as connection, connection.begin():
    migrate.enter_migration(connection)
    connection.exec_driver_sql("CREATE TABLE trails.half_done (n int)")
    print("in the middle", flush=True)
    threading.Event().wait(60)
"""


@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_p16_a_migrator_that_is_killed_in_the_middle_leaves_nothing(database: Database, way: str) -> None:
    """The next one does not wait for it, and finds nothing of it."""
    with ExitStack() as stack:
        url = database.admin_url
        if way == "pgbouncer":
            url = stack.enter_context(running_pooler(database)).admin_url
        killed = subprocess.Popen(
            [sys.executable, "-c", _MIGRATOR, database.admin_url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"in the middle\n"
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(migrate.migrate, database.admin_url)
            killed.kill()
            killed.communicate()
            waiting.result(migrate.WAIT_MILLISECONDS / 1000)
        with psycopg.connect(url) as connection:
            half = connection.execute("SELECT to_regclass('trails.half_done')").fetchone()
            locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
        assert (half, locks) == ((None,), (0,))


@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_p16_a_server_that_is_killed_while_it_appends_holds_up_nobody(
    database: Database, start_server: StartServer, way: str
) -> None:
    with ExitStack() as stack:
        options: dict[str, object] = {}
        if way == "pgbouncer":
            url = stack.enter_context(running_pooler(database)).app_url
            options = {"database_url": url, "env": {"TRAILS_POOLER": "transaction"}}
        killed, other = start_server(**options), start_server(**options)
        addresses: list[Callable[[], Client]] = [
            lambda server=server: Client(server.base_url, server.operator_token)  # type: ignore[misc]
            for server in (killed, other)
        ]
        work = Work(database.admin_url, addresses[0])
        requests = work.prepare(agents=2)
        with psycopg.connect(database.admin_url) as holder:
            holder.execute("LOCK TABLE trails.agent_audit_trails IN SHARE MODE")
            sending = threading.Thread(target=work.send, args=(requests,))
            sending.start()
            _until_waiting(database)
            os.kill(killed.pid, signal.SIGKILL)
            sending.join()
            holder.rollback()
        work.client = addresses[1]
        work.check()


def _until_waiting(database: Database) -> None:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 20
    with psycopg.connect(database.admin_url, autocommit=True) as connection:
        while connection.execute(waiting).fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.01)
