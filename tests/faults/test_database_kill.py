"""PostgreSQL is killed (kill -9) at each step of an append: the whole server, or one session's process alone.

The service goes on by itself as soon as the database is there again, which the keeper of the embedded server
sees to, as in ``trails run``.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from app.cli.keep import kept_alive
from app.embedded import EmbeddedPostgres, postmaster
from db import migrate
from tests.integration.http.client import Client
from tests.support.aftermath import Work
from tests.support.faults import FULL, rounds
from tests.support.postgres import APP_PASSWORD, Database, Server
from tests.support.proxy import Fault, proxied_beside
from tests.support.server import ServerProcess

READY_SECS = 60.0

_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE usename = 'trails_app' ORDER BY state = 'active' DESC"


class Stage:
    """A database server of the test's own, and the service that reaches it through a proxy."""

    def __init__(self, own: EmbeddedPostgres, folder: Path) -> None:
        self.own = own
        server = Server.at(own.url)
        migrate.bootstrap(own.url, app_password=APP_PASSWORD)
        self.database = Database(own.url, migrate.app_url(own.url, APP_PASSWORD), server)
        self._way = proxied_beside(self.database.app_url)
        self.proxy, url = self._way.__enter__()
        self.server = ServerProcess(url, folder).start()
        self.work = Work(
            self.database.admin_url, lambda: Client(self.server.base_url, self.server.operator_token)
        )

    def close(self) -> None:
        self.server.stop()
        self._way.__exit__(None, None, None)

    def kill_everything(self) -> None:
        """Postmaster and all its processes, in this order: nobody may end in order."""
        pid = postmaster(self.own.cluster)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for process in (*_children(pid), pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def kill_one_session(self) -> None:
        """One that writes, if there is one; PostgreSQL then ends all others and recovers."""
        with psycopg.connect(self.own.url) as connection:
            row = connection.execute(_SESSIONS).fetchone()
        assert row is not None
        os.kill(row[0], signal.SIGKILL)

    def until_ready(self) -> None:
        """Returns when the service says that it can record; nobody started it again."""
        pid, deadline = self.server.pid, time.monotonic() + READY_SECS
        while Client(self.server.base_url).get("/readyz").status != 200:
            assert time.monotonic() < deadline, self.server.log
            time.sleep(0.05)
        assert self.server.pid == pid


def _children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage; commits wait for the disk."""
    folder = tmp_path_factory.mktemp("own")
    binaries = os.environ.get("TRAILS_TEST_POSTGRES_BIN")
    own = EmbeddedPostgres(folder / "cluster", binaries=Path(binaries) if binaries else None)
    try:
        with own, kept_alive(own):
            made = Stage(own, folder)
            yield made
            made.close()
    finally:
        shutil.rmtree(own.home, ignore_errors=True)


Kill = Callable[[Stage], None]
KILLS = (Stage.kill_everything, Stage.kill_one_session)


@pytest.mark.parametrize("kill", KILLS if FULL else KILLS[:1], ids=lambda kill: kill.__name__)
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_killed_before_a_statement_after_its_commit_and_in_between(
    stage: Stage, fault: Fault, kill: Kill
) -> None:
    stage.proxy.struck = lambda: kill(stage)
    requests, fired = stage.work.prepare(), stage.proxy.fired
    stage.proxy.arm(fault, b'"kind":"action_allowed"')
    stage.work.send(requests)
    assert stage.proxy.fired == fired + 1
    assert stage.work.unanswered > 0
    stage.until_ready()
    stage.work.check()


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.__name__)
def test_killed_at_any_moment_under_load(stage: Stage, kill: Kill, subtests: pytest.Subtests) -> None:
    for number in range(rounds(1, 8)):
        with subtests.test(round=number):
            requests = stage.work.prepare(agents=3)
            sending = threading.Thread(target=stage.work.send, args=(requests,))
            sending.start()
            deadline = time.monotonic() + 20
            while sum(request.answer is not None for request in requests) < 1 + 5 * number % 30:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            kill(stage)
            sending.join()
            stage.until_ready()
            stage.work.check()
