"""The service as a process of its own: memory, signals, secrets (cases H01, H19, H27)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.integration.http.client import Client
from tests.integration.http.wire import chunked, converse, post_routes, request
from tests.support.postgres import Database

START_SECS = 30.0
FLAT_KIB = 24 * 1024
"""How far the peak of memory may rise: a few buffers, nothing that grows with the body."""


class Process(msgspec.Struct, frozen=True):
    """A running service process."""

    port: int
    pid: int
    log: Path
    data: Path

    @property
    def token(self) -> str:
        return (self.data / "keys/operator.token").read_text().strip()

    def peak_kib(self) -> int:
        """The largest resident memory so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@contextmanager
def started(database: Database, folder: Path) -> Iterator[tuple[Process, subprocess.Popen[bytes]]]:
    """``trails serve`` on a free port, with secrets of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    environ = {
        **os.environ,
        "TRAILS_DATABASE_URL": database.app_url,
        "TRAILS_DATA_DIR": str(folder / "data"),
        "TRAILS_LOG_FORMAT": "json",
        "TRAILS_BIND": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "app.cli", "serve"]
    with (
        log.open("wb") as lines,
        subprocess.Popen(command, env=environ, stderr=lines, stdout=subprocess.DEVNULL) as process,
    ):
        try:
            _wait_until_ready(port, process, log)
            yield Process(port, process.pid, log, folder / "data"), process
        finally:
            process.terminate()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if request(port, "GET", "/readyz").status == 200:
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())


def test_h01_memory_stays_flat_under_a_huge_chunked_body(database: Database, tmp_path: Path) -> None:
    with started(database, tmp_path) as (service, _):
        headers = (f"Authorization: Bearer {service.token}", "Content-Type: application/json")
        # Once within the limit, so that what a full body costs is in the peak already.
        request(service.port, "POST", "/v1/agents", *headers, body=b" " * (4 * 1024 * 1024))
        before = service.peak_kib()
        for path in post_routes()[:2]:
            body = chunked(200 * 1024 * 1024)
            reply = request(service.port, "POST", path, *headers, "Transfer-Encoding: chunked", body=body)
            assert reply.sent < 100 * 1024 * 1024  # it was cut off, with or without having read the answer
        assert service.peak_kib() - before < FLAT_KIB
        assert Client(f"http://127.0.0.1:{service.port}").get("/healthz").status == 200


@pytest.mark.parametrize("piece", [b"x-aaaa: " + b"b" * 8000 + b"\r\n", b"b" * 8192], ids=["many", "one"])
def test_h01_memory_stays_flat_under_trailers_without_end(
    database: Database, tmp_path: Path, piece: bytes
) -> None:
    head = b"POST /v1/agents HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n%s\r\n0\r\nx: "
    with started(database, tmp_path) as (service, _):
        before = service.peak_kib()
        for more in (b"", b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\n"):
            named = more % service.token.encode() if more else more
            converse(service.port, head % named, *[piece] * (128 * 1024 * 1024 // len(piece)))
        assert service.peak_kib() - before < FLAT_KIB
        assert Client(f"http://127.0.0.1:{service.port}").get("/healthz").status == 200


def test_h27_a_signal_ends_it_cleanly_and_the_log_holds_no_token(database: Database, tmp_path: Path) -> None:
    with started(database, tmp_path) as (service, process):
        operator = Client(f"http://127.0.0.1:{service.port}", service.token)
        agent = operator.create("mailer")
        assert agent.post("/v1/agents/mailer/actions", {"tool": "search"}).status == 200
        assert operator.get(f"/v1/agents?token={service.token}").status == 400
        assert agent.token is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECS) in {0, -signal.SIGTERM}
        written = service.log.read_text()
    assert service.token not in written
    assert agent.token not in written
    for line in written.splitlines():
        assert msgspec.json.decode(line)["level"]
    with started(database, tmp_path) as (service, _):
        operator = Client(f"http://127.0.0.1:{service.port}", operator.token)
        assert operator.get("/v1/agents/mailer").json["spent"] == 1
        assert agent.as_(agent.token).token == operator.get("/v1/agents/mailer/token").json["token"]
