"""A database of one's own is set up and served by the commands of the guide."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path

import httpx2
from sqlalchemy import make_url

from tests.support.backups import make_database, other_server
from tests.support.pages import noted
from tests.support.postgres import Server

START_SECS = 120


def test_it_is_migrated_and_served(tmp_path: Path) -> None:
    with other_server(tmp_path / "server") as server:
        url = make_database(Server.at(server.url), "ours")
        script = noted("sh ours").replace("postgresql://admin:secret@db.example/trails", url)
        place = make_url(url)
        script = script.replace("@db.example/trails", f"@{place.host}:{place.port}/ours")
        assert "db.example" not in script
        port = _free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAILS_")}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment["TRAILS_BIND"] = f"127.0.0.1:{port}"
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(
                ["bash", "-c", f"set -euo pipefail\n{script}"],
                cwd=tmp_path,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as shell,
        ):
            try:
                assert _is_ready(shell, port), (tmp_path / "log").read_text()
            finally:
                os.killpg(shell.pid, signal.SIGTERM)
                shell.wait(60)
    assert (tmp_path / "trails-data" / "keys" / "master.key").exists()


def _is_ready(shell: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECS
    while time.monotonic() < deadline and shell.poll() is None:
        try:
            if httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == HTTPStatus.OK:
                return True
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
