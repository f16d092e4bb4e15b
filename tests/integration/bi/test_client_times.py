"""Times that clients choose decide nothing (case T13): windows, days and order are those of the records.

What is sent says that it happened in 2020, in an hour, and in 2099: as an event, as a node, as a span. All
of it is of today, and is flagged.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from db.cookbook import recipes
from db.schema import DEFAULT_TENANT_ID
from tests.integration.bi.story import login
from tests.integration.http.client import Client
from tests.support.grafana import Chosen, dashboards, expanded, panels
from tests.support.otlp import post as post_spans
from tests.support.postgres import Database
from tests.support.spans import protobuf, tool
from tests.support.view_rows import fragment, node

WAYS = ("event", "trace", "otlp")
POLICY = {
    "budget": 50,
    "scar_limit": 50,
    "rate_limit": {"max_actions": 2, "window_secs": 3_600},
    "tools": {"search": {"cost": 1}},
}
FAILED_SPAN = 2


def said() -> list[datetime]:
    """Times that cannot be: long gone, an hour ahead, and beyond everybody's time."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    return [datetime(2020, 1, 1, tzinfo=UTC), ahead, datetime(2099, 1, 1, tzinfo=UTC)]


def send(agent: Client, way: str) -> None:
    """Sends the same three times in one of the ways, in an order that is none of them."""
    first, second, third = said()
    for number, at in enumerate((third, first, second)):
        if way == "event":
            reply = agent.post(
                "/v1/agents/bot/events", {"type": "seen", "data": 1, "occurred_at": at.isoformat()}
            )
            assert reply.json["clock_skewed"] is True
        elif way == "trace":
            call = node(
                f"call {number}", status="failed", metadata={"timestamp": at.isoformat()}, name="search"
            )
            assert agent.post("/v1/agents/bot/traces", fragment(call)).status == 200
        else:
            start = int(at.timestamp()) * 10**9
            post_spans(agent, protobuf(tool("search", start_ns=start, end_ns=start, code=FAILED_SPAN)))


async def ask(database: Database, query: str, *arguments: Any) -> list[asyncpg.Record]:
    """A query of a dashboard's login."""
    with login(database, DEFAULT_TENANT_ID) as url:
        connection = await asyncpg.connect(url)
        try:
            return list(await connection.fetch(query, *arguments))
        finally:
            await connection.close()


async def recipe(database: Database, name: str, **given: Any) -> list[asyncpg.Record]:
    """A question of the cookbook."""
    asked = recipes()[name]
    return await ask(database, asked.statement, *(given.get(one.name) for one in asked.parameters))


@pytest.fixture
def bot(operator: Client) -> Client:
    """A guarded agent that may do two things an hour."""
    return operator.as_(operator.post("/v1/agents", {"agent_id": "bot", "policy": POLICY}).json["token"])


def day_before() -> datetime:
    return datetime.now(UTC) - timedelta(hours=24)


@pytest.mark.parametrize("way", WAYS)
async def test_t13_the_last_24_hours_are_the_records(
    operator: Client, bot: Client, database: Database, way: str
) -> None:
    send(bot, way)
    view = "events" if way == "event" else "tool_calls"
    [counted] = await ask(database, f"SELECT count(*) FROM {view} WHERE recorded_at >= $1", day_before())
    assert counted["count"] == 3
    [counted] = await ask(
        database, f"SELECT count(*) FROM {view} WHERE recorded_at > now() + interval '1 minute'"
    )
    assert counted["count"] == 0
    ordered = await ask(database, f"SELECT seq FROM {view} ORDER BY recorded_at, seq")
    assert [row["seq"] for row in ordered] == sorted(row["seq"] for row in ordered)
    if way != "event":
        assert len(await recipe(database, "failed_calls", since=day_before())) == 3
        asked = f"/v1/sessions?since={day_before().isoformat().replace('+00:00', 'Z')}"
        assert len(operator.get(asked).json["sessions"]) == (1 if way == "trace" else 3)
        assert operator.get("/v1/sessions?since=2098-01-01").json["sessions"] == []
        assert operator.get("/v1/sessions?until=2021-01-01").json["sessions"] == []


@pytest.mark.parametrize("way", ["trace", "otlp"])
async def test_t13_the_daily_report_is_of_the_days_of_the_records(
    bot: Client, database: Database, way: str
) -> None:
    send(bot, way)
    today = {datetime.now(UTC).date(), (datetime.now(UTC) - timedelta(minutes=5)).date()}
    for rows in (
        await ask(database, "SELECT day, failed FROM daily_tool_calls WHERE tool = 'search'"),
        await recipe(database, "failed_calls_by_tool_and_day"),
    ):
        assert sum(row["failed"] for row in rows) == 3
        assert {row["day"] for row in rows} <= today


@pytest.mark.parametrize("way", WAYS)
def test_t13_a_rate_window_is_not_moved_by_what_clients_say(bot: Client, way: str) -> None:
    def decision() -> Any:
        return bot.post("/v1/agents/bot/actions", {"tool": "search", "input": {"at": "2099-01-01"}})

    assert [decision().json["decision"] for _ in range(2)] == ["allowed", "allowed"]
    send(bot, way)
    denied = decision()
    assert denied.json["reason"]["code"] == "rate_limited"
    assert 3_000 < int(denied.headers["Retry-After"]) <= 3_600
    for member in ("timestamp", "occurred_at", "requested_at"):
        chosen = bot.post("/v1/agents/bot/actions", {"tool": "search", member: "2099-01-01T00:00:00Z"})
        assert chosen.status == 400, "an ask has no time of its own"


@pytest.mark.parametrize("way", WAYS)
async def test_t13_whose_clock_cannot_be_believed_is_told(bot: Client, database: Database, way: str) -> None:
    bot.post(
        "/v1/agents/bot/events", {"type": "seen", "data": 1, "occurred_at": datetime.now(UTC).isoformat()}
    )
    assert await recipe(database, "skewed_clocks", since=day_before()) == []
    send(bot, way)
    [row] = await recipe(database, "skewed_clocks", since=day_before())
    assert (row["agent_id"], row["nodes"], row["skewed"]) == ("bot", 4, 3)
    assert row["most_ahead_secs"] > 70 * 365 * 86_400
    assert row["most_behind_secs"] > 6 * 365 * 86_400
    assert await recipe(database, "skewed_clocks", until=day_before()) == []


@pytest.mark.parametrize("way", ["trace", "otlp"])
async def test_t13_a_dashboard_of_the_last_24_hours_shows_all_of_it(
    bot: Client, database: Database, way: str
) -> None:
    send(bot, way)
    dashboard = dashboards()["lineage-trails"]
    now = datetime.now(UTC)
    for since, until, expected in (
        (day_before(), now + timedelta(minutes=1), 3),
        (datetime(2019, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC), 0),
        (now + timedelta(minutes=30), datetime(2100, 1, 1, tzinfo=UTC), 0),
    ):
        for panel in panels(dashboard):
            if panel["title"] in {"Failed tool calls by tool", "Failed tool calls"}:
                query = expanded(dashboard, panel["targets"][0]["rawSql"], Chosen(since, until))
                figures = [row.get("value", row.get("failed")) for row in await ask(database, query)]
                assert sum(figures) == expected
