"""Clocks that step back and forth, and that differ between two processes (case C15)."""

from __future__ import annotations

import random
from typing import Any

from app.ledger import Ledger
from db.pool import create_pool
from tests.support.faults import rounds
from tests.support.ledgers import MASTER_KEY, Caller, SetClock, Table, json_of, posted
from tests.support.postgres import Database

TTL_SECS = 300
WINDOW_SECS = 60
AT_MOST = 4

POLICY: dict[str, Any] = {
    "budget": 100_000,
    "scar_limit": 100_000,
    "rate_limit": {"max_actions": AT_MOST, "window_secs": WINDOW_SECS},
    "tools": {
        "look": {"cost": 1},
        "email": {"cost": 1, "requires_approval": True, "approval_ttl_secs": TTL_SECS},
    },
}


async def test_c15_what_expired_stays_expired_when_the_clock_steps_back(
    ledger: Ledger, second_ledger: Ledger, clock: SetClock, table: Table
) -> None:
    agent = Caller(ledger)
    await agent.create(POLICY)
    asked = json_of(await agent.ask("email"))["action_id"]
    clock.move(TTL_SECS + 1)
    await agent.post(posted({"data": "so much time is over"}))
    clock.move(-TTL_SECS)
    for caller in (agent, agent.at(second_ledger)):
        assert (await caller.action(asked))["expired"] is True
    answer = json_of(await agent.at(second_ledger).approve(asked))
    assert (answer["decision"], answer["reason"]["code"]) == ("denied", "approval_expired")
    assert (await agent.verify())["ok"] is True
    assert "action_allowed" not in await table.kinds()


async def test_c15_no_append_is_refused_and_no_window_reopens_whatever_the_clocks_do(
    ledger: Ledger, clock: SetClock, database: Database, table: Table
) -> None:
    """Two processes whose clocks jump by up to ten minutes, each on its own."""
    other_clock, steps = SetClock(), random.Random(15)  # noqa: S311  chooses steps
    agent = Caller(ledger)
    await agent.create(POLICY)
    async with await create_pool(database.app_url, max_size=4) as pool:
        other = await Ledger.open(pool, master_key=MASTER_KEY, clock=other_clock)
        for number in range(rounds(60, 1_000)):
            moved = steps.choice((clock, other_clock))
            moved.move(steps.choice((-600, -61, -5, -0.5, 0, 0.001, 1, 5, 61, 600)))
            caller = steps.choice((agent, agent.at(other)))
            answer = json_of(await caller.ask("look", number))
            assert answer["decision"] == "allowed" or answer["reason"]["code"] == "rate_limited"
        assert (await agent.at(other).verify())["ok"] is True
        await other.close()
    assert (await agent.verify())["ok"] is True
    rows = await table.rows()
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    times = [row["created_at"] for row in rows]
    assert times == sorted(times)
    allowed = [row["created_at"] for row in rows if row["kind"] == "action_allowed"]
    assert len(allowed) > AT_MOST
    for first, later in zip(allowed, allowed[AT_MOST:], strict=False):
        assert (later - first).total_seconds() >= WINDOW_SECS
