"""Failed tool calls over time: a chart, the tools, and the newest failures."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import get
from litestar.response.base import ASGIResponse

from app.console import telling  # noqa: F401  its filters
from app.console.charts import HEIGHT, LEFT, WIDTH, Chart, label_of, stack, steps_between
from app.console.page import render
from app.console.sessions import fields_of
from app.console.visitor import visit
from app.errors import BadRequestError, TooManyRequestsError
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, services_of
from app.http.query import instant_of
from app.http.sessions import wanted_of
from app.http.target import Query, one_field
from app.moment import from_microseconds
from app.principal import Permission
from db.failures import MOST_CALLS, MOST_TOOLS, FailureQuery, FailureReport, Step

DEFAULT_DAYS: Final = 30
"""The period, when none is asked for."""

_HOURLY_DAYS: Final = 3
_DAILY_DAYS: Final = 400
_MOST_DAYS: Final = 40 * 366

_FIELDS: Final = ("agent", "tool", "since", "until")
_OTHERS: Final = "all other tools"


class Column(msgspec.Struct, frozen=True):
    """One step of the table that says the same as the chart."""

    label: str
    counts: list[int]
    total: int


@get("/failures", opt={PERMISSION: Permission.READ_SESSIONS}, include_in_schema=False)
async def show_failures(request: Call) -> ASGIResponse:
    """Failed tool calls in a period, as the auditors' views count them."""
    visitor, grant = await visit(request)
    fields = fields_of(request, frozenset(_FIELDS))
    given = {name: one_field(fields, name) or "" for name in _FIELDS}
    try:
        query = _query(fields, dt.datetime.now(dt.UTC))
        report = await services_of(request).ledger.failures(grant, query)
    except BadRequestError as error:
        return render("failures.html", visitor, status=400, given=given, message=error.message, found=None)
    except TooManyRequestsError as error:
        return render("failures.html", visitor, status=429, given=given, message=error.message, found=None)
    return render("failures.html", visitor, given=given, message=None, found=_found(query, report, given))


def _found(query: FailureQuery, report: FailureReport, given: dict[str, str]) -> dict[str, Any]:
    names = _series(report.steps)
    places = {name: place for place, name in enumerate(names)}
    counts = {(step.at, places[step.tool]): step.failed for step in report.steps}
    steps = steps_between(query.since, query.until, query.unit)
    chart: Chart = stack(steps, counts, len(names), query.unit)
    columns = [_column(at, counts, len(names), query.unit) for at in steps]
    others = {name: value for name, value in given.items() if value and name != "tool"}
    return {
        "query": query,
        "names": [_OTHERS if name is None else name for name in names],
        "chart": chart,
        "columns": [column for column in columns if column.total],
        "total": sum(column.total for column in columns),
        "tools": [(tool, "?" + urlencode({**others, "tool": tool.tool})) for tool in report.tools],
        "newest": report.newest,
        "file": "/export/failures.csv?" + urlencode(_file_of(query)),
        "most_tools": MOST_TOOLS,
        "most_calls": MOST_CALLS,
        "labels": {block.at: label_of(block.at, query.unit) for block in chart.blocks},
        "size": (WIDTH, HEIGHT, LEFT),
    }


def _file_of(query: FailureQuery) -> dict[str, str]:
    """The same period, and agent, as the export takes them."""
    times = {"since": query.since.isoformat(), "until": query.until.isoformat()}
    return times if query.agent_id is None else {**times, "agent": query.agent_id}


def _column(at: dt.datetime, counts: dict[tuple[dt.datetime, int], int], series: int, unit: str) -> Column:
    own = [counts.get((at, one), 0) for one in range(series)]
    return Column(label_of(at, unit), own, sum(own))


def _series(steps: Sequence[Step]) -> list[str | None]:
    """The tools of the chart, the one that failed most first; all others together last."""
    totals: dict[str | None, int] = {}
    for step in steps:
        totals[step.tool] = totals.get(step.tool, 0) + step.failed
    return sorted(totals, key=lambda name: (name is None, -totals[name], name or ""))


def _query(fields: Query, now: dt.datetime) -> FailureQuery:
    """The period and whose calls.

    Raises:
        BadRequestError: no such period.
    """
    since_us, until_us = instant_of(fields, "since"), instant_of(fields, "until")
    end = now + dt.timedelta(seconds=1)
    until = end if until_us is None else min(end, from_microseconds(until_us))
    if since_us is None:
        day = until.replace(hour=0, minute=0, second=0, microsecond=0)
        since = day - dt.timedelta(days=DEFAULT_DAYS - 1) if until.year > 1 else day
    else:
        since = from_microseconds(since_us)
    length = until - since
    if not dt.timedelta(0) < length <= dt.timedelta(days=_MOST_DAYS):
        raise BadRequestError("since: must be before until and before now, and not more than 40 years before")
    unit = "hour" if length <= dt.timedelta(days=_HOURLY_DAYS) else "day"
    if length > dt.timedelta(days=_DAILY_DAYS):
        unit = "month"
    wanted = wanted_of(fields)
    agent = None if wanted.agent_id is None else check_agent_id(wanted.agent_id)
    return FailureQuery(since, until, unit, agent, wanted.tool)
