"""What the ledger asks of the database about failed calls of tools, from the auditors' views.

The views read the mirror of the records, under row security; that it is what was signed is for verification
to say. Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from app.errors import TooManyRequestsError
from db.pool import Connection, Pool, tenant_transaction
from db.sql import statements

SERIES: Final = 6
"""Tools that are told apart over time; all others are counted together."""

MOST_TOOLS: Final = 100
"""Tools in the table."""

MOST_CALLS: Final = 50
"""Failed calls that are listed one by one."""

_SQL: Final = statements("failures")


class FailureQuery(msgspec.Struct, frozen=True):
    """Which calls: recorded from ``since`` on and before ``until``, of one agent or tool alone or of all.

    ``unit`` is the length of the steps over time: ``hour``, ``day`` or ``month``, in UTC.
    """

    since: datetime
    until: datetime
    unit: str = "day"
    agent_id: str | None = None
    tool: str | None = None


class Step(msgspec.Struct, frozen=True):
    """Failed calls of one tool (None: of all that are not among the worst) in one step of time."""

    at: datetime
    tool: str | None
    failed: int


class ToolCount(msgspec.Struct, frozen=True):
    """How reliable and how fast one tool was, as the auditors' query ``tool_reliability`` tells it."""

    tool: str
    calls: int
    failed: int
    failed_percent: Decimal | None
    denied: int
    median_ms: Decimal | None
    p95_ms: Decimal | None


class FailedCall(msgspec.Struct, frozen=True):
    """One failed call."""

    recorded_at: datetime
    agent_id: str
    tool: str
    error: str | None
    session_id: UUID
    node_id: str
    seq: int
    action_id: str | None
    clock_skewed: bool | None
    without_session: bool


class FailureReport(msgspec.Struct, frozen=True):
    """Failed calls over time, tools with the worst first, and the newest failures."""

    steps: list[Step]
    tools: list[ToolCount]
    newest: list[FailedCall]


_SPARE_SECS: Final = 1.0
"""What the client waits beyond the database's own limit for a statement, which says why it ends."""


async def report(pool: Pool, tenant_id: UUID, query: FailureQuery, timeout_ms: int) -> FailureReport:
    """Answers a query; each of its statements may take ``timeout_ms``.

    Raises:
        TooManyRequestsError: one of them took longer.
    """
    asked = (query.since, query.until, query.agent_id, query.tool)
    async with tenant_transaction(pool, tenant_id) as connection:
        await connection.execute(_SQL["bounded"], str(timeout_ms))
        try:
            return await _told(connection, asked, query.unit, timeout_ms / 1000 + _SPARE_SECS)
        except asyncpg.QueryCanceledError:
            raise TooManyRequestsError(
                f"counting the calls of this period took longer than {timeout_ms / 1000:g} seconds and was "
                "stopped; ask for a shorter period, one agent or one tool"
            ) from None


async def _told(
    connection: Connection,
    asked: tuple[datetime, datetime, str | None, str | None],
    unit: str,
    timeout_secs: float,
) -> FailureReport:
    # The pool's own limit is for statements of requests: shorter, and it would say that the database is away.
    steps = await connection.fetch(_SQL["over_time"], *asked, unit, SERIES, timeout=timeout_secs)
    tools = await connection.fetch(_SQL["by_tool"], *asked, MOST_TOOLS, timeout=timeout_secs)
    newest = await connection.fetch(_SQL["newest"], *asked, MOST_CALLS, timeout=timeout_secs)
    return FailureReport(
        [Step(*row) for row in steps],
        [ToolCount(*row) for row in tools],
        [FailedCall(*row) for row in newest],
    )
