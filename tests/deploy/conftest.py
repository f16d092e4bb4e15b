"""Fixtures of running services."""

from tests.support.server import server, start_server

__all__ = ["server", "start_server"]
