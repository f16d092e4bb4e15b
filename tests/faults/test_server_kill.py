"""The server is killed (kill -9) at each step of an append, with requests of every kind under way.

Then it is started again, and its clients send once more what was not answered, under the same keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.integration.http.client import Client
from tests.support.aftermath import Work
from tests.support.faults import FULL, rounds
from tests.support.postgres import Database
from tests.support.proxy import Fault, Proxy, proxied_beside
from tests.support.server import ServerProcess, StartServer

KINDS = ("action_allowed", "event", "trace", "outcome", "genesis")
"""What stands in the statement at which the server is killed."""

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def way(database: Database) -> Iterator[tuple[Proxy, str]]:
    """The proxy between server and database, and the URL through it."""
    with proxied_beside(database.app_url) as found:
        yield found


def worker(database: Database, server: ServerProcess) -> Work:
    return Work(database.admin_url, lambda: Client(server.base_url, server.operator_token))


@contextmanager
def held_by_lock(database: Database) -> Iterator[psycopg.Connection]:
    """Nothing can be appended while the block runs; everything can be read."""
    with psycopg.connect(database.admin_url) as connection:
        connection.execute("LOCK TABLE trails.agent_audit_trails IN SHARE MODE")
        yield connection
        connection.rollback()


def until_waiting(database: Database) -> None:
    """Returns when a statement waits for a lock."""
    deadline = time.monotonic() + 20
    with psycopg.connect(database.admin_url, autocommit=True) as connection:
        while connection.execute(_WAITING).fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_killed_before_the_statement_and_before_its_answer_and_while_nobody_knows(
    fault: Fault,
    way: tuple[Proxy, str],
    database: Database,
    start_server: StartServer,
    subtests: pytest.Subtests,
) -> None:
    proxy, url = way
    server = start_server(database_url=url)
    work = worker(database, server)
    proxy.struck = server.kill
    kinds = KINDS if FULL else KINDS[list(Fault).index(fault) :][:1]
    for kind in kinds:
        with subtests.test(kind=kind):
            requests, fired = work.prepare(), proxy.fired
            proxy.arm(fault, f'"kind":"{kind}"'.encode())
            work.send(requests)
            assert proxy.fired == fired + 1
            assert work.unanswered > 0
            server.start()
            work.check()


def test_killed_while_the_statement_runs(
    database: Database, start_server: StartServer, subtests: pytest.Subtests
) -> None:
    """The database carries it out although nobody is there any more to hear of it."""
    server = start_server()
    work = worker(database, server)
    for number in range(rounds(1, 6)):
        with subtests.test(round=number):
            requests = work.prepare()
            with held_by_lock(database):
                sending = threading.Thread(target=work.send, args=(requests,))
                sending.start()
                until_waiting(database)
                server.kill()
                sending.join()
            assert work.unanswered > 0
            server.start()
            work.check()


def test_killed_again_and_again_under_load(
    database: Database, start_server: StartServer, subtests: pytest.Subtests
) -> None:
    """At whatever moment: after so many answers."""
    server = start_server()
    work = worker(database, server)
    for number in range(rounds(1, 12)):
        with subtests.test(round=number):
            requests = work.prepare(agents=4)
            sending = threading.Thread(target=work.send, args=(requests,))
            sending.start()
            deadline = time.monotonic() + 20
            while sum(request.answer is not None for request in requests) < 1 + 7 * number % 40:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            server.kill()
            sending.join()
            server.start()
            work.check()
