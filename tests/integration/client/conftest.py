"""Fixtures: a real service, an observed agent in it, and trackers that post to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.client.outbox import Backoff
from app.client.tracker import LineageTracker
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database

QUICK = Backoff(first=0.01, most=0.05, slow=0.05)
AGENT = "bot"

MakeTracker = Callable[..., LineageTracker]


@pytest.fixture
def service(database: Database) -> Iterator[Running]:
    """The service on a free port, over a fresh database; stopped at the end of the test."""
    with serve(database.app_url) as running:
        yield running


@pytest.fixture
def operator(service: Running) -> Client:
    """A client with the operator's token."""
    return Client(service.url, service.operator_token)


@pytest.fixture
def token(operator: Client) -> str:
    """The token of the observed agent ``bot``."""
    reply = operator.post("/v1/agents", {"agent_id": AGENT, "policy": None})
    assert reply.status in {200, 201}, reply.raw
    return str(reply.json["token"])


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool folder that is not there yet."""
    return tmp_path / "spool"


@pytest.fixture
def make_tracker(service: Running, token: str, spool: Path) -> Iterator[MakeTracker]:
    """Makes trackers to ``service``; keyword arguments as for ``LineageTracker``. Closed after the test."""
    with ExitStack() as stack:

        def make(**options: object) -> LineageTracker:
            settings = {"url": service.url, "token": token, "spool": spool, "backoff": QUICK, **options}
            made = LineageTracker(**settings)  # type: ignore[arg-type]  # as a test gives them
            stack.callback(made.close, 0)
            return made

        yield make


@pytest.fixture
def tracker(make_tracker: MakeTracker) -> LineageTracker:
    """One tracker of the agent ``bot``."""
    return make_tracker()
