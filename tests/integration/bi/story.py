"""A tenant whose story is known, another tenant beside it, and SQL logins for their dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
from psycopg import sql
from sqlalchemy import make_url

import db.ledger
from app.chain.link import seal
from app.chain.record import Draft
from app.ledger import Ledger
from db import sql_logins
from db.pool import Pool, create_pool
from db.sql_logins import SqlLogin
from tests.support.cookbook_world import DAY, FIRST_DAY, PLAN, SECOND, World, node, tell
from tests.support.ledgers import MASTER_KEY, SetClock
from tests.support.postgres import Database
from tests.support.rows import KEY, NOW, Maker, register_tenant
from tests.support.view_rows import fragment

PASSWORD = "the-password-of-a-dashboard"  # noqa: S105  of a throw-away server

HOSTILE = (
    "'; DROP TABLE trails.agents; --",
    "$__timeFilter( OR true) --",
    "${agent:sqlstring}",
    "<img src=x onerror=alert(1)>",
    "umlaut ü\n=2+3",
)
"""Names that an agent gives the tools that it says it called."""

DAMAGED = ("planner", 2)
"""The record that somebody with every right has changed."""


class Told(msgspec.Struct, frozen=True):
    """A database with the story of ``cookbook_world``, and who looks at it."""

    database: Database
    world: World
    url: str
    other_url: str


@contextmanager
def login(database: Database, tenant: UUID) -> Iterator[str]:
    """A SQL login of a tenant, as ``trails sql-login create`` makes it; gives its URL."""
    made = SqlLogin(sql_logins.new_login(), "dashboard", NOW)
    sql_logins.create(database.admin_url, made, tenant, PASSWORD)
    try:
        url = make_url(database.admin_url).set(username=made.login, password=PASSWORD)
        yield url.render_as_string(hide_password=False)
    finally:
        with psycopg.connect(database.admin_url, autocommit=True) as admin:
            role = sql.Identifier(made.login)
            admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


async def story_of(database: Database) -> tuple[World, UUID]:
    async with await create_pool(database.app_url, max_size=4) as pool:
        clock = SetClock()
        ledger = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
        world = World(ledger, clock)
        await tell(world)
        await world.post(
            "planner", PLAN, *(node(60 + at, None, "TOOL_CALL", name) for at, name in enumerate(HOSTILE))
        )
        await ledger.close()
        other = await register_tenant(pool, "umbrella")
        await _live(Maker(other, "umbrella-bot", uuid4()), pool)
    await _damage(database)
    return world, other


async def _live(maker: Maker, pool: Pool) -> None:
    """What another tenant does on the same days: something for every panel."""
    called = [
        node(
            80, None, "TOOL_CALL", "umbrella-tool", outputs={"status": "failed"}, metadata={"duration_ms": 9}
        ),
        node(
            81, None, "LLM_CALL", "umbrella-llm", metadata={"model": "umbrella-model", "tokens": 1, "cost": 1}
        ),
        node(82, None, "PLANNING", "umbrella-plan", metadata={"timestamp": "2020-01-01T00:00:00Z"}),
    ]
    asked = {"tool": "umbrella-tool", "input": None, "cost": 9}
    story: list[tuple[str, dict[str, Any]]] = [
        ("genesis", {"public_key": KEY.public.hex}),
        ("policy", {"policy": {"budget": 10, "scar_limit": 3, "tools": {}}}),
        ("action_requested", {**asked, "action_id": "act-1"}),
        ("approval_required", {"action_id": "act-1"}),
        ("action_allowed", {"action_id": "act-1", "approved_by": "umbrella-jo", "cost": 9, "remaining": 1}),
        ("action_requested", {**asked, "action_id": "act-2"}),
        ("approval_required", {"action_id": "act-2"}),
        ("action_requested", {**asked, "action_id": "act-3"}),
        ("action_denied", {"action_id": "act-3", "reason": {"code": "umbrella-reason"}}),
        ("scar", {"severity": "minor", "reason": "umbrella-harm"}),
        ("trace", fragment(*called, session=uuid4())),
    ]
    rows = []
    for at, (kind, payload) in enumerate(story):
        record = seal(Draft(kind, payload, "bot"), maker.head, FIRST_DAY + DAY + at * SECOND, KEY)
        maker.head = record.head
        rows.append(maker.mirror(record))
    await db.ledger.append(pool, rows, chains=[maker.chain])


async def _damage(database: Database) -> None:
    admin = await asyncpg.connect(database.admin_url)
    await admin.execute(
        "ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL, DROP CONSTRAINT trail_mirror"
    )
    await admin.execute(
        "UPDATE trails.agent_audit_trails SET prev_hash = repeat('ab', 32) WHERE agent_id = $1 AND seq = $2",
        *DAMAGED,
    )
    await admin.close()
