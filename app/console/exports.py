"""Files to save for whoever is signed in: the tenant's evidence, and its failed calls. Both are on record."""

from __future__ import annotations

from typing import Final

from litestar import get
from litestar.response.base import ASGIResponse

from app.console.sessions import fields_of
from app.console.visitor import visit
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, services_of
from app.http.query import instant_of
from app.http.streaming import Download
from app.http.target import one_field
from app.ledger.export.wanted import Format, Wanted
from app.principal import Permission

_FIELDS: Final = frozenset({"agent", "since", "until"})


@get("/export.zip", opt={PERMISSION: Permission.EXPORT}, include_in_schema=False)
async def bundle(request: Call) -> ASGIResponse:
    """All chains, their heads and keys and a signed manifest; as ``GET /v1/export?format=bundle``."""
    _, grant = await visit(request)
    return Download(services_of(request).ledger.export(grant, Wanted(format=Format.BUNDLE)))


@get("/export/failures.csv", opt={PERMISSION: Permission.EXPORT}, include_in_schema=False)
async def failures(request: Call) -> ASGIResponse:
    """The failed calls of a period, of all tools, for a spreadsheet; a view of ``GET /v1/export``."""
    _, grant = await visit(request)
    fields = fields_of(request, _FIELDS)
    agent = one_field(fields, "agent")
    wanted = Wanted(
        format=Format.CSV,
        view="failed_tool_calls",
        agents=None if not agent else (check_agent_id(agent),),
        since_us=instant_of(fields, "since"),
        until_us=instant_of(fields, "until"),
    )
    return Download(services_of(request).ledger.export(grant, wanted))
