"""One connection for two tenants, for work without a tenant, and for errors between (cases P11, P13)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any, Final

import httpx2
import pytest

from app.asgi import create_app
from app.opening import open_ledger
from app.principal import Role
from app.settings import Settings
from db.pool import Pool, create_pool
from tests.isolation.world import COMMON, SECRETS, World
from tests.support.postgres import Database

TURNS: Final = 1_000
CONFIGURED: Final = {
    "trails.tenants": "",
    "trails.slug": "",
    "statement_timeout": "7s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
    "synchronous_commit": "on",
}

Turn = tuple[str, str, Any, int]
"""Whose turn (or nobody's), the path, what is posted there, and the status of the answer."""


def turns(world: World) -> list[Turn]:
    """Both tenants in turn, with what has no tenant between, and with errors of every kind."""
    made: list[Turn] = []
    for who, other in (("mine", world.theirs), ("theirs", world.mine)):
        own = getattr(world, who)
        made += [
            (who, f"/v1/agents/{COMMON}/log", None, 200),
            ("", "/healthz", None, 200),
            (who, f"/v1/agents/{other.ids.agent_id}", None, 404),
            ("", "/v1/public-key", None, 200),
            (who, f"/v1/agents/{COMMON}/events", {"type": "x", "data": {"of": own.ids.slug}}, 200),
            (who, "/v1/agents", {"agent_id": COMMON, "policy": None}, 409),
            ("", "/readyz", None, 200),
            (who, f"/v1/agents/{own.ids.ended}/terminate", {"reason": "r", "by": "A"}, 409),
            (who, f"/v1/sessions/{other.ids.session_id}", None, 404),
            (who, f"/v1/agents/{COMMON}/events", {"type": "x", "data": "\x00"}, 400),
            ("", "/v1/agents", None, 401),
            (who, "/v1/keys", None, 200),
        ]
    return made


@asynccontextmanager
async def serving(database: Database, pool: Pool) -> AsyncIterator[httpx2.AsyncClient]:
    """The application on this pool, asked without a network."""
    settings = Settings(database_url=database.app_url, failures_per_peer=0, log_requests=False)
    app = create_app(settings, SECRETS)
    app.services.ledger = await open_ledger(pool, settings, SECRETS)
    transport = httpx2.ASGITransport(app=app)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        await app.services.ledger.close()


@pytest.mark.parametrize("through_pooler", [False, True])
async def test_p11_p13_a_connection_that_all_use_in_turn_keeps_nothing_of_anybody(
    populated: Database, world: World, through_pooler: bool
) -> None:
    """After each turn the session is as it was opened, even in the pool that resets nothing."""
    async with (
        await create_pool(
            populated.app_url, max_size=1, command_timeout=7.0, through_pooler=through_pooler
        ) as pool,
        serving(populated, pool) as client,
    ):
        for who, path, body, status in islice(cycle(turns(world)), TURNS):
            headers, foreign = {}, ()
            if who:
                own, other = (world.mine, world.theirs) if who == "mine" else (world.theirs, world.mine)
                headers = {"Authorization": f"Bearer {own.tokens[Role.OPERATOR.value]}"}
                foreign = tuple(mark for mark in other.marks if mark not in path)
            reply = await client.request("POST" if body else "GET", path, json=body, headers=headers)
            assert reply.status_code == status, (who, path, reply.text)
            assert not [mark for mark in foreign if mark in reply.text], (who, path)
            await _left(pool)


async def _left(pool: Pool) -> None:
    names = list(CONFIGURED)
    row = await pool.fetchrow(
        "SELECT array(SELECT coalesce(current_setting(n, true), '') FROM unnest($1::text[]) AS n) AS found,"
        "       (SELECT count(*) FROM trails.agents) + (SELECT count(*) FROM trails.agent_audit_trails)"
        "     + (SELECT count(*) FROM trails.api_keys) AS rows",
        names,
    )
    assert row is not None
    assert dict(zip(names, row["found"], strict=True)) == CONFIGURED
    assert row["rows"] == 0
