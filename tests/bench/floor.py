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

    The service keeps the connections that it writes on. So a connection is not reset here either when it
    comes back to the pool, as the driver would by itself: that is one round trip a request.
    """
    url = os.environ["TRAILS_BENCH_FLOOR_URL"]
    async with asyncpg.create_pool(url, min_size=POOL_SIZE, max_size=POOL_SIZE, reset=_as_it_is) as pool:
        await pool.execute(table)
        yield pool


async def _as_it_is(_connection: asyncpg.Connection) -> None:
    """Leaves a connection as it comes back."""


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    async with plain_pool(TABLE) as pool:
        app.state.pool = pool
        yield


def app() -> Litestar:
    """The floor's application."""
    return Litestar([store], lifespan=[_lifespan], openapi_config=None, logging_config=None)
