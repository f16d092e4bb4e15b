"""The views for dashboards say what the others say, of a stretch of time, and read no more than that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

import db.ledger
from app.errors import ClaimRefusedError
from app.ledger import Ledger
from db.cookbook import recipes
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from tests.integration.bi.panel_answers import View
from tests.integration.bi.story import DAMAGED, Told
from tests.support.cookbook_world import DAY, FIRST_DAY, HOUR
from tests.support.ledgers import MASTER_KEY, SECOND, Caller, SetClock
from tests.support.pages import FOLDER, page_at
from tests.support.rows import count, register_tenant, started_chain
from tests.support.view_rows import raw_row, view

Rows = list[asyncpg.Record]

HELD = {"mail": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 10},
        "call": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 3_600},
        "visit": {"cost": 1, "requires_approval": True},
        "move": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 2**53}}  # fmt: skip
POLICY: dict[str, Any] = {
    "budget": 50,
    "scar_limit": 50,
    "tools": HELD,
    "default_rule": {"cost": 1, "requires_approval": True, "approval_ttl_secs": 20},
}


@pytest.fixture
def clock() -> SetClock:
    """A clock that stands at this moment, since views that say how it stands now ask the database's."""
    made = SetClock()
    made.now_us = time.time_ns() // 1_000
    return made


@pytest.fixture
async def ledger(pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """A ledger as ``trails_app``."""
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock)
    yield opened
    await opened.close()


def whole(told: Told) -> View:
    return View(told.world, FIRST_DAY, FIRST_DAY + 3 * DAY, HOUR)


async def test_decisions_are_those_of_the_actions(told: Told, looking: asyncpg.Connection) -> None:
    columns = "agent_id, action_id, tool, decision, reason_code, decided_at, requested_at, session_id"
    decided = await looking.fetch(
        f"SELECT {columns}, charged AS cost FROM decisions WHERE decision <> 'pending_approval' ORDER BY 1, 2"
    )
    actions = await looking.fetch(
        f"SELECT {columns}, CASE decision WHEN 'allowed' THEN cost END AS cost FROM actions"
        " WHERE decided_at IS NOT NULL ORDER BY 1, 2"
    )
    assert decided == actions
    assert len(decided) == len(whole(told).decided())
    people = await looking.fetch("SELECT DISTINCT decided_by FROM decisions ORDER BY 1")
    assert [row[0] for row in people] == ["alice", "bob", None]
    held = await looking.fetch("SELECT action_id FROM decisions WHERE decision = 'pending_approval'")
    assert sorted(row[0] for row in held) == sorted(act.action_id for act in told.world.acts if act.held)


async def test_what_remains_is_what_the_agents_status_says(looking: asyncpg.Connection) -> None:
    rows = await looking.fetch(
        "SELECT DISTINCT ON (agent_id) agent_id, remaining FROM decisions WHERE decision = 'allowed'"
        " ORDER BY agent_id, seq DESC"
    )
    status = await looking.fetch(
        "SELECT agent_id, remaining FROM agents_status WHERE actions_allowed > 0 ORDER BY 1"
    )
    assert rows == status
    assert len(rows) == 4


@pytest.mark.parametrize("days", [(0, 3), (0, 1), (1, 2), (2, 3)])
async def test_model_usage_sums_up_to_the_cookbooks_answer(
    looking: asyncpg.Connection, days: tuple[int, int]
) -> None:
    since, until = (datetime.fromtimestamp((FIRST_DAY + day * DAY) / SECOND, UTC) for day in days)
    summed = await looking.fetch(
        "SELECT model, sum(calls) AS calls, sum(input_tokens) AS input_tokens,"
        " sum(output_tokens) AS output_tokens, sum(total_tokens) AS total_tokens, sum(cost) AS cost"
        " FROM model_usage WHERE recorded_at >= $1 AND recorded_at < $2"
        " GROUP BY 1 ORDER BY 5 DESC NULLS LAST, 1",
        since,
        until,
    )
    asked = recipes()["tokens_and_cost_by_model"]
    given = {"since": since, "until": until}
    answer = await looking.fetch(asked.statement, *(given.get(one.name) for one in asked.parameters))
    assert [dict(row) for row in summed] == [dict(row) for row in answer]
    assert days != (0, 3) or len(answer) >= 3


async def test_daily_calls_are_those_of_the_days(told: Told, looking: asyncpg.Connection) -> None:
    rows = await looking.fetch("SELECT * FROM daily_tool_calls")
    found = {(row["day"], row["agent_id"], row["tool"]): row for row in rows}
    calls = told.world.calls()
    days = Counter(
        (datetime.fromtimestamp(call.at / SECOND, UTC).date(), call.agent, call.name) for call in calls
    )
    assert {place: row["calls"] for place, row in found.items()} == days
    for status, column in (("success", "succeeded"), ("failed", "failed"), ("denied", "denied"),
                           ("harmful", "harmful"), ("unknown", "unknown")):  # fmt: skip
        assert sum(row[column] for row in rows) == sum(call.status == status for call in calls) > 0, column
    timed = [call.metadata["duration_ms"] for call in calls if "duration_ms" in call.metadata]
    assert sum(row["timed"] for row in rows) == len(timed)
    assert sum(row["total_ms"] or 0 for row in rows) == sum(timed)
    [second] = await looking.fetch("SELECT sum(calls) FROM daily_tool_calls WHERE day = '2026-01-02'")
    assert second[0] == sum(FIRST_DAY + DAY <= call.at < FIRST_DAY + 2 * DAY for call in calls)


async def test_a_day_is_utc_whatever_the_sessions_zone_is(looking: asyncpg.Connection) -> None:
    utc = await looking.fetch("SELECT * FROM daily_tool_calls ORDER BY day, agent_id, tool")
    await looking.execute("SET TimeZone = 'Etc/GMT+12'")
    assert await looking.fetch("SELECT * FROM daily_tool_calls ORDER BY day, agent_id, tool") == utc


async def test_approvals_are_the_actions_that_were_held(told: Told, looking: asyncpg.Connection) -> None:
    rows = await looking.fetch("SELECT * FROM approvals ORDER BY requested_at")
    acts = sorted((act for act in told.world.acts if act.held), key=lambda act: act.at)
    assert [(row["action_id"], row["decision"], row["joins"]) for row in rows] == [
        (act.action_id, act.decision, act.joins) for act in acts
    ]
    for row, act in zip(rows, acts, strict=True):
        assert abs(row["waited"].total_seconds() - float(row["waited_secs"])) < 0.001
        if act.decided_at:
            assert row["waited_secs"] == (act.decided_at - act.at) / SECOND
    waiting = await looking.fetch("SELECT action_id, expires_at, expired FROM approvals_waiting")
    assert [tuple(row) for row in waiting] == [
        (act.action_id, None, False) for act in acts if act.decision == "pending"
    ]


async def test_no_administration_is_an_agent(looking: asyncpg.Connection, told: Told) -> None:
    rows = await looking.fetch("SELECT agent_id FROM agents_status ORDER BY 1")
    assert [row[0] for row in rows] == sorted(told.world.chains)


async def test_the_records_of_a_time_are_checked_alone(looking: asyncpg.Connection) -> None:
    [bad] = await looking.fetch("SELECT * FROM chain_check WHERE NOT ok")
    assert (bad["agent_id"], bad["seq"]) == DAMAGED
    assert (bad["hash_ok"], bad["link_ok"], bad["seq_ok"], bad["mirror_ok"]) == (True, False, True, False)
    found = "SELECT count(*) FROM chain_check WHERE NOT ok AND recorded_at"
    assert await looking.fetchval(f"{found} >= $1", bad["recorded_at"]) == 1
    assert await looking.fetchval(f"{found} > $1", bad["recorded_at"]) == 0
    assert await looking.fetchval("SELECT count(*) FROM chain_check") == await count(looking)


FILTERED = {
    "decisions": "decided_at >= $1 AND decided_at < $2",
    "claims": "claimed_at >= $1 AND claimed_at < $2",
    "events": "recorded_at >= $1 AND recorded_at < $2",
    "model_usage": "recorded_at >= $1 AND recorded_at < $2",
    "tool_calls": "recorded_at >= $1 AND recorded_at < $2",
    "chain_check": "recorded_at >= $1 AND recorded_at < $2",
    "daily_tool_calls": "day >= ($1::timestamptz AT TIME ZONE 'UTC')::date"
    " AND day < ($2::timestamptz AT TIME ZONE 'UTC')::date",
}


@pytest.mark.parametrize("name", FILTERED)
async def test_a_stretch_of_time_is_found_by_the_index_of_times(told: Told, name: str) -> None:
    """The table is small: without what is quicker there, the planner shows whether the index serves."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (2, 3)]
    admin = await asyncpg.connect(told.database.admin_url)
    undone = admin.transaction()
    await undone.start()
    try:
        await admin.execute("DROP INDEX trails.trail_actions, trails.trail_marks, trails.trail_sessions")
        await admin.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        await admin.execute(f'SET LOCAL ROLE "{make_url(told.url).username}"')
        text = FILTERED[name].replace("$1", f"'{days[0]}'").replace("$2", f"'{days[1]}'")
        rows = await admin.fetch(f"EXPLAIN SELECT * FROM trails.{name} WHERE {text}")
    finally:
        await undone.rollback()
        await admin.close()
    plan = [row[0].strip() for row in rows]
    assert any(
        line.startswith("Index Cond") and "(created_at >=" in line and "(created_at <" in line
        for line in plan
    ), "\n".join(plan)


# --- what the story has none of -----------------------------------------------------------------------------


async def test_what_waits_says_until_when(ledger: Ledger, clock: SetClock, admin: asyncpg.Connection) -> None:
    caller = Caller(ledger, "bot")
    await caller.create(POLICY)
    asked_us = clock.now_us
    for tool in (*HELD, "anything"):
        await caller.ask(tool)
    clock.now_us = asked_us - 60 * SECOND  # a process whose clock is behind
    late = Caller(ledger, "late")
    await late.create(POLICY)
    await late.ask("anything")
    rows = await admin.fetch("SELECT * FROM trails.approvals_waiting ORDER BY agent_id, seq")
    until = {row["agent_id"] + " " + row["tool"]: row["expires_at"] for row in rows}
    secs = {
        name: None if at is None else round(at.timestamp() - asked_us / SECOND) for name, at in until.items()
    }
    assert secs == {
        "bot mail": 10, "bot call": 3_600, "bot visit": None, "bot move": None, "bot anything": 20,
        "late anything": -40,
    }  # fmt: skip
    assert {row["agent_id"] for row in rows if row["expired"]} == {"late"}
    assert all(0 <= row["waited_secs"] < 600 for row in rows)


async def test_claims_are_listed_with_those_that_were_refused(ledger: Ledger, pool: Pool) -> None:
    caller = Caller(ledger, "bot")
    await caller.create({"budget": 9, "scar_limit": 9, "tools": {"search": {"cost": 1}}})
    await caller.ask("search", {"q": "a"})
    with pytest.raises(ClaimRefusedError):
        await caller.claim("act-1", "search", {"q": "b"})
    await caller.claim("act-1", "search", {"q": "a"})
    with pytest.raises(ClaimRefusedError):
        await caller.claim("act-1", "search", {"q": "a"}, by="another")
    rows = await view(pool, DEFAULT_TENANT_ID, "claims")
    rows.sort(key=lambda row: row["seq"])
    assert [(row["claimed"], row["reason_code"], row["claimed_by"], row["tool"]) for row in rows] == [
        (False, "claim_mismatch", "backend", "search"),
        (True, None, "backend", "search"),
        (False, "already_claimed", "another", "search"),
    ]
    assert [row["digest"] is None for row in rows] == [True, False, True]


async def test_an_action_that_was_held_twice_is_one_approval(pool: Pool) -> None:
    """The service never writes this; whoever may insert rows can."""
    tenant = await register_tenant(pool, "acme")
    maker = await started_chain(pool, tenant)
    rows = [raw_row(maker, "action_requested", '{"action_id":"act-1","tool":"t"}')]
    rows += [raw_row(maker, "approval_required", '{"action_id":"act-1"}') for _ in range(3)]
    await db.ledger.append(pool, rows)
    assert len(await view(pool, tenant, "approvals")) == 1
    assert len(await view(pool, tenant, "approvals_waiting")) == 1


async def test_events_tell_the_senders_time_beside_the_records(pool: Pool) -> None:
    tenant = await register_tenant(pool, "acme")
    maker = await started_chain(pool, tenant)
    said = {"2020-01-01T00:00:00Z": True, "yesterday": None, "2026-09-21T14:13:00Z": False}
    await db.ledger.append(
        pool,
        [raw_row(maker, "event", f'{{"type":"seen","data":[1],"occurred_at":"{at}"}}') for at in said],
    )
    rows = await view(pool, tenant, "events")
    rows.sort(key=lambda row: row["seq"])
    assert [row["clock_skewed"] for row in rows] == [*said.values()]
    assert [row["type"] for row in rows] == ["seen"] * 3
    assert {row["session_id"] for row in rows} == {None}


async def test_the_guides_queries_run_as_a_dashboards_login(looking: asyncpg.Connection) -> None:
    queries = page_at(FOLDER / "bi.md").of_kind("sql")
    assert len(queries) == 5
    for query in queries:
        assert all("trails." in line for line in query.splitlines() if line.startswith("FROM"))
        await looking.fetch(query)
    assert await looking.fetchval(queries[-1]) is False
