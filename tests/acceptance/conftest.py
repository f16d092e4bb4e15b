"""Fixtures of the acceptance tests: real server processes on the test's database."""

from __future__ import annotations

from tests.support.server import server, servers, start_server

__all__ = ["server", "servers", "start_server"]
