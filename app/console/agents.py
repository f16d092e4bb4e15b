"""The first page: how the fleet stands."""

from __future__ import annotations

import re
from typing import Final

from litestar import get
from litestar.response.base import ASGIResponse

from app.console.asked import asked
from app.console.page import render
from app.console.visitor import visit
from app.errors import BadRequestError
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.ledger.fleet import FleetQuery, Standing
from app.principal import Permission

_PART_OF_AN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@get("/", opt={PERMISSION: Permission.LIST_AGENTS}, include_in_schema=False)
async def agents(request: Call) -> ASGIResponse:
    """A page of agents with their standing, searched and filtered by the address."""
    visitor, grant = await visit(request)
    fields = asked(request)
    query = _query(fields)
    page = await services_of(request).ledger.fleet.page(grant, query)
    kept = {name: fields[name] for name in ("q", "state", "order") if name in fields}
    return render(
        "agents.html", visitor, page=page, query=query, fields=kept, standings=[one.value for one in Standing]
    )


def _query(fields: dict[str, str]) -> FleetQuery:
    text, state = fields.get("q", ""), fields.get("state")
    # No id holds anything else; what is asked for is found nowhere, and that is the answer.
    before, after = fields.get("before"), fields.get("after")
    for place in (before, after):
        if place is not None and _PART_OF_AN_ID.fullmatch(place) is None:
            raise BadRequestError("after, before: must be the id of an agent")
    if state is not None and state not in {one.value for one in Standing}:
        raise BadRequestError(f"state: must be one of {', '.join(one.value for one in Standing)}")
    return FleetQuery(
        text=text,
        standing=None if state is None else Standing(state),
        beyond=before or after,
        backwards=before is not None,
        descending=fields.get("order") == "desc",
    )
