"""``server``, ``servers`` and ``start_server``: running ``trails serve`` processes."""

from __future__ import annotations

from tests.support.server import server, servers, start_server

__all__ = ["server", "servers", "start_server"]
