"""The tenant's API keys, and the public keys that its records are signed with."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from litestar import get, post
from litestar.response.base import ASGIResponse

from app.api_key import TENANT_ROLES, check_key_id
from app.chain.strict import JsonObject
from app.console.agent import ONCE, once, status_of
from app.console.form import Form, read_form
from app.console.page import Page, render, see_other
from app.console.visitor import Visitor, visit
from app.errors import BadRequestError, ConflictError, NotFoundError, TrailsError
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, services_of
from app.ledger.tenancy.administration import NewKey, told, told_row
from app.moment import from_microseconds, to_microseconds
from app.principal import Permission, Role
from app.trace.instant import parse_day_or_instant

if TYPE_CHECKING:
    from datetime import datetime

    from app.principal import Grant
    from db.access import ApiKeyRow

_ROLES: Final = [role.value for role in TENANT_ROLES]


@get("/keys", opt={PERMISSION: Permission.LIST_KEYS}, include_in_schema=False)
async def keys(request: Call) -> ASGIResponse:
    """All keys, those that ended too; for operators with the form that issues one."""
    visitor, grant = await visit(request)
    return await _page(request, visitor, grant)


@post("/keys", opt={PERMISSION: Permission.ISSUE_KEY}, include_in_schema=False)
async def issue(request: Call) -> ASGIResponse:
    """Issues a key and shows its token, this once."""
    visitor, grant = await visit(request)
    form = await read_form(request, visitor)
    body: JsonObject = {name: value for name, value in form.items() if name != ONCE}
    administration = services_of(request).ledger.administration
    try:
        issued = await administration.issue_key(grant, _wanted(form), once(form, "keys", body))
    except (BadRequestError, ConflictError, NotFoundError) as error:
        return await _page(request, visitor, grant, error, form)
    return render("key_issued.html", visitor, key=told(issued.key), token=issued.token)


@get("/keys/{key_id:str}/revoke", opt={PERMISSION: Permission.REVOKE_KEY}, include_in_schema=False)
async def revoke_page(request: Call) -> ASGIResponse:
    """Asks whether the key is to be ended."""
    visitor, grant = await visit(request)
    key_id = _key_id(request)
    rows = await services_of(request).ledger.administration.keys(grant)
    row = next((row for row in rows if row.key_id == key_id), None)
    if row is None:
        raise NotFoundError("key not found")
    return render("revoke_key.html", visitor, key=_entry(row), is_own=visitor.principal.key_id == key_id)


@post("/keys/{key_id:str}/revoke", opt={PERMISSION: Permission.REVOKE_KEY}, include_in_schema=False)
async def revoke(request: Call) -> ASGIResponse:
    """Ends the key for good."""
    visitor, grant = await visit(request)
    await read_form(request, visitor)
    await services_of(request).ledger.administration.revoke_key(grant, _key_id(request))
    return see_other("/keys")


async def _page(
    request: Call, visitor: Visitor, grant: Grant, error: TrailsError | None = None, form: Form | None = None
) -> Page:
    ledger = services_of(request).ledger
    rows = await ledger.administration.keys(grant)
    return render(
        "keys.html",
        visitor,
        status=200 if error is None else status_of(error),
        keys=[_entry(row) for row in reversed(rows)],
        public=await ledger.public_keys(grant.tenant_id),
        roles=_ROLES,
        once=secrets.token_urlsafe(16),
        form=form or {},
        why="" if error is None else error.message,
    )


def _entry(row: ApiKeyRow) -> JsonObject:
    return {**told_row(row), "state": _state(row)}


def _state(row: ApiKeyRow) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and to_microseconds(row.expires_at) <= time.time() * 1_000_000:
        return "expired"
    return "in force"


def _key_id(request: Call) -> str:
    key_id = check_key_id(request.path_params["key_id"])
    if key_id is None:
        raise NotFoundError("key not found")
    return key_id


def _wanted(form: Form) -> NewKey:
    role, agent_id = form.get("role", ""), form.get("agent_id", "").strip()
    if role not in _ROLES:
        raise BadRequestError(f"role: must be one of {', '.join(_ROLES)}")
    return NewKey(
        role=Role(role),
        name=form.get("name", "").strip(),
        agent_id=check_agent_id(agent_id) if agent_id else None,
        expires_at=_expiry(form.get("expires_at", "").strip()),
    )


def _expiry(written: str) -> datetime | None:
    if not written:
        return None
    try:
        return from_microseconds(parse_day_or_instant(written))
    except ValueError:
        raise BadRequestError("expires: must be a day such as 2027-11-30, its start in UTC") from None
