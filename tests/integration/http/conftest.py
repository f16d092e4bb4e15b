"""The service on a socket: real application, real PostgreSQL, real HTTP server."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from app import telemetry
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database


@pytest.fixture
def service(database: Database) -> Iterator[Running]:
    """The service on a free port, over a fresh database; stopped at the end of the test."""
    with serve(database.app_url) as running:
        yield running


@pytest.fixture
def operator(service: Running) -> Client:
    """A client with the operator's token."""
    return Client(service.url, service.operator_token)


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the process logs, in either format, at the level that says most."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    lines = io.StringIO()
    telemetry.configure("debug", request.param, stream=lines)
    yield lines
    root.handlers[:], access.disabled = handlers, disabled
    root.setLevel(level)
