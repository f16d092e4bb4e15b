"""Fixtures of the isolation suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pgbouncer import Pooler, running_pooler
from tests.support.postgres import Database
from tests.support.server import server, start_server

__all__ = ["server", "start_server"]


@pytest.fixture
def pooler(database: Database) -> Iterator[Pooler]:
    """A pgbouncer in transaction mode before the test's database, with two connections to the server."""
    with running_pooler(database) as found:
        yield found
