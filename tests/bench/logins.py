"""SQL logins of auditors, made by the product."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from app.cli.prepare import app_password
from app.settings import Secrets
from db.schema import APP_ROLE
from tests.bench.stage import MASTER_KEY
from tests.support.cli import run_trails
from tests.support.postgres import APP_PASSWORD, Database


@contextmanager
def sql_login(database: Database, name: str) -> Iterator[str]:
    """The URL of a login for the default tenant, which must be there; the login is gone afterwards."""
    printed = json.loads(_trails(database, "create", "--name", name, "--json"))
    [_, url] = shlex.split(printed["psql"])
    try:
        yield url
    finally:
        _trails(database, "drop", printed["login"])


def _trails(database: Database, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder, _administrators_password(database):
        env = administrator(database, folder)
        done = run_trails("sql-login", *arguments, "--tenant", "default", env=env)
    if done.code:
        raise RuntimeError(done.err)
    return done.out


def administrator(database: Database, folder: str) -> dict[str, str]:
    """The settings of a ``trails`` command that an administrator gives."""
    return {
        "TRAILS_DATABASE_URL": database.admin_url,
        "TRAILS_MASTER_KEY": MASTER_KEY,
        "TRAILS_DATA_DIR": folder,
    }


@contextmanager
def _administrators_password(database: Database) -> Iterator[None]:
    """Administrators find the service's role with the password that the master key gives."""
    with psycopg.connect(database.admin_url, autocommit=True) as admin:
        _set_password(admin, app_password(Secrets("", bytes.fromhex(MASTER_KEY))))
        yield
        _set_password(admin, APP_PASSWORD)


def _set_password(admin: psycopg.Connection, password: str) -> None:
    statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
    admin.execute(statement.format(sql.Identifier(APP_ROLE), sql.Literal(password)))
