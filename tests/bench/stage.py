"""What every row runs on: one embedded PostgreSQL with fsync on, and servers as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from db import migrate
from tests.support.postgres import APP_PASSWORD, Database, fresh_database, running_server

OPERATOR_TOKEN = "bench-operator-token-0123456789abcdef"  # noqa: S105  of a throw-away server
MASTER_KEY = "6b" * 32
START_SECONDS = 30

PROCESSES: dict[int, int] = {}
"""The server process of each port."""


@contextmanager
def stage() -> Iterator[Database]:
    """A migrated database on a PostgreSQL of this run alone."""
    with running_server(durable=True) as server, fresh_database(server, None) as database:
        migrate.bootstrap(database.admin_url, app_password=APP_PASSWORD)
        yield database


def analyze(database: Database) -> None:
    """Lets PostgreSQL know what its tables hold, as it finds out by itself within a minute or two.

    Until then it guesses, and reads a chain of a table that was just filled by way of all its tenant's rows.
    """
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        admin.execute("VACUUM (ANALYZE) trails.agent_audit_trails")


@contextmanager
def served(factory: str, environment: Mapping[str, str], ready: str) -> Iterator[int]:
    """Runs an application factory in one server process; yields its port when ``ready`` answers at all."""
    port = _free_port()
    command = [sys.executable, "-m", "tests.bench.serve", factory, str(port)]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+b") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        PROCESSES[port] = process.pid
        try:
            _wait(process, f"http://127.0.0.1:{port}{ready}", Path(folder, "log"))
            yield port
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def service(database: Database) -> Iterator[int]:
    """Our own service on ``database``."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "TRAILS_DATABASE_URL": database.app_url,
            "TRAILS_DATA_DIR": folder,
            "TRAILS_OPERATOR_TOKEN": OPERATOR_TOKEN,
            "TRAILS_MASTER_KEY": MASTER_KEY,
            "TRAILS_LOG_LEVEL": "warning",
            "TRAILS_LOG_REQUESTS": "false",  # the floor logs none either
        }
        with served("app.asgi:app_of_this_process", environment, "/healthz") as port:
            yield port


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310  our own server
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the server did not start: {log.read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
