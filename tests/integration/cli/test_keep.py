"""An embedded PostgreSQL that dies under the service comes back, or the service ends and says why."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.keep import kept_alive
from app.cli.server import stopped_by_signals
from app.embedded import EmbeddedPostgres, postmaster
from app.errors import StartupError


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A running server."""
    settings = {"fsync": "off"}
    server = EmbeddedPostgres(tmp_path / "data", settings=settings)
    with server:
        yield server
    shutil.rmtree(server.home, ignore_errors=True)


def kill(server: EmbeddedPostgres) -> None:
    pid = postmaster(server.cluster)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_server_that_cannot_be_brought_back_ends_the_service(
    embedded: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.embedded.server._REVIVALS", 1)
    control = embedded.cluster / "global/pg_control"
    away = control.with_name("away")
    control.rename(away)
    with pytest.raises(StartupError, match="died, and does not start again"):
        serve_until_killed(embedded)
    away.rename(control)


def serve_until_killed(embedded: EmbeddedPostgres) -> None:
    with stopped_by_signals(), kept_alive(embedded):
        kill(embedded)
        while True:
            signal.pause()


def test_a_server_that_was_stopped_on_purpose_stays_stopped(embedded: EmbeddedPostgres) -> None:
    with kept_alive(embedded):
        pass
    embedded.stop()
    assert postmaster(embedded.cluster) is None


def test_nothing_is_kept_where_the_database_is_somebody_elses() -> None:
    with kept_alive(None):
        pass
