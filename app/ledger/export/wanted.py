"""What to export, as which file, and the views that there are to export."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from app.errors import BadRequestError
from app.moment import from_microseconds
from app.principal import ADMINISTRATION
from db.exports import Between, ViewQuery

if TYPE_CHECKING:
    from app.chain.strict import JsonObject, JsonValue


class Format(enum.StrEnum):
    """As which file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    BUNDLE = "bundle"


MEDIA_TYPES: Final = {
    Format.JSONL: "application/x-ndjson",
    Format.CSV: "text/csv; charset=utf-8; header=present",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.BUNDLE: "application/zip",
}

_SUFFIXES: Final = {Format.BUNDLE: "trails.zip"}

_BY_RECORD: Final = "v.recorded_at, v.log_uuid, v.seq"

VIEWS: Final = {
    view.name: view
    for view in (
        ViewQuery("trace_nodes", "recorded_at", f'{_BY_RECORD}, v."position"'),
        ViewQuery("tool_calls", "recorded_at", f'{_BY_RECORD}, v."position"'),
        ViewQuery("failed_tool_calls", "recorded_at", f'{_BY_RECORD}, v."position"'),
        ViewQuery(
            "corrections",
            "recorded_at",
            "v.recorded_at, v.session_id, v.agent_id, v.failed_node_id, v.correction_at, "
            "v.correction_node_id",
        ),
        ViewQuery(
            "sessions", "first_recorded_at", "v.first_recorded_at, v.session_id", "agents", many_agents=True
        ),
        ViewQuery("actions", "requested_at", "v.requested_at, v.log_uuid, v.seq"),
        ViewQuery("approvals", "requested_at", "v.requested_at, v.log_uuid, v.seq"),
        ViewQuery("approvals_waiting", "requested_at", "v.requested_at, v.log_uuid, v.seq"),
        ViewQuery("decisions", "decided_at", "v.decided_at, v.log_uuid, v.seq"),
        ViewQuery("claims", "claimed_at", "v.claimed_at, v.log_uuid, v.seq"),
        ViewQuery("events", "recorded_at", _BY_RECORD),
        ViewQuery("model_usage", "recorded_at", f'{_BY_RECORD}, v."position"'),
        ViewQuery("daily_tool_calls", "day", "v.day, v.agent_id, v.tool"),
        ViewQuery("scars", "scarred_at", "v.scarred_at, v.log_uuid, v.seq"),
        ViewQuery("agents_status", "created_at", "v.agent_id, v.log_uuid"),
    )
}
"""The views that can be exported, each with the time that ``since`` and ``until`` are about."""

MAX_AGENTS: Final = 100
"""Agents that one export may name."""


class Wanted(msgspec.Struct, frozen=True):
    """What to export.

    Attributes:
        format: as which file.
        view: rows of this view in place of records.
        agents: only of these agents; None: of all.
        since_us: only what was recorded at this time or later, µs since the epoch.
        until_us: only what was recorded before this time.
        trailer: whether JSON lines and CSV end in a statement that says what was exported.
    """

    format: Format = Format.JSONL
    view: str | None = None
    agents: tuple[str, ...] | None = None
    since_us: int | None = None
    until_us: int | None = None
    trailer: bool = True

    def check(self) -> Wanted:
        """The same, if it is something that can be exported.

        Raises:
            BadRequestError: names the member that cannot be had, and what can.
        """
        if self.view is not None and self.view not in VIEWS:
            raise BadRequestError(f"view: must be one of {', '.join(VIEWS)}")
        if self.format is Format.BUNDLE and (self.view is not None or not self.whole_chains):
            raise BadRequestError("format: a bundle holds whole chains: leave view, since and until out")
        if None not in (self.since_us, self.until_us) and self.since_us >= self.until_us:  # type: ignore[operator]
            raise BadRequestError("until: must be later than since")
        if self.agents is not None and not 0 < len(self.agents) <= MAX_AGENTS:
            raise BadRequestError(f"agent: may be given up to {MAX_AGENTS} times")
        is_bare = self.format is Format.JSONL and self.view is None and not self.trailer
        if is_bare and not (self.whole_chains and self.one_agent):
            # Nothing in the file would tell where a chain begins or that records are left out: whoever
            # verified it would take it for one that was tampered with.
            raise BadRequestError("trailer: may be false for JSON lines of one agent's whole chain alone")
        return self

    @property
    def whole_chains(self) -> bool:
        """Whether every chain in it is there from its first record to its last."""
        return self.view is None and self.since_us is None and self.until_us is None

    @property
    def everything(self) -> bool:
        """Whether it holds all records of the tenant."""
        return self.whole_chains and self.agents is None

    @property
    def between(self) -> Between:
        """Its bounds as the database takes them."""
        return Between(_moment(self.since_us), _moment(self.until_us))

    @property
    def one_agent(self) -> str | None:
        """The only agent, if it is of one."""
        return self.agents[0] if self.agents is not None and len(self.agents) == 1 else None

    def to_json(self) -> JsonObject:
        """What was asked for, as files and records tell it."""
        between = self.between
        agents: list[JsonValue] | None = None if self.agents is None else list(self.agents)
        return {
            "view": self.view,
            "agents": agents,
            "since": None if between.since is None else written(between.since),
            "until": None if between.until is None else written(between.until),
        }


def written(moment: datetime) -> str:
    """A time as records write it."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def file_name(slug: str, wanted: Wanted, at: datetime) -> str:
    """A name for the file, of letters, digits, ``. _ -`` alone: tenant, what, when."""
    agent = wanted.one_agent
    what = wanted.view or ("administration" if agent == ADMINISTRATION else agent) or "records"
    part = "" if wanted.whole_chains or wanted.view is not None else "-part"
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    return f"{slug}-{what}{part}-{stamp}.{_SUFFIXES.get(wanted.format, wanted.format.value)}"


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_microseconds(us)
