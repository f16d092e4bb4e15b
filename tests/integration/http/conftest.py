"""The service on a socket: real application, real PostgreSQL, real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
