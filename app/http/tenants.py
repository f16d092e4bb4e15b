"""Tenants: for the root of the installation, who makes them and sees nothing inside them."""

from __future__ import annotations

from litestar import get, post

from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError, ConflictError, IdempotencyConflictError, NotFoundError
from app.guard.fields import FieldError, body_of, text
from app.http import documents, examples
from app.http.access import granted
from app.http.bodies import read_json
from app.http.exchange import Call, services_of
from app.http.operation import TEXT, Field, describe
from app.http.query import page_of
from app.http.responses import Answer, answer
from app.http.why import reason_of
from app.ledger.tenancy.administration import NewTenant, told, written
from app.principal import Permission
from db.ledger import TenantRow

MAX_TENANTS = 1_000
"""Tenants in one answer."""


@post(
    "/v1/tenants",
    status_code=200,
    summary="Create a tenant",
    opt=describe(
        Permission.CREATE_TENANT,
        body=(documents.NewTenant, examples.NEW_TENANT),
        answer=documents.CreatedTenant,
        example=examples.CREATED_TENANT,
        errors=(ConflictError, IdempotencyConflictError),
    ),
)
async def create_tenant(request: Call) -> Answer:
    """Makes a tenant with its signing key and its first operator, whose key is shown in this answer only.

    Repeating the request with its Idempotency-Key is refused (409), and says that it made the tenant.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    tenant, issued = await services_of(request).ledger.administration.create_tenant(
        _new_tenant(body.value), grant.actor, body.stamp("tenants")
    )
    return answer({"tenant": _told(tenant), "key": told(issued.key), "token": issued.token})


@get(
    "/v1/tenants",
    summary="List tenants",
    opt=describe(
        Permission.LIST_TENANTS,
        answer=documents.TenantList,
        example=examples.TENANTS,
        query=(
            Field("after", TEXT, "List tenants with a slug above this one."),
            Field("limit", {"type": "integer", "minimum": 1, "default": MAX_TENANTS}, "Most to list."),
        ),
    ),
)
async def list_tenants(request: Call) -> Answer:
    """Who shares this installation, by slug."""
    granted(request)
    page = page_of(request, default=MAX_TENANTS, most=MAX_TENANTS)
    administration = services_of(request).ledger.administration
    rows = await administration.tenants(after=page.after or "", limit=page.limit)
    return answer({"tenants": [{**_told(row), "suspended": suspended} for row, suspended in rows]})


@post(
    "/v1/tenants/{slug:str}/suspend",
    status_code=200,
    summary="Suspend a tenant",
    opt=describe(
        Permission.SUSPEND_TENANT,
        body=(documents.Why, examples.REASON),
        answer=documents.TenantStanding,
        example={"slug": "acme", "suspended": True},
        errors=(NotFoundError, ConflictError, IdempotencyConflictError),
    ),
)
async def suspend_tenant(request: Call) -> Answer:
    """Stops all writing for a tenant; its records stay readable and verifiable."""
    return await _suspend(request, suspended=True)


@post(
    "/v1/tenants/{slug:str}/resume",
    status_code=200,
    summary="Let a suspended tenant go on",
    opt=describe(
        Permission.SUSPEND_TENANT,
        body=(documents.Why, examples.REASON),
        answer=documents.TenantStanding,
        example={"slug": "acme", "suspended": False},
        errors=(NotFoundError, ConflictError, IdempotencyConflictError),
    ),
)
async def resume_tenant(request: Call) -> Answer:
    """Ends a suspension: the tenant's keys write again."""
    return await _suspend(request, suspended=False)


async def _suspend(request: Call, *, suspended: bool) -> Answer:
    grant = granted(request)
    body = await read_json(request, grant)
    reason = reason_of(body.value)
    ledger = services_of(request).ledger
    slug: str = request.path_params["slug"]
    tenant_id = await ledger.tenant_id(slug)
    stamp = body.stamp("tenants/suspend" if suspended else "tenants/resume")
    await ledger.administration.suspend_tenant(tenant_id, grant.actor, reason, stamp, suspended=suspended)
    return answer({"slug": slug, "suspended": suspended})


def _new_tenant(value: JsonValue) -> NewTenant:
    try:
        source = body_of(value, "slug", "name", "operator")
        return NewTenant(
            slug=text(source, "slug", low=1, high=63),
            name=text(source, "name", low=1, high=200),
            operator=text(source, "operator"),
        )
    except FieldError as error:
        raise BadRequestError(str(error)) from error


def _told(row: TenantRow) -> JsonObject:
    return {
        "tenant_id": str(row.tenant_id),
        "slug": row.slug,
        "name": row.name,
        "created_at": written(row.created_at),
    }
