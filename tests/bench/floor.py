"""The floor of the guard rows: same server, same framework, same driver, one plain INSERT a request.

No signature, no chain, no checks: the least that a service could do that keeps a request durable.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from litestar import Litestar, Request, Response, post

TABLE = "CREATE TABLE IF NOT EXISTS floor (id bigserial PRIMARY KEY, data jsonb NOT NULL)"
INSERT = "INSERT INTO floor (data) VALUES ($1)"


@post("/v1/agents/{agent_id:str}/actions", status_code=200)
async def store(request: Request[Any, Any, Any], agent_id: str) -> Response[bytes]:  # noqa: ARG001  same route
    """Stores the request's JSON as it is."""
    body = await request.body()
    await request.app.state.pool.execute(INSERT, body.decode())
    return Response(b'{"ok":true}', media_type="application/json")


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["TRAILS_BENCH_FLOOR_URL"], min_size=8, max_size=8) as pool:
        await pool.execute(TABLE)
        app.state.pool = pool
        yield


def app() -> Litestar:
    """The floor's application."""
    return Litestar([store], lifespan=[_lifespan], openapi_config=None, logging_config=None)
