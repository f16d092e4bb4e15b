"""Apache Superset, installed into a virtual environment of its own and run on this machine alone.

Its metadata are in SQLite. The environment is kept (below ``$XDG_CACHE_HOME``, by default ``~/.cache``),
named by what is in it, since it takes minutes to make.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

INSTALL_SECS: Final = 3_000
COMMAND_SECS: Final = 600
START_SECS: Final = 180
ANSWER_SECS: Final = 120

_CONFIG: Final = """
SECRET_KEY = {key!r}
SQLALCHEMY_DATABASE_URI = {metadata!r}
# Tokens alone are used here, by one test.
WTF_CSRF_ENABLED = False
TALISMAN_ENABLED = False
RATELIMIT_ENABLED = False
"""
_ADMIN: Final = ("--username", "admin", "--firstname", "A", "--lastname", "B", "--email", "a@example.com")


class Superset(msgspec.Struct, frozen=True):
    """A running Superset, and its administrator's token."""

    url: str
    password: str
    token: str

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """What is answered to a POST that is not refused."""
        return self._answer("POST", path, json=body)

    def get(self, path: str, **query: str) -> Any:
        """What is answered to a GET that is not refused."""
        return self._answer("GET", path, params=query)

    def _answer(self, method: str, path: str, **request: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        reply = httpx2.request(method, self.url + path, headers=headers, timeout=ANSWER_SECS, **request)
        assert reply.status_code < HTTPStatus.BAD_REQUEST, reply.text
        return reply.json()


def environment(requirements: Path) -> Path:
    """The virtual environment with exactly these packages, made if it is not there."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "lineage-trails" / f"superset-{digest}"
    ready = folder / ".ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=COMMAND_SECS)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "-r", str(requirements)], check=True, timeout=INSTALL_SECS)
        ready.touch()
    return folder


@contextmanager
def running_superset(installed: Path, home: Path) -> Iterator[Superset]:
    """Superset on a free port of this machine, with a new administrator and no data."""
    password = secrets.token_urlsafe(16)
    config = home / "superset_config.py"
    config.write_text(
        _CONFIG.format(key=secrets.token_hex(32), metadata=f"sqlite:///{home / 'superset.db'}"), "utf-8"
    )
    told = {"SUPERSET_CONFIG_PATH": str(config), "SUPERSET_HOME": str(home), "FLASK_APP": "superset"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAILS_", "PG"))}
    program = str(installed / "bin" / "superset")
    with (home / "superset.log").open("wb") as log:

        def run(*arguments: str) -> None:
            subprocess.run(
                [program, *arguments],
                env=kept | told,
                stdout=log,
                stderr=log,
                check=True,
                timeout=COMMAND_SECS,
            )

        run("db", "upgrade")
        run("fab", "create-admin", *_ADMIN, "--password", password)
        run("init")
        port = _free_port()
        server = subprocess.Popen(
            [program, "run", "--host", "127.0.0.1", "--port", str(port), "--with-threads"],
            env=kept | told,
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(server, url)
            yield Superset(url, password, _token(url, password))
        finally:
            server.terminate()
            server.wait(timeout=60)


def _token(url: str, password: str) -> str:
    body = {"username": "admin", "password": password, "provider": "db", "refresh": False}
    reply = httpx2.post(f"{url}/api/v1/security/login", json=body, timeout=ANSWER_SECS)
    return str(reply.json()["access_token"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx2.get(f"{url}/health", timeout=5).status_code == HTTPStatus.OK:
                return
        except httpx2.HTTPError:
            time.sleep(0.5)
    raise RuntimeError("Superset did not start; see superset.log in its folder")
