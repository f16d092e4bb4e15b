"""pgbouncer between the service and PostgreSQL, set up as the guide says, where the machine has it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import pytest
from sqlalchemy import make_url

from db.migrate import app_url, with_login
from tests.support.pages import noted
from tests.support.postgres import APP_PASSWORD, Database

_ADMIN: Final = "pooler_admin"
_ADMIN_PASSWORD: Final = "pooler-password"  # noqa: S105  of a throw-away process
_START_SECS: Final = 20

_PLACE: Final = """
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
admin_users = {admin}
max_client_conn = 200
"""
"""What the guide leaves to its reader."""


class Pooler(msgspec.Struct, frozen=True):
    """A running pgbouncer in front of one database; ``app_url`` is the service's URL through it."""

    app_url: str
    admin_url: str
    console_url: str
    log_file: Path

    @property
    def log(self) -> str:
        """What it has logged."""
        return self.log_file.read_text("utf-8", errors="replace")

    def console(self, *commands: str) -> list[tuple[object, ...]]:
        """Carries out commands of its administration console; the rows that the last one answers."""
        rows: list[tuple[object, ...]] = []
        with psycopg.ClientCursor(psycopg.connect(self.console_url, autocommit=True)) as cursor:
            for command in commands:
                cursor.execute(command.encode())
                rows = cursor.fetchall() if cursor.description else []
        cursor.connection.close()
        return rows


def program() -> str:
    """The path of pgbouncer; skips the test where it is not installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed on this machine")
    return found


@contextmanager
def running_pooler(
    database: Database, *, mode: str = "transaction", size: int = 2, told: str | None = None
) -> Iterator[Pooler]:
    """A pgbouncer in front of ``database``, with at most ``size`` connections to it for each login.

    It is set up by the lines ``told``; default: the guide's.
    """
    binary = program()
    with tempfile.TemporaryDirectory(prefix="trails-pooler-") as name:
        folder = Path(name)
        listen = _write(folder, database, mode, size, told)
        # As root it refuses to run.
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [binary, str(folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
            )
        try:
            pooler = _pooler(database, listen, folder / "log")
            _await(pooler, process)
            yield pooler
        finally:
            process.terminate()
            try:
                process.wait(_START_SECS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _write(folder: Path, database: Database, mode: str, size: int, told: str | None) -> int:
    admin = make_url(database.admin_url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen: int = probe.getsockname()[1]
    (folder / "pgbouncer.ini").write_text(
        _as_told(
            {
                "trails = host=db.example port=5432 dbname=trails": (
                    f"{database.name} = host={admin.host} port={admin.port} dbname={database.name}"
                ),
                "pool_mode = transaction": f"pool_mode = {mode}",
                "default_pool_size = 20": f"default_pool_size = {size}",
                "/etc/pgbouncer/userlist.txt": f"{folder}/userlist.txt",
            },
            told,
        )
        + _PLACE.format(listen=listen, admin=_ADMIN)
    )
    logins = {
        "trails_app": APP_PASSWORD,
        str(admin.username): str(admin.password or ""),
        _ADMIN: _ADMIN_PASSWORD,
    }
    users = folder / "userlist.txt"
    users.write_text("".join(f'"{login}" "{password}"\n' for login, password in logins.items()))
    users.chmod(0o600)
    return listen


def _as_told(ours: Mapping[str, str], told: str | None) -> str:
    """The guide's lines (or those that are given) with what differs here."""
    lines = noted("ini pgbouncer") if told is None else told
    for theirs, mine in ours.items():
        assert lines.count(theirs) == 1, theirs
        lines = lines.replace(theirs, mine)
    return lines


def _pooler(database: Database, listen: int, log: Path) -> Pooler:
    admin = (
        make_url(database.admin_url).set(host="127.0.0.1", port=listen).render_as_string(hide_password=False)
    )
    console = make_url(admin).set(database="pgbouncer").render_as_string(hide_password=False)
    return Pooler(app_url(admin, APP_PASSWORD), admin, with_login(console, _ADMIN, _ADMIN_PASSWORD), log)


def _await(pooler: Pooler, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECS
    while True:
        assert process.poll() is None, pooler.log
        try:
            pooler.console("SHOW VERSION")
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, pooler.log
            time.sleep(0.05)
        else:
            return
