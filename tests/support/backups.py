"""Backups in tests: programs of the server's own version, the guide's commands, a database worth saving."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
import psycopg
import pytest
from psycopg import sql

from app.cli.prepare import app_password
from app.embedded import EmbeddedPostgres, locate_binaries
from app.errors import StartupError
from app.ledger import Ledger
from app.ledger.feed.batches import Wanted
from app.ledger.webhooks.hooks import NewWebhook
from app.principal import Permission
from app.settings import Secrets
from db import checks, migrate
from db.pool import create_pool
from tests.support.cli import run_trails
from tests.support.ledgers import MASTER_KEY, Caller, posted, spans
from tests.support.pages import noted
from tests.support.postgres import Server
from tests.support.server import ROOT

SHARED_SESSION: Final = "00000000-0000-0000-0000-00000000beef"

_RAW: Final = """
SELECT 'relation', c.relname, c.relkind::text, c.relacl::text, c.reloptions::text, c.relrowsecurity::text,
       c.relforcerowsecurity::text
  FROM pg_class AS c WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind IN ('r', 'v')
UNION ALL
SELECT 'column', a.attrelid::regclass::text, a.attname, a.attnum::text, a.attgenerated::text, a.attacl::text,
       pg_get_expr(d.adbin, d.adrelid)
  FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND a.attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'trails'::regnamespace
                                          AND relkind IN ('r', 'v'))
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname, tgenabled::text, tgtype::text, '', ''
  FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', oid::regprocedure::text, proacl::text, prosecdef::text, '', '', ''
  FROM pg_proc WHERE pronamespace = 'trails'::regnamespace
UNION ALL
SELECT 'index', indexdef, '', '', '', '', '' FROM pg_indexes WHERE schemaname = 'trails'
UNION ALL
SELECT 'policy', tablename, policyname, cmd, roles::text, qual, with_check FROM pg_policies
UNION ALL
SELECT 'owner', n.nspname, pg_get_userbyid(n.nspowner), n.nspacl::text, '', '', ''
  FROM pg_namespace AS n WHERE n.nspname = 'trails'
UNION ALL
SELECT 'default', pg_get_userbyid(defaclrole), defaclobjtype::text, defaclacl::text, '', '', ''
  FROM pg_default_acl
UNION ALL
SELECT 'setting', unnest(setconfig), '', '', '', '', ''
  FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL
SELECT 'right', pg_get_userbyid(x.grantee), x.privilege_type, '', '', '', ''
  FROM pg_database AS d, aclexplode(d.datacl) AS x
 WHERE d.datname = current_database() AND x.grantee <> d.datdba
"""
"""What the schema is, and what a database is beside it, as the catalogs have it."""


def programs(*names: str) -> Path:
    """The folder with these programs of the tests' server; skips the test where one is missing."""
    given = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    try:
        folder = Path(given) if given else locate_binaries()
    except StartupError as error:
        pytest.skip(str(error))
    if missing := [name for name in names if not (folder / name).is_file()]:
        pytest.skip(f"{folder} has no {', '.join(missing)}")
    return folder


def block(note: str) -> str:
    """The shell block of the guides whose fence says ``sh note``."""
    return noted(f"sh {note}")


def shell(
    script: str, folder: Path, url: str, *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs commands of an administrator in a folder, on the database of ``url``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAILS_", "PG"))}
    path = os.pathsep.join([str(programs()), str(Path(sys.executable).parent), kept.get("PATH", "")])
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=folder,
        env={
            **kept,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "TRAILS_DATABASE_URL": url,
            "TRAILS_MASTER_KEY": MASTER_KEY.hex(),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def done(result: subprocess.CompletedProcess[str]) -> str:
    """The output of commands that went well, and had nothing to complain of."""
    assert result.returncode == 0, result.stdout + result.stderr
    complaints = [
        line for line in result.stderr.splitlines() if re.search("error|warning", line, re.IGNORECASE)
    ]
    assert not complaints, complaints
    return result.stdout


@contextmanager
def other_server(folder: Path, **settings: str) -> Iterator[EmbeddedPostgres]:
    """Another cluster than the tests' own, without any role of ours."""
    given = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    server = EmbeddedPostgres(
        folder,
        binaries=Path(given) if given else None,
        settings={"fsync": "off", "trails.disposable": "on", **settings},
    )
    try:
        with server:
            yield server
    finally:
        shutil.rmtree(server.home, ignore_errors=True)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What a superuser's statement answers; nothing for one that answers nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def make_database(server: Server, name: str, *, owner: str = "") -> str:
    """An empty database; the URL of the server's superuser."""
    owned = f" OWNER {owner}" if owner else ""
    query(server.url("postgres"), f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'{owned}")
    return server.url(name)


class Contents(msgspec.Struct, frozen=True):
    """What two databases are compared by."""

    rows: dict[str, bytes]
    catalog: dict[str, str]
    raw: list[tuple[str, ...]]


def contents(url: str) -> Contents:
    """Every row of every table to the byte, and the catalog, as our check and as PostgreSQL have it."""
    rows = {}
    with psycopg.connect(url) as connection:
        for (table,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'trails'::regnamespace AND relkind = 'r'"
        ).fetchall():
            name = sql.Identifier("trails", table)
            statement = sql.SQL('COPY (SELECT * FROM {} AS t ORDER BY t::text COLLATE "C") TO STDOUT')
            with connection.cursor().copy(statement.format(name)) as copy:
                rows[table] = b"".join(bytes(part) for part in copy)
        raw = connection.execute(_RAW.encode()).fetchall()
    return Contents(rows, asyncio.run(_catalog(url)), sorted(raw, key=repr))


async def _catalog(url: str) -> dict[str, str]:
    connection = await asyncpg.connect(url)
    try:
        return await checks.catalog(connection)
    finally:
        await connection.close()


def service_url(admin_url: str) -> str:
    """The service's URL, where its role has the password that comes from the master key."""
    return migrate.app_url(admin_url, app_password(Secrets("", MASTER_KEY)))


def fill(admin_url: str, folder: Path) -> None:
    """Makes a database with what an installation has: tenants, guarded and observed agents, spans, keys."""
    env = environment(admin_url, folder)
    for command in (
        ["migrate"],
        ["key", "issue", "--role", "writer", "--name", "ingest"],
        ["tenant", "create", "acme", "--name", "Acme", "--operator", "Ada"],
        ["tenant", "suspend", "acme", "--reason", "late"],
    ):
        result = run_trails(*command, env=env)
        assert result.code == 0, result.err
    asyncio.run(_fill(service_url(admin_url)))


def environment(admin_url: str, folder: Path) -> dict[str, str]:
    """The environment of an administrator's command."""
    return {
        "TRAILS_DATABASE_URL": admin_url,
        "TRAILS_MASTER_KEY": MASTER_KEY.hex(),
        "TRAILS_DATA_DIR": str(folder / "data"),
    }


async def _fill(url: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        scout, other = Caller(ledger, "scout"), Caller(ledger, "other")
        wanted = NewWebhook("tell", "https://example.com/told", Wanted())
        await ledger.webhooks.create(scout.may(Permission.SET_WEBHOOKS), wanted, ())
        await scout.create()
        await other.observe()
        for number in range(3):
            decision = await scout.ask("search", {"q": f"ümlaut {number}", "half": 0.5, "long": 10**30})
            await scout.report(decision.action_id, "failure" if number == 1 else "success", "tab\there")
            await scout.post(
                spans(number + 1, session_id=SHARED_SESSION), posted({"type": "seen", "data": {}})
            )
            await other.post(spans(number + 1, trace=number + 2, session_id=SHARED_SESSION))
        await ledger.close()


def head(admin_url: str, agent_id: str = "scout") -> tuple[int, str]:
    """Position and hash of an agent's newest record."""
    [found] = query(
        admin_url,
        "SELECT seq, hash FROM trails.agent_audit_trails "
        f"WHERE agent_id = '{agent_id}' ORDER BY seq DESC LIMIT 1",
    )
    return found[0], found[1]


def append_one(admin_url: str, agent_id: str = "scout") -> tuple[int, str]:
    """One more act of an agent, by a service that has just been started; the first new record's place."""
    before = head(admin_url, agent_id)[0]
    asyncio.run(_append(service_url(admin_url), agent_id))
    [found] = query(
        admin_url,
        "SELECT seq, prev_hash FROM trails.agent_audit_trails "
        f"WHERE agent_id = '{agent_id}' AND seq > {before} ORDER BY seq LIMIT 1",
    )
    return found[0], found[1]


async def _append(url: str, agent_id: str) -> None:
    async with await create_pool(url, max_size=2) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        try:
            await Caller(ledger, agent_id).ask("search", "after the restore")
        finally:
            await ledger.close()
