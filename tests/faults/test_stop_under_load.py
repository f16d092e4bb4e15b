"""SIGTERM under load (case H27): readiness goes red first, and what was answered is on record."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.integration.http.client import Client
from tests.support.aftermath import Request, Work, event, spans
from tests.support.faults import rounds
from tests.support.postgres import Database
from tests.support.server import StartServer

SENDERS = 4
EVERY_SECS = 0.02
"""Each sender's pace: 200 a second in all."""

ENOUGH = rounds(60, 400)
"""Acknowledged before the signal comes."""

DELAY_SECS = 1
END_SECS = DELAY_SECS + 30
"""What the guides say."""


class Load:
    """Clients that send until the service takes no more connections."""

    def __init__(self, work: Work, url: str) -> None:
        self.work = work
        self.url = url
        self.signalled = threading.Event()
        self.seen: list[str] = []
        """What /readyz said, each time that it changed."""
        self.answered_while_red = 0

    @contextmanager
    def running(self, agent: str) -> Iterator[None]:
        """Within the block there is load; at its end the service has gone."""
        makers: list[Callable[[], Request]] = [lambda: event(agent)] * SENDERS
        makers.append(lambda: spans("sender"))
        threads = [threading.Thread(target=self._send, args=(make,)) for make in makers]
        threads.append(threading.Thread(target=self._watch))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.signalled.set()
            for thread in threads:
                thread.join()

    def until_acknowledged(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while sum(request.answer is not None for request in self.work.requests) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _send(self, make: Callable[[], Request]) -> None:
        client = self.work.client()
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            request = make()
            self.work.requests.append(request)
            was_red = "red" in self.seen
            request.answer = request.send(client)
            self.answered_while_red += was_red and request.answer is not None
            if request.answer is None and self.signalled.is_set():
                return
            time.sleep(EVERY_SECS)

    def _watch(self) -> None:
        deadline = time.monotonic() + 90
        while self._look() != "gone" and time.monotonic() < deadline:
            time.sleep(0.01)

    def _look(self) -> str:
        try:
            reply = Client(self.url).get("/readyz")
            is_leaving = b"shutting down" in reply.raw
            said = "red" if is_leaving else "green" if reply.status == 200 else "in trouble"
        except (http.client.HTTPException, ConnectionError, urllib.error.URLError):
            said = "gone"
        if self.seen[-1:] != [said]:
            self.seen.append(said)
        return said


@pytest.mark.parametrize("workers", [1, 2])
def test_h27_what_was_answered_is_on_record_and_the_rest_can_be_sent_again(
    workers: int, database: Database, start_server: StartServer
) -> None:
    server = start_server(env={"TRAILS_WORKERS": str(workers), "TRAILS_STOP_DELAY_SECS": str(DELAY_SECS)})
    work = Work(database.admin_url, lambda: Client(server.base_url, server.operator_token))
    work.client().create("busy", None)
    load = Load(work, server.base_url)
    with load.running("busy"):
        load.until_acknowledged(ENOUGH)
        load.signalled.set()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < END_SECS
    assert load.seen[0] == "green"
    assert load.seen[-2:] == ["red", "gone"]
    assert load.answered_while_red > 0
    assert "Traceback" not in server.log
    server.start()
    work.check()


def test_h27_a_second_signal_ends_the_wait(start_server: StartServer) -> None:
    server = start_server(env={"TRAILS_STOP_DELAY_SECS": "600"})
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while Client(server.base_url).get("/readyz").status != 503:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.stop() == 0
