"""A running service for tests: ``trails serve`` as processes of their own on the test's database.

Fixtures (import them into a ``conftest.py``): ``server``, one process; ``servers``, two on one database;
``start_server``, a factory for tests that stop, kill and start again. All on the ``database`` fixture, with
one master key and one operator token a test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import httpx2
import pytest

from tests.support.postgres import Database

OPERATOR_TOKEN = "operator-token-of-the-tests-0123456789abcdef"  # noqa: S105  of throw-away servers
MASTER_KEY = "5e" * 32

_START_SECS = 60
_STOP_SECS = 40

ROOT = Path(__file__).resolve().parents[2]


def service_environment(database_url: str, **more: str) -> dict[str, str]:
    """The environment of any ``trails`` command on a database, nothing of ours leaking in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAILS_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TRAILS_DATABASE_URL": database_url,
        "TRAILS_MASTER_KEY": MASTER_KEY,
        "TRAILS_OPERATOR_TOKEN": OPERATOR_TOKEN,
        **more,
    }


class ServerProcess:
    """``trails serve`` in a process of its own.

    Args:
        database_url: what it serves; usually ``database.app_url``.
        folder: where its log goes.
        env: further environment variables, such as ``TRAILS_POOL_SIZE``.
        arguments: further arguments of ``trails serve``.
    """

    operator_token = OPERATOR_TOKEN

    def __init__(
        self,
        database_url: str,
        folder: Path,
        *,
        env: Mapping[str, str] = MappingProxyType({}),
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.database_url = database_url
        self.log_file = folder / f"server-{time.monotonic_ns()}.log"
        self._env = {
            "TRAILS_DATA_DIR": str(folder / "data"),
            "TRAILS_BIND": "127.0.0.1:0",
            "TRAILS_STOP_DELAY_SECS": "0",
            **env,
        }
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    @property
    def pid(self) -> int:
        """Process id of the running server (of its parent process, with several workers)."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has printed and logged since its first start."""
        return self.log_file.read_text("utf-8", errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        """The operator's authorization."""
        return {"Authorization": f"Bearer {self.operator_token}"}

    def client(self, *, timeout: float = 30) -> httpx2.Client:
        """The operator's HTTP client; the caller closes it."""
        return httpx2.Client(base_url=self.base_url, headers=self.headers, timeout=timeout)

    def start(self, *, ready: bool = True) -> Self:
        """Starts it; the port stays the same when it is started again. Waits for ``/readyz``.

        With ``ready=False`` it returns as soon as the process runs, for starts that are to fail.
        """
        begins = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "serve", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=service_environment(self.database_url, **self._env),
            )
        if ready:
            self._await_ready(begins)
        return self

    def wait(self) -> int:
        """Waits until it ends by itself; returns the exit code."""
        assert self._process is not None, "not started"
        return self._process.wait(_START_SECS)

    def stop(self) -> int:
        """Asks it to stop (SIGTERM) and waits; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kills it (SIGKILL): nothing of it runs to its end."""
        return self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(_STOP_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server does not stop; its log:\n{self.log}") from None

    def _await_ready(self, begins: int) -> None:
        deadline = time.monotonic() + _START_SECS
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(
                    f"the server ended with {self._process.returncode}; its log:\n{self.log}"
                )
            self.base_url = self._announced(begins)
            if self.base_url and self._is_ready():
                self._env["TRAILS_BIND"] = self.base_url.removeprefix("http://")
                return
            time.sleep(0.05)
        raise AssertionError(f"the server does not become ready; its log:\n{self.log}")

    def _announced(self, begins: int) -> str:
        """The URL that it printed: it chose a free port itself, so that none can be taken meanwhile."""
        lines = self.log_file.read_bytes()[begins:].decode("utf-8", "replace").splitlines()
        announced = [line for line in lines if line.startswith("Lineage Trails is at ")]
        return announced[-1].rpartition(" ")[2] if announced else ""

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.base_url}/readyz", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(database: Database, tmp_path: Path) -> Iterator[StartServer]:
    """Makes started servers on the test's database; keyword arguments as for ``ServerProcess``."""
    with ExitStack() as stack:

        def start(**options: object) -> ServerProcess:
            url = str(options.pop("database_url", database.app_url))
            return stack.enter_context(ServerProcess(url, tmp_path, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    """One running server."""
    return start_server()


@pytest.fixture
def servers(start_server: StartServer) -> list[ServerProcess]:
    """Two server processes on one database."""
    return [start_server(), start_server()]
