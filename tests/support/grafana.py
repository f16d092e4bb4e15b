"""Grafana's part in a dashboard, as far as its documentation tells: what becomes of a panel's query.

Grafana itself is not run. Its front end puts variables into a query (``${name:sqlstring}``: each chosen value
in single quotes, quotes doubled; for "All" the variable's ``allValue`` as it stands), then the PostgreSQL
plugin puts in ``$__interval_ms`` and the macros, wherever in the text they stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

Json = dict[str, Any]

GRAFANA: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
_VARIABLE: Final = re.compile(r"\$\{(\w+):sqlstring\}")
_MACRO: Final = re.compile(r"\$__(\w+)\(([^()]*)\)")


class Chosen(msgspec.Struct, frozen=True):
    """What somebody who looks at a dashboard has chosen: a stretch of time, and values of variables."""

    since: datetime
    until: datetime
    interval_ms: int = 3_600_000
    values: Mapping[str, Sequence[str]] = {}
    """Of each variable that is not left at "All" the values."""


def dashboards() -> dict[str, Json]:
    """The dashboards by the names of their files."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in GRAFANA.glob("dashboards/*.json")}


def panels(dashboard: Json) -> list[Json]:
    """All panels but the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def strings(value: Any) -> Iterator[str]:
    """Every string in a document, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def expanded(dashboard: Json, query: str, chosen: Chosen) -> str:
    """The SQL that the database gets.

    Raises:
        ValueError: something in it is no variable and no macro that is known.
    """
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}

    def values(match: re.Match[str]) -> str:
        picked = chosen.values.get(match[1])
        if picked is None:
            return str(variables[match[1]]["allValue"])
        return ",".join("'" + value.replace("'", "''") + "'" for value in picked)

    text = _VARIABLE.sub(values, query).replace("$__interval_ms", str(chosen.interval_ms))
    text = _MACRO.sub(lambda match: _macro(match[1], match[2], chosen), text)
    if "$" in text:
        raise ValueError(f"something is left of: {text}")
    return text


def _macro(name: str, argument: str, chosen: Chosen) -> str:
    since, until = (f"'{_told(at)}'" for at in (chosen.since, chosen.until))
    match name, argument:
        case "timeFrom", "":
            return since
        case "timeTo", "":
            return until
        case "timeFilter", column if column:
            return f"{column} BETWEEN {since} AND {until}"
    raise ValueError(f"no macro that is known: {name}({argument})")


def _told(at: datetime) -> str:
    """As Grafana writes a time: RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
