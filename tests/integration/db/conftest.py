"""In this folder ``server`` is the PostgreSQL server; elsewhere it is a running ``trails serve``."""

from __future__ import annotations

import pytest

from tests.support.postgres import Server


@pytest.fixture
def server(postgres: Server) -> Server:
    """The session's PostgreSQL server."""
    return postgres
