"""Guarded programs in tests: a service, an agent with a policy, its operator, guards that are closed.

Fixtures, to be imported into a ``conftest.py``: ``service``, ``stage``, ``guard``, ``gone``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.client.guard import Guard
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database

AGENT = "worker"

POLICY: dict[str, Any] = {
    "budget": 1_000,
    "scar_limit": 50,
    "tools": {
        "search": {"cost": 1},
        "send_email": {"cost": 5, "requires_approval": True},
    },
}

DEADLINE_SECS = 20.0


class Stage:
    """A running service with one agent, seen by its operator."""

    def __init__(self, service: Running, folder: Path) -> None:
        self.url = service.url
        self.folder = folder
        self.operator = Client(service.url, service.operator_token)
        self.token = str(self.operator.create(AGENT, POLICY).token)
        self._stack = ExitStack()

    def guard(self, url: str | None = None, **options: Any) -> Guard:
        """A guard that is closed at the end of the test."""
        options.setdefault("spool", self.folder / "spool")
        return self._stack.enter_context(Guard(url or self.url, self.token, **options))

    def close(self) -> None:
        self._stack.close()

    # --- what the operator sees ---------------------------------------------------------------------

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """The agent's records of these kinds, or all."""
        found = self.operator.get(f"/v1/agents/{AGENT}/log?limit=5000").json["records"]
        return [record for record in found if not kinds or record["kind"] in kinds]

    def outcomes(self) -> list[tuple[str, str, str]]:
        """Action, status and detail of each outcome on record."""
        payloads = [record["payload"] for record in self.records("outcome")]
        return [(found["action_id"], found["status"], found["detail"]) for found in payloads]

    def asked(self) -> list[tuple[str, Any]]:
        """Tool and input of each question on record."""
        payloads = [record["payload"] for record in self.records("action_requested")]
        return [(found["tool"], found["input"]) for found in payloads]

    @property
    def spent(self) -> int:
        return int(self.operator.get(f"/v1/agents/{AGENT}").json["spent"])

    def until(self, there: Callable[[], Any]) -> Any:
        """What ``there`` finds, as soon as it finds something."""
        waited, ticks = threading.Event(), 0
        while not (found := there()):
            ticks += 1
            assert ticks < DEADLINE_SECS / 0.02, "it does not come"
            waited.wait(0.02)
        return found

    def pending(self) -> list[str]:
        """The actions that wait."""
        waiting = self.operator.get(f"/v1/agents/{AGENT}/actions/pending").json["pending"]
        return [entry["action"]["action_id"] for entry in waiting]

    def approve(self, action_id: str) -> None:
        reply = self.operator.post(f"/v1/agents/{AGENT}/actions/{action_id}/approve", {"approver": "Ada"})
        assert reply.status == 200, reply.raw

    def reject(self, action_id: str) -> None:
        body = {"approver": "Ada", "reason": "wrong address"}
        reply = self.operator.post(f"/v1/agents/{AGENT}/actions/{action_id}/reject", body)
        assert reply.status == 200, reply.raw

    @contextmanager
    def approver(self, decide: Callable[[str], None] | None = None) -> Iterator[None]:
        """Another thread, which decides on the first action that waits."""

        def run() -> None:
            [first, *_] = self.until(self.pending)
            (decide or self.approve)(first)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.fixture
def service(database: Database) -> Iterator[Running]:
    """The service on a free port, over a fresh database."""
    with serve(database.app_url) as running:
        yield running


@pytest.fixture
def stage(service: Running, tmp_path: Path) -> Iterator[Stage]:
    """The service with an agent."""
    made = Stage(service, tmp_path)
    yield made
    made.close()


@pytest.fixture
def guard(stage: Stage) -> Guard:
    """The agent's guard."""
    return stage.guard(approval_timeout=DEADLINE_SECS)


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Guard]:
    """A guard whose service is away: nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        token = f"agt_{'0' * 32}.{AGENT}.{'0' * 64}"
        with Guard(url, token, spool=tmp_path / "gone", attempts=2) as made:
            yield made
