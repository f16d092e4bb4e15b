"""Fixtures of the client's tests: a service that answers as told, a spool folder, trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.client.outbox import Backoff, Outbox
from app.client.settings import service
from app.client.tracker import LineageTracker
from tests.support.scripted import Scripted, scripted

QUICK = Backoff(first=0.01, most=0.02, slow=0.02)

MakeOutbox = Callable[..., Outbox]
MakeTracker = Callable[..., LineageTracker]


@pytest.fixture
def answering() -> Iterator[Scripted]:
    """A service that stores everything until a test says otherwise."""
    with scripted() as running:
        yield running


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool folder that is not there yet."""
    return tmp_path / "state" / "spool"


@pytest.fixture
def make_outbox(answering: Scripted, spool: Path) -> Iterator[MakeOutbox]:
    """Makes outboxes to ``answering``; keyword arguments as for ``Outbox``. Closed after the test."""
    with ExitStack() as stack:

        def make(url: str | None = None, **options: object) -> Outbox:
            target = service(url or answering.url, "token-of-the-tests", "bot", {})
            options.setdefault("spool", spool)
            made = Outbox(target, **{"backoff": QUICK, **options})  # type: ignore[arg-type]
            stack.callback(made.close, 0)
            return made

        yield make


@pytest.fixture
def make_tracker(answering: Scripted, spool: Path) -> Iterator[MakeTracker]:
    """Makes trackers to ``answering``; keyword arguments as for ``LineageTracker``. Closed after the test."""
    with ExitStack() as stack:

        def make(**options: object) -> LineageTracker:
            settings = {"spool": spool, "backoff": QUICK, **options}
            made = LineageTracker(answering.url, "token-of-the-tests", "bot", **settings)  # type: ignore[arg-type]
            stack.callback(made.close, 0)
            return made

        yield make


@pytest.fixture
def tracker(make_tracker: MakeTracker) -> LineageTracker:
    """One tracker."""
    return make_tracker()
