"""Failed calls over time: every number is that of the story's account, whoever asks sees his own tenant's."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from uuid import UUID

import asyncpg
import pytest

import db.failures
from app.errors import TooManyRequestsError
from app.moment import from_microseconds
from db.failures import FailureQuery
from db.pool import create_pool, tenant_transaction
from db.schema import DEFAULT_TENANT_ID
from tests.integration.console.browser import Visit
from tests.integration.console.reading import Shape, table
from tests.integration.console.story import PERIOD, Told, told
from tests.integration.http.client import Client
from tests.integration.http.posting import fragment, node
from tests.support.cookbook_world import DAY, FIRST_DAY, day

__all__ = ["told"]

DAYS = "since=2025-12-31&until=2026-01-04"
"""So long that it is counted by day."""


def page(told: Told, query: str = DAYS) -> str:
    shown = told.visit.get(f"/failures?{query}")
    assert shown.status == 200, shown.text
    Shape(shown.text)
    return shown.text


def test_failures_by_day_are_those_of_the_account(told: Told) -> None:
    failed = told.world.failed()
    html = page(told)
    assert f"{len(failed)} failed per day" in html
    wanted = Counter(day(one.at) for one in failed)
    assert {row[0]: int(row[-1]) for row in table(html, "The same as a table")} == wanted
    heads = re.findall(r'<th scope="col" class="number">([^<]*)</th>', html[html.index("same as a table") :])
    tools = Counter(one.name for one in failed)
    assert heads[: len(tools)] == sorted(tools, key=lambda tool: (-tools[tool], tool))


def test_a_short_period_is_counted_by_hour(told: Told) -> None:
    rows = table(page(told, PERIOD), "The same as a table")
    wanted = Counter(f"{from_microseconds(one.at):%m-%d %H}:00" for one in told.world.failed())
    assert {row[0]: int(row[-1]) for row in rows} == wanted


@pytest.mark.parametrize("agent", [None, "buyer", "scribe", "rookie"])
def test_tools_are_those_of_the_account(told: Told, agent: str | None) -> None:
    calls = [one for one in told.world.calls() if agent in {None, one.agent}]
    html = page(told, DAYS + (f"&agent={agent}" if agent else ""))
    rows = {row[0]: tuple(map(int, (row[1], row[2], row[5]))) for row in table(html, 'id="by-tool"')}
    assert rows == {
        tool: (
            sum(one.name == tool for one in calls),
            sum(one.name == tool and one.status == "failed" for one in calls),
            sum(one.name == tool and one.status == "denied" for one in calls),
        )
        for tool in {one.name for one in calls}
    }


def test_one_tool_alone(told: Told) -> None:
    failed = [one for one in told.world.failed() if one.name == "fetch"]
    html = page(told, DAYS + "&tool=fetch")
    assert f"{len(failed)} failed per day" in html
    [row] = table(html, 'id="by-tool"')
    assert (row[0], int(row[2]), row[6], row[7]) == ("fetch", len(failed), "120 ms", "300 ms")
    newest = table(html, 'id="newest"')
    assert [(row[1], row[3]) for row in newest] == [(one.name, one.agent) for one in failed][::-1]


def test_each_failure_leads_to_its_node_or_its_record(told: Told) -> None:
    html = page(told)
    links = re.findall(r'href="(/sessions/[^"]+node=[^"]+|/agents/[^"]+/log/\d+)"', html)
    assert len(links) == len(told.world.failed())
    in_sessions = [link.replace("&amp;", "&") for link in links if link.startswith("/sessions/")]
    assert in_sessions
    assert {told.visit.get(link).status for link in links if link.startswith("/agents/")} <= {200}
    for link in in_sessions:
        shown = told.visit.get(link)
        assert shown.status == 200, link
        assert 'aria-current="true"' in shown.text
        assert '<article class="card"' in shown.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=yesterday", "since: must be a day"),
        ("since=2026-01-02&until=2026-01-02", "since: must be before until"),
        ("since=2999-01-01", "since: must be before until"),
        ("since=0001-01-01", "not more than 40 years"),
        ("agent=a%20b", "agent_id: must have"),
        ("tool=" + "x" * 1_025, "tool: must have"),
    ],
)
def test_what_cannot_be_asked_is_said_beside_the_form(told: Told, query: str, said: str) -> None:
    shown = told.visit.get(f"/failures?{query}")
    assert shown.status == 400
    assert said in shown.text
    assert 'name="tool"' in shown.text


def test_a_field_that_means_nothing_is_refused(told: Told) -> None:
    assert told.visit.get("/failures?agnet=buyer").status == 400


def test_the_longest_periods_are_counted_by_month(told: Told) -> None:
    html = page(told, "since=2000-01-01&until=2026-02-01")
    [row] = table(html, "The same as a table")
    assert (row[0], int(row[-1])) == ("2026-01", len(told.world.failed()))


def test_many_tools_are_one_beyond_the_worst(visit: Visit, operator: Client) -> None:
    agent = operator.create("mailer", None)
    bad = {"status": "failed"}
    nodes = [node(n, name=f"tool-{n % 20}", outputs=bad, metadata=None) for n in range(30)]
    assert agent.post("/v1/agents/mailer/traces", fragment(*nodes)).status == 200
    html = visit.sign_in(str(operator.token)).get("/failures").text
    assert html.count("all other tools") >= 2
    [row] = table(html, "The same as a table")
    assert row[1:] == ["2"] * 6 + ["18", "30"]


def test_another_tenants_calls_are_not_counted(told: Told) -> None:
    async def ask() -> db.failures.FailureReport:
        async with await create_pool(told.database.app_url, max_size=1) as pool:
            query = FailureQuery(from_microseconds(FIRST_DAY), from_microseconds(FIRST_DAY + 9 * DAY))
            own = await db.failures.report(pool, DEFAULT_TENANT_ID, query, 5_000)
            assert own.newest
            return await db.failures.report(pool, UUID(int=99), query, 5_000)

    report = asyncio.run(ask())
    assert (report.steps, report.tools, report.newest) == ([], [], [])


@pytest.mark.parametrize("request_secs", [30.0, 0.05])
def test_what_takes_too_long_is_stopped_and_said(told: Told, request_secs: float) -> None:
    """Also where statements of requests have less time than these: the database is not away."""

    async def ask() -> None:
        async with await create_pool(told.database.app_url, max_size=1, command_timeout=request_secs) as pool:
            blocker = await asyncpg.connect(told.database.admin_url)
            try:
                async with blocker.transaction():
                    await blocker.execute("LOCK TABLE trails.agent_audit_trails IN ACCESS EXCLUSIVE MODE")
                    query = FailureQuery(from_microseconds(FIRST_DAY), from_microseconds(FIRST_DAY + DAY))
                    await db.failures.report(pool, DEFAULT_TENANT_ID, query, 400)
            finally:
                await blocker.close()

    with pytest.raises(TooManyRequestsError, match="shorter period"):
        asyncio.run(ask())


def test_records_that_hold_no_call_are_not_opened(told: Told) -> None:
    """An agent that posts events without an end makes nobody wait for the tools."""

    async def ask() -> tuple[int, str]:
        async with (
            await create_pool(told.database.app_url, max_size=1) as pool,
            tenant_transaction(pool, DEFAULT_TENANT_ID) as connection,
        ):
            held = await connection.fetchval(
                "SELECT count(*) FROM trails.agent_audit_trails WHERE trace_data ? 'trace_tree'"
            )
            period = from_microseconds(FIRST_DAY - DAY), from_microseconds(FIRST_DAY + 9 * DAY)
            explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + db.failures._SQL["by_tool"]
            return held, await connection.fetchval(explain, *period, None, None, 100)

    held, plan = asyncio.run(ask())
    assert 0 < max(map(int, re.findall(r'"Actual Loops": ([0-9]+)', plan))) <= held
