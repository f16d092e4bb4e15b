"""The stage of the demo: a database of its own, the real server as a process, and copies to tamper with."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from sqlalchemy import make_url

from app.cli.prepare import app_password, quiet_alembic
from app.embedded import EmbeddedPostgres
from app.errors import StartupError
from app.settings import Secrets
from db import migrate

_START_SECS: Final = 60
_ANNOUNCEMENT: Final = "Lineage Trails is at "


class Answer(msgspec.Struct, frozen=True):
    """What the service answered: HTTP status and the document."""

    status: int
    body: dict[str, Any]


class Stage:
    """Everything the demo runs on; made by ``staged``, gone after it."""

    def __init__(self, folder: Path, admin_url: str) -> None:
        self.folder = folder
        self.admin_url = admin_url
        self.master_key = secrets.token_bytes(32)
        self.operator_token = secrets.token_hex(32)
        self.base_url = ""
        self._server: subprocess.Popen[bytes] | None = None

    def environment(self, database_url: str) -> dict[str, str]:
        """The environment of a ``trails`` command on one database of this stage."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TRAILS_")}
        return {
            **ours,
            "TRAILS_DATABASE_URL": database_url,
            "TRAILS_DATA_DIR": str(self.folder / "data"),
            "TRAILS_MASTER_KEY": self.master_key.hex(),
            "TRAILS_OPERATOR_TOKEN": self.operator_token,
            "TRAILS_BIND": "127.0.0.1:0",
            "PYTHONUNBUFFERED": "1",
        }

    # --- the service --------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts ``trails serve`` on a free port.

        Raises:
            StartupError: it does not come up; shows its log.
        """
        password = app_password(Secrets(self.operator_token, self.master_key))
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                # -P: whatever lies in the present folder is not ours, even if it is called app.
                [sys.executable, "-P", "-m", "app.cli", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(migrate.app_url(self.admin_url, password)),
            )
        deadline = time.monotonic() + _START_SECS
        while time.monotonic() < deadline and self._server.poll() is None:
            said = log.read_text("utf-8", "replace")
            if _ANNOUNCEMENT in said and said.endswith("\n"):
                self.base_url = said.partition(_ANNOUNCEMENT)[2].split()[0]
                if self._ready():
                    return
            time.sleep(0.05)
        raise StartupError(f"the demo's server does not start; its log ends: {log.read_text()[-1000:]}")

    def kill(self) -> None:
        """Kills the server where it stands."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def call(
        self, path: str, body: object = None, *, token: str | None = None, key: str | None = None
    ) -> Answer:
        """One request as the operator, or with another token; POST when there is a body."""
        headers = {
            "Authorization": f"Bearer {token or self.operator_token}",
            "Content-Type": "application/json",
        }
        if key is not None:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base_url + path, data, headers)  # noqa: S310  our own server
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return Answer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.load(error))

    def _ready(self) -> bool:
        try:
            return self.call("/readyz").status == 200
        except OSError:
            return False

    # --- the database -------------------------------------------------------------------------------

    def copy(self, name: str) -> str:
        """A copy of the database under another name; the server must not run. Returns its URL."""
        original = make_url(self.admin_url)
        with self.connect(
            original.set(database="postgres").render_as_string(hide_password=False)
        ) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(name), sql.Identifier(original.database or "")
                )
            )
        url = original.set(database=name).render_as_string(hide_password=False)
        with migrate.connected(url) as prepared, prepared.begin():
            migrate.prepare_database(prepared)
        return url

    @contextmanager
    def connect(self, url: str | None = None) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The superuser's connection, each statement a transaction of its own."""
        with psycopg.connect(url or self.admin_url, autocommit=True) as connection:
            yield connection


@contextmanager
def staged() -> Iterator[Stage]:
    """A temporary folder with an embedded PostgreSQL, migrated; everything is removed afterwards.

    Raises:
        StartupError: the embedded server does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="trails-demo-"))
    embedded = EmbeddedPostgres(folder / "data")
    try:
        with embedded:
            stage = Stage(folder, embedded.url)
            quiet_alembic()
            password = app_password(Secrets(stage.operator_token, stage.master_key))
            migrate.bootstrap(embedded.url, app_password=password)
            try:
                yield stage
            finally:
                stage.kill()
    finally:
        shutil.rmtree(embedded.home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
