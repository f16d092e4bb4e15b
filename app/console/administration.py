"""The tenant's administration: what was done, by whom, from the chain that holds it."""

from __future__ import annotations

from litestar import get
from litestar.response.base import ASGIResponse

from app.console.acts import known_acts
from app.console.log import log_page
from app.console.visitor import visit
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.principal import ADMINISTRATION, Permission, grant


@get("/administration", opt={PERMISSION: Permission.READ_LOG}, include_in_schema=False)
async def administration(request: Call) -> ASGIResponse:
    """The administrative acts, newest first, with the tenant's public keys beside them."""
    visitor, _ = await visit(request)
    reading = grant(visitor.principal, Permission.READ_LOG, ADMINISTRATION)
    keys = await services_of(request).ledger.public_keys(reading.tenant_id)
    return await log_page(
        request, visitor, reading, "/administration", "administration.html", acts=known_acts(), keys=keys
    )
