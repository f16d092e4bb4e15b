"""The Grafana dashboards in ``deploy/grafana``: every panel's SQL is run as a dashboard's login runs it.

Grafana is not here; what it makes of a query is in ``tests.support.grafana``. What a panel has to show is
computed from the account of what was done (``panel_answers``), for the whole story and for its second day.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.bi.panel_answers import ANSWERS, Row, View
from tests.integration.bi.story import HOSTILE, Told
from tests.integration.http.client import POLICY, Client
from tests.integration.http.serving import serve
from tests.support.cookbook_world import DAY, FIRST_DAY, HOUR
from tests.support.grafana import GRAFANA, Chosen, Json, dashboards, expanded, panels, strings
from tests.support.postgres import Database

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRAIL = dashboards()["lineage-trails"]
SERVICE = dashboards()["lineage-trails-service"]
SQL_PANELS = panels(TRAIL)
LAST_RECORD = "Last record of each agent"

NUMBERS = {"int8", "int4", "numeric", "float8"}
PLAIN = NUMBERS | {"text", "timestamptz", "bool"}
"""Types that Grafana shows as they are."""

NOW = {"Approvals waiting", "Agents near their limits", "Waiting now", LAST_RECORD}
"""Panels that show how it stands now, whatever the time chosen."""

PERIODS = {
    "all of it": (FIRST_DAY, FIRST_DAY + 3 * DAY),
    "the second day": (FIRST_DAY + DAY, FIRST_DAY + 2 * DAY - 1),
}


def at(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def plain(value: Any) -> Any:
    """A value as the answers have it."""
    if isinstance(value, datetime):
        return float((value - EPOCH) // timedelta(microseconds=1))
    return float(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def unordered(rows: Any) -> list[str]:
    """Rows such that two lists of the same ones are equal; no microsecond of a projection counts."""
    return sorted(
        json.dumps(
            {name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}, sort_keys=True
        )
        for row in ({name: plain(value) for name, value in row.items()} for row in rows)
    )


def name_of(panel: Json) -> str:
    """A panel's title; of two with one title the figure is called one."""
    same = [other for other in SQL_PANELS if other["title"] == panel["title"]]
    return f"{panel['title']} (figure)" if len(same) > 1 and panel["type"] == "stat" else str(panel["title"])


def query_of(panel: Json, chosen: Chosen) -> str:
    [target] = panel["targets"]
    return expanded(TRAIL, target["rawSql"], chosen)


def period(name: str, **values: list[str]) -> Chosen:
    since, until = PERIODS[name]
    return Chosen(at(since), at(until), values=values)


async def shown(looking: asyncpg.Connection, panel: Json, chosen: Chosen) -> list[Row]:
    return [dict(row) for row in await looking.fetch(query_of(panel, chosen))]


every_panel = pytest.mark.parametrize("panel", SQL_PANELS, ids=name_of)


# --- what the panels of the trail show -----------------------------------------------------------------


def test_every_panel_has_an_answer_that_is_known() -> None:
    assert {name_of(panel) for panel in SQL_PANELS} == ANSWERS.keys() | {LAST_RECORD}


@every_panel
@pytest.mark.parametrize("when", PERIODS)
async def test_a_panel_shows_what_was_done(
    told: Told, looking: asyncpg.Connection, panel: Json, when: str
) -> None:
    rows = await shown(looking, panel, period(when))
    if name_of(panel) == LAST_RECORD:
        await _are_last_records(told, rows)
        return
    expected = ANSWERS[name_of(panel)](View(told.world, *PERIODS[when], HOUR))
    assert expected or when != "all of it"
    for row in rows:
        assert row.pop("waited_secs", 1) > 0
    assert unordered(rows) == unordered(expected)


async def _are_last_records(told: Told, rows: list[Row]) -> None:
    admin = await asyncpg.connect(told.database.admin_url)
    last = await admin.fetch(
        "SELECT agent_id, max(seq) AS seq, max(created_at) AS at FROM trails.agent_audit_trails"
        " WHERE agent_id = ANY ($1) GROUP BY 1",
        [*told.world.chains],
    )
    await admin.close()
    assert {(row["agent_id"], row["last_seq"], row["last_at"]) for row in rows} == {
        tuple(row) for row in last
    }
    assert [row["last_at"] for row in rows] == sorted(row["last_at"] for row in rows)
    assert all(row["silent_secs"] > 0 for row in rows)


@every_panel
async def test_columns_are_what_grafana_wants(looking: asyncpg.Connection, panel: Json) -> None:
    prepared = await looking.prepare(query_of(panel, period("all of it")))
    types = {column.name: column.type.name for column in prepared.get_attributes()}
    [target] = panel["targets"]
    if target["format"] == "time_series":
        assert types.pop("time") == "timestamptz"
        assert types.pop("metric", "text") == "text"
        assert set(types.values()) <= NUMBERS, "every other column is a figure"
        times = [row["time"] for row in await shown(looking, panel, period("all of it"))]
        assert times == sorted(times)
    assert types
    assert set(types.values()) <= PLAIN
    if panel["type"] in {"stat", "barchart"}:
        assert NUMBERS & set(types.values())


@every_panel
async def test_a_panel_shows_nothing_of_another_tenant(
    told: Told, looking: asyncpg.Connection, panel: Json
) -> None:
    own = await shown(looking, panel, period("all of it"))
    assert "umbrella" not in repr(own)
    other = await asyncpg.connect(told.other_url)
    theirs = await shown(other, panel, period("all of it"))
    await other.close()
    if name_of(panel) in {"Terminated", "Damaged records", "Damaged records (figure)"}:
        return
    assert theirs, "there is something that could be shown"
    if any(isinstance(value, str) for row in theirs for value in row.values()):
        assert not {repr(row) for row in own} & {repr(row) for row in theirs}


@every_panel
async def test_a_panel_is_narrowed_to_agents(told: Told, looking: asyncpg.Connection, panel: Json) -> None:
    everything = await shown(looking, panel, period("all of it", agent=[*told.world.chains]))
    assert unordered_but_waits(everything) == unordered_but_waits(
        await shown(looking, panel, period("all of it"))
    )
    nothing = await shown(looking, panel, period("all of it", agent=["nobody'"]))
    assert {value for row in nothing for value in row.values()} <= {0, None}


def unordered_but_waits(rows: list[Row]) -> list[str]:
    """Without what grows from one query to the next."""
    return unordered(
        [{name: v for name, v in row.items() if name not in {"waited_secs", "silent_secs"}} for row in rows]
    )


async def test_a_panel_is_narrowed_to_one_agent_and_one_tool(told: Told, looking: asyncpg.Connection) -> None:
    [panel] = [panel for panel in SQL_PANELS if name_of(panel) == "Decisions by result"]
    [search] = [value for text, value in (await tools(looking)).items() if text == "search"]
    rows = await shown(looking, panel, period("all of it", agent=["buyer"], tool=[search]))
    view = View(told.world, *PERIODS["all of it"], HOUR)
    found = [one for one in view.answers() if (one.agent, one.tool) == ("buyer", "search")]
    assert sum(row["value"] for row in rows) == len(found) > 0


# --- what agents write into names --------------------------------------------------------------------------


async def tools(looking: asyncpg.Connection) -> dict[str, str]:
    """What the variable offers: texts and values."""
    [variable] = [one for one in TRAIL["templating"]["list"] if one["name"] == "tool"]
    rows = await looking.fetch(expanded(TRAIL, variable["query"], period("all of it")))
    return {row["__text"]: row["__value"] for row in rows}


async def test_what_an_agent_calls_a_tool_gets_into_no_query(told: Told, looking: asyncpg.Connection) -> None:
    offered = await tools(looking)
    assert offered.keys() == {call.name for call in told.world.calls()} >= set(HOSTILE)
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in offered.values())
    [panel] = [panel for panel in SQL_PANELS if name_of(panel) == "Reliability and latency by tool"]
    for name in HOSTILE:
        rows = await shown(looking, panel, period("all of it", tool=[offered[name]]))
        assert [(row["tool"], row["calls"]) for row in rows] == [(name, 1)]


async def test_the_variable_of_agents_offers_those_of_the_tenant(
    told: Told, looking: asyncpg.Connection
) -> None:
    [variable] = [one for one in TRAIL["templating"]["list"] if one["name"] == "agent"]
    rows = await looking.fetch(expanded(TRAIL, variable["query"], period("all of it")))
    assert [row[0] for row in rows] == sorted(told.world.chains)


@pytest.mark.parametrize("dashboard", [TRAIL, SERVICE], ids=["trail", "service"])
def test_no_text_of_an_agent_becomes_a_link_or_markup(dashboard: Json) -> None:
    assert dashboard["links"] == []
    for panel in panels(dashboard):
        assert panel["type"] in {"timeseries", "stat", "table", "barchart"}, "no panel renders text"
        assert "links" not in {*strings(panel)}, panel["title"]
        assert "markdown" not in json.dumps(panel)
    written = [text for text in strings(dashboard) if "$" in text]
    for text in written:
        names = re.findall(r"\$\{(\w+)(?::(\w+))?\}", text)
        assert all(form == "sqlstring" or name == "datasource" for name, form in names), text


@every_panel
def test_a_query_reads_and_is_bounded(panel: Json) -> None:
    [target] = panel["targets"]
    query = target["rawSql"]
    assert query.startswith(("SELECT ", "WITH "))
    assert ";" not in query
    assert ("$__timeFilter(" in query) is (name_of(panel) not in NOW)
    assert "$agent" not in query.replace("${agent:sqlstring}", "")
    tables = set(re.findall(r"\b(?:FROM|JOIN) (trails\.\w+)", query))
    assert tables, "the schema is named, whatever the search path"
    if panel["type"] == "table":
        assert re.search(r"LIMIT \d+\b", query), "a table has an end"


# --- the documents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dashboard", [TRAIL, SERVICE], ids=["trail", "service"])
def test_a_dashboard_is_whole(dashboard: Json) -> None:
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every) > 20
    assert dashboard["id"] is None, "Grafana gives the id"
    assert dashboard["schemaVersion"] >= 39
    assert dashboard["timezone"] == "utc"
    datasource = dashboard["templating"]["list"][0]
    assert (datasource["name"], datasource["type"]) == ("datasource", "datasource")
    for panel in panels(dashboard):
        expected = {"type": datasource["query"], "uid": "${datasource}"}
        assert panel["datasource"] == expected
        assert [target["datasource"] for target in panel["targets"]] == [expected] * len(panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert panel["title"]
    for variable in dashboard["templating"]["list"][1:]:
        assert variable["datasource"] == {"type": datasource["query"], "uid": "${datasource}"}


def test_lines_of_several_go_on_where_only_the_others_have_a_value() -> None:
    """Each has values at times of its own: else nothing but dots is drawn."""
    lines = [
        panel["fieldConfig"]["defaults"]["custom"]
        for panel in panels(TRAIL)
        if panel["type"] == "timeseries" and "AS metric" in panel["targets"][0]["rawSql"]
    ]
    lines = [custom for custom in lines if custom["drawStyle"] == "line"]
    assert [custom["spanNulls"] for custom in lines] == [True]


def test_uids_are_unique() -> None:
    uids = [dashboard["uid"] for dashboard in dashboards().values()]
    assert len(set(uids)) == len(uids) == 2
    assert all(re.fullmatch("[a-z-]{1,40}", uid) for uid in uids)


@pytest.mark.parametrize("dashboard", [TRAIL, SERVICE], ids=["trail", "service"])
def test_panels_do_not_overlap(dashboard: Json) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"], f"{panel['title']} at {cell}"
    assert len(taken) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in dashboard["panels"])


# --- the service's own figures ------------------------------------------------------------------------------


WORD = re.compile(r"\b(?:trails|process)_[a-z_]+\b")


def expressions() -> Iterator[str]:
    for panel in panels(SERVICE):
        for target in panel["targets"]:
            yield target["expr"]
    for variable in SERVICE["templating"]["list"][1:]:
        yield variable["query"]["query"]


def test_every_metric_and_label_of_a_panel_is_one_of_the_service(database: Database) -> None:
    with serve(database.app_url, verify_records_per_sec=1_000, heads_file=None) as running:
        operator = Client(running.url, running.operator_token)
        agent = operator.create("dasher", POLICY)
        agent.post("/v1/agents/dasher/actions", {"tool": "search"})
        text = operator.get("/metrics").raw.decode()
    families = list(text_string_to_metric_families(text))
    samples = {sample.name for family in families for sample in family.samples}
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    silent = {family.name for family in families if not family.samples}
    empty = silent | {f"{name}_total" for name in silent}
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        named = set(WORD.findall(expression))
        assert named, expression
        assert named <= samples | empty, expression
        by = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        known = labels | {"instance", "job", "worker", "limit"}
        assert by <= known, expression
    assert "trails_append_duration_seconds_bucket" in samples


# --- provisioning -------------------------------------------------------------------------------------------


def test_provisioning_leads_to_them() -> None:
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/lineage-trails.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    text = (GRAFANA / "provisioning/datasources/lineage-trails.yaml").read_text("utf-8")
    sources = yaml.safe_load(text)["datasources"]
    assert [source["type"] for source in sources] == [
        dashboard["templating"]["list"][0]["query"] for dashboard in (TRAIL, SERVICE)
    ]
    postgres, prometheus = sources
    assert postgres["url"] == "$TRAILS_PG_HOST"
    assert postgres["user"] == "$TRAILS_PG_USER"
    assert postgres["secureJsonData"] == {"password": "$TRAILS_PG_PASSWORD"}
    assert postgres["jsonData"]["database"] == "$TRAILS_PG_DATABASE"
    assert postgres["jsonData"]["sslmode"] == "$TRAILS_PG_SSLMODE"
    assert postgres["jsonData"]["maxOpenConns"] < 5, "a login has five connections"
    assert prometheus["url"] == "$TRAILS_PROMETHEUS_URL"
    assert "password: " not in text.replace("password: $TRAILS_PG_PASSWORD", "")


def test_the_composed_grafana_has_what_provisioning_asks_for() -> None:
    composed = yaml.safe_load((GRAFANA.parent / "compose.yaml").read_text("utf-8"))["services"]["grafana"]
    text = (GRAFANA / "provisioning/datasources/lineage-trails.yaml").read_text("utf-8")
    asked = set(re.findall(r"\$(TRAILS_PG_\w+)", text))
    assert asked == {name for name in composed["environment"] if name.startswith("TRAILS_PG_")}
    mounted = [volume.split(":") for volume in composed["volumes"]]
    assert ["./grafana/provisioning", "/etc/grafana/provisioning", "ro"] in mounted
    assert ["./grafana/dashboards", "/var/lib/grafana/dashboards", "ro"] in mounted
