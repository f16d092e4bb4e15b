"""A real Apache Superset draws from the views as a SQL login: ``make superset`` (``TRAILS_TEST_SUPERSET=1``).

It is installed apart from our own environment, which takes some minutes the first time. Everything is asked
of its API, as its pages do.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.integration.bi.story import Told
from tests.support.cookbook_world import DAY
from tests.support.superset import Superset, environment, running_superset

pytestmark = pytest.mark.skipif(
    os.environ.get("TRAILS_TEST_SUPERSET") != "1", reason="make superset: installs and runs Apache Superset"
)

REQUIREMENTS = Path(__file__).with_name("superset.txt")
VIEWS = {
    "failed_tool_calls",
    "tool_calls",
    "decisions",
    "daily_tool_calls",
    "approvals_waiting",
    "model_usage",
}
EVER = "2026-01-01 : 2026-02-01"

TYPES = {
    "recorded_at": "TIMESTAMP WITH TIME ZONE",
    "tool": "TEXT",
    "session_id": "UUID",
    "duration_ms": "NUMERIC",
    "total_tokens": "BIGINT",
    "clock_skewed": "BOOLEAN",
}
"""What a BI tool makes charts of: times, categories, figures."""


@pytest.fixture(scope="module")
def superset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Superset]:
    with running_superset(environment(REQUIREMENTS), tmp_path_factory.mktemp("superset")) as running:
        yield running


@pytest.fixture(scope="module")
def connected(superset: Superset, told: Told) -> int:
    """The database as Superset knows it, by the kind of address that ``trails sql-login create`` prints."""
    url = make_url(told.url).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
    body = {"database_name": "trails", "sqlalchemy_uri": url, "expose_in_sqllab": True}
    return int(superset.post("/api/v1/database/", body)["id"])


def dataset(superset: Superset, database: int, view: str) -> int:
    body = {"database": database, "schema": "trails", "table_name": view}
    return int(superset.post("/api/v1/dataset/", body)["id"])


def count_of() -> dict[str, Any]:
    return {"expressionType": "SQL", "sqlExpression": "COUNT(*)", "label": "count"}


def asked(source: int, *columns: Any, **query: Any) -> dict[str, Any]:
    """A chart's query, as Superset's own pages write it."""
    range_ = {"col": "recorded_at", "op": "TEMPORAL_RANGE", "val": EVER}
    queries = [
        {"columns": [*columns], "metrics": [count_of()], "filters": [range_], "row_limit": 1_000, **query}
    ]
    return {
        "datasource": {"id": source, "type": "table"},
        "force": True,
        "queries": queries,
        "result_format": "json",
        "result_type": "full",
    }


def test_it_sees_the_views_with_types_it_can_draw(superset: Superset, connected: int) -> None:
    tables = superset.get(f"/api/v1/database/{connected}/tables/", q="(schema_name:trails)")["result"]
    assert {table["value"] for table in tables} >= VIEWS
    source = dataset(superset, connected, "failed_tool_calls")
    columns = superset.get(f"/api/v1/dataset/{source}")["result"]["columns"]
    found = {column["column_name"]: column["type"] for column in columns}
    assert {name: found[name] for name in TYPES} == TYPES
    assert {column["column_name"] for column in columns if column["is_dttm"]} >= {"recorded_at"}


def test_a_chart_of_failed_calls_by_tool_shows_what_was_done(
    superset: Superset, connected: int, told: Told
) -> None:
    source = dataset(superset, connected, "tool_calls")
    failed = {"col": "status", "op": "==", "val": "failed"}
    query = asked(source, "tool")
    query["queries"][0]["filters"].append(failed)
    chart = superset.post(
        "/api/v1/chart/",
        {
            "slice_name": "Failed tool calls by tool",
            "viz_type": "table",
            "datasource_id": source,
            "datasource_type": "table",
            "params": json.dumps({"viz_type": "table", "groupby": ["tool"], "metrics": [count_of()]}),
            "query_context": json.dumps(query),
        },
    )["id"]
    rows = superset.get(f"/api/v1/chart/{chart}/data/")["result"][0]["data"]
    shown = {row["tool"]: row["count"] for row in rows}
    assert shown == Counter(call.name for call in told.world.failed())
    assert "umbrella-tool" not in shown


def test_days_are_utc(superset: Superset, connected: int, told: Told) -> None:
    source = dataset(superset, connected, "decisions")
    day = {
        "columnType": "BASE_AXIS",
        "expressionType": "SQL",
        "sqlExpression": "decided_at",
        "label": "day",
        "timeGrain": "P1D",
    }
    query = asked(source, day, filters=[{"col": "decided_at", "op": "TEMPORAL_RANGE", "val": EVER}])
    rows = superset.post("/api/v1/chart/data", query)["result"][0]["data"]
    decided = [act.decided_at for act in told.world.acts if act.decided_at]
    held = [act.at for act in told.world.acts if act.held]
    days = Counter((at - at % DAY) // 1_000 for at in decided + held)
    assert {row["day"]: row["count"] for row in rows} == days


def test_a_query_that_writes_is_refused(superset: Superset, connected: int) -> None:
    with pytest.raises(AssertionError, match=r"(?i)read-only|permission|DML|not allowed|mutat"):
        superset.post(
            "/api/v1/sqllab/execute/",
            {
                "database_id": connected,
                "sql": "DELETE FROM trails.agent_audit_trails",
                "schema": "trails",
                "runAsync": False,
            },
        )
