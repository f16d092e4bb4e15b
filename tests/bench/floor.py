"""The floor of the guard rows: same server, same framework, same driver, one plain INSERT a request.

No signature, no chain, no checks: the plainest service that keeps a request durable, as people write it. It
is not the least that could be done: a pool that resets no connection would save a round trip a request.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from litestar import Litestar, Request, Response, post

TABLE = """
CREATE SCHEMA IF NOT EXISTS plain;
CREATE TABLE IF NOT EXISTS plain.requests (id bigserial PRIMARY KEY, data jsonb NOT NULL)
"""
INSERT = "INSERT INTO plain.requests (data) VALUES ($1)"
POOL_SIZE = 8
"""The service's default, TRAILS_POOL_SIZE."""


@post("/v1/agents/{agent_id:str}/actions", status_code=200)
async def store(request: Request[Any, Any, Any], agent_id: str) -> Response[bytes]:  # noqa: ARG001  same route
    """Stores the request's JSON as it is."""
    body = await request.body()
    await request.app.state.pool.execute(INSERT, body.decode())
    return Response(b'{"decision":"allowed"}', media_type="application/json")


@asynccontextmanager
async def plain_pool(table: str) -> AsyncIterator[asyncpg.Pool]:
    """The floor's pool, as large as the service's, on a database that has ``table`` then.

    It is the driver's pool as it comes, since that is what "same driver" means: a connection is reset when it
    comes back, one more round trip a request, as in any service that asks its pool to execute a statement.
    """
    url = os.environ["TRAILS_BENCH_FLOOR_URL"]
    async with asyncpg.create_pool(url, min_size=POOL_SIZE, max_size=POOL_SIZE) as pool:
        await pool.execute(table)
        yield pool


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    async with plain_pool(TABLE) as pool:
        app.state.pool = pool
        yield


def app() -> Litestar:
    """The floor's application."""
    return Litestar([store], lifespan=[_lifespan], openapi_config=None, logging_config=None)
