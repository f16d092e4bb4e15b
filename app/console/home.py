"""The first page: what waits for a person, and how the fleet stands."""

from __future__ import annotations

from litestar import get
from litestar.response.base import ASGIResponse

from app.console.page import render
from app.console.visitor import visit
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.principal import Permission


@get("/", opt={PERMISSION: Permission.LIST_AGENTS}, include_in_schema=False)
async def home(request: Call) -> ASGIResponse:
    """All agents with their standing."""
    visitor, grant = await visit(request)
    agents = await services_of(request).ledger.agents(grant)
    return render("home.html", visitor, agents=agents)
