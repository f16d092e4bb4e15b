"""Somebody of compliance with psql alone: the login as it is printed, every question, and no way out.

What the statements come to in a session of asyncpg is ``tests/integration/db/test_sql_logins.py``; here psql
itself tries what it does in ways of its own: files and programs of its own machine are its own, those of the
server are not.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from app.cli.prepare import app_password
from app.ledger import Ledger
from app.principal import ADMINISTRATION
from app.settings import Secrets
from db.cookbook import recipes
from db.pool import create_pool
from tests.support.cli import run_trails
from tests.support.cookbook_world import World, tell
from tests.support.ledgers import MASTER_KEY, SetClock
from tests.support.pages import everything
from tests.support.postgres import APP_PASSWORD, Server, fresh_database

PSQL = "/usr/lib/postgresql/15/bin/psql"

WRITING = "SET default_transaction_read_only = off;\n"

DENIED = "42501"
TIMED_OUT = "57014"

REFUSED = {
    "become the service": "SET ROLE trails_app;",
    "log in as another": "SET SESSION AUTHORIZATION trails_owner;",
    "read-write, and write": WRITING + "DELETE FROM agent_audit_trails;",
    "a temporary table": WRITING + "CREATE TEMP TABLE mine (a int);",
    "a table for all": WRITING + "CREATE TABLE public.mine (a int);",
    "an extension": WRITING + "CREATE EXTENSION dblink;",
    "a file of the server": "COPY (SELECT 1) TO '/tmp/out';",
    "a program of the server": "COPY (SELECT 1) TO PROGRAM 'id';",
    "reading the server's files": "SELECT pg_read_file('/etc/passwd');",
    "a file into a table": WRITING + "\\copy trails.agents FROM '/etc/passwd'",
    "a file into a large object": WRITING + "\\lo_import /etc/passwd",
    "an advisory lock": "SELECT pg_advisory_lock(1);",
    "rows for itself": WRITING + "SELECT 1 FROM agent_audit_trails FOR SHARE;",
    "ending the service": (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid();"
    ),
    "no end of its own": WRITING + "ALTER ROLE CURRENT_USER VALID UNTIL 'infinity';",
    "sleeping for long": "SET statement_timeout = '10ms';\nSELECT pg_sleep(60);",
}
"""What psql is told, and refuses with the server's word for it."""


class Auditor(msgspec.Struct, frozen=True):
    """Somebody who was given the line that ``trails sql-login create`` printed."""

    command: tuple[str, ...]

    def run(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        """What psql makes of a script."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            [*self.command, "-X", "-q", "-v", "ON_ERROR_STOP=1", *options],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def answer(self, script: str) -> list[str]:
        """The rows of an answer, without a header."""
        done = self.run(script, "-A", "-t")
        assert (done.returncode, done.stderr) == (0, ""), script
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def auditor(
    postgres: Server, template: NoopExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Auditor]:
    program = PSQL if Path(PSQL).exists() else shutil.which("psql")
    if program is None:
        pytest.skip("there is no psql on this machine")
    with fresh_database(postgres, template.template_dbname) as database:
        asyncio.run(_told(database.app_url))
        env = {
            "TRAILS_DATABASE_URL": database.admin_url,
            "TRAILS_MASTER_KEY": MASTER_KEY.hex(),
            "TRAILS_DATA_DIR": str(tmp_path_factory.mktemp("auditor")),
        }
        [create] = [
            line
            for block in everything("sh")
            for line in block.splitlines()
            if "--name quarterly-audit" in line
        ]
        with psycopg.connect(database.admin_url, autocommit=True) as admin:
            # Administrators find the service's role with the password that the master key gives.
            _set_password(admin, app_password(Secrets("", MASTER_KEY)))
            made = run_trails(*shlex.split(create)[1:], "--json", env=env)
            _set_password(admin, APP_PASSWORD)
            assert made.code == 0, made.err
            printed = json.loads(made.out)
            [_, url] = shlex.split(printed["psql"])
            yield Auditor((program, url))
            admin.execute(f'DROP OWNED BY "{printed["login"]}"; DROP ROLE "{printed["login"]}"'.encode())


def _set_password(admin: psycopg.Connection, password: str) -> None:
    admin.execute(f"ALTER ROLE trails_app PASSWORD '{password}'".encode())


async def _told(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        clock = SetClock()
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
        await tell(World(ledger, clock))
        await ledger.close()


def test_every_question_of_the_cookbook_is_answered(auditor: Auditor) -> None:
    answers = {name: auditor.answer(run_trails("query", name, "--sql").out) for name in recipes()}
    assert len(answers) == len(recipes()) > 20
    assert answers["failed_calls"]
    silent = {name for name, rows in answers.items() if not rows}
    assert silent <= {"damaged_records"}, silent


def test_what_the_pages_show_runs_as_it_stands(auditor: Auditor) -> None:
    for query in everything("sql"):
        auditor.answer(query)


def test_it_reads_its_tenant_and_says_so(auditor: Auditor) -> None:
    assert auditor.answer("SELECT count(DISTINCT tenant_id) FROM agent_audit_trails;") == ["1"]
    assert ADMINISTRATION in auditor.answer("SELECT agent_id FROM agents;")
    described = auditor.run("\\d agents\n\\dv\n\\copy (SELECT seq FROM agent_audit_trails) TO STDOUT")
    assert described.returncode == 0, described.stderr


@pytest.mark.parametrize("way", REFUSED)
def test_no_way_out_leads_further(auditor: Auditor, way: str) -> None:
    done = auditor.run(REFUSED[way], "-v", "VERBOSITY=sqlstate")
    assert done.returncode != 0, done.stdout
    expected = TIMED_OUT if way == "sleeping for long" else DENIED
    assert done.stderr.strip().rpartition(" ")[2] == expected, done.stderr
