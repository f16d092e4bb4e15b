"""API keys of a tenant: issuing, listing, revoking."""

from __future__ import annotations

import datetime as dt

from litestar import delete, get, post

from app.api_key import TENANT_ROLES, check_key_id
from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError, ConflictError, IdempotencyConflictError, NotFoundError
from app.guard.fields import FieldError, body_of, one_of, optional_text, text
from app.http import documents, examples
from app.http.access import check_agent_id, granted
from app.http.bodies import read_json
from app.http.exchange import Call, services_of
from app.http.operation import describe
from app.http.responses import Answer, answer
from app.ledger.tenancy.administration import NewKey, told, told_row
from app.moment import from_microseconds
from app.principal import Permission
from app.trace.instant import parse_instant


@post(
    "/v1/keys",
    status_code=200,
    summary="Issue an API key",
    opt=describe(
        Permission.ISSUE_KEY,
        body=(documents.NewApiKey, examples.NEW_API_KEY),
        answer=documents.IssuedApiKey,
        example=examples.ISSUED_API_KEY,
        errors=(NotFoundError, ConflictError, IdempotencyConflictError),
    ),
)
async def issue_key(request: Call) -> Answer:
    """Issues a key; ``token`` is shown in this answer and never again. Operators only.

    Repeating the request with its Idempotency-Key is refused (409): the first key was issued, and if its
    answer was lost it is to be revoked.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    wanted = _new_key(body.value)
    issued = await services_of(request).ledger.administration.issue_key(grant, wanted, body.stamp("keys"))
    return answer({"key": told(issued.key), "token": issued.token})


@get(
    "/v1/keys",
    summary="List API keys",
    opt=describe(Permission.LIST_KEYS, answer=documents.ApiKeyList, example=examples.API_KEYS),
)
async def list_keys(request: Call) -> Answer:
    """The tenant's keys, oldest first, revoked and expired ones too; no secrets."""
    rows = await services_of(request).ledger.administration.keys(granted(request))
    return answer({"keys": [told_row(row) for row in rows]})


@delete(
    "/v1/keys/{key_id:str}",
    status_code=200,
    summary="Revoke an API key",
    opt=describe(
        Permission.REVOKE_KEY,
        answer=documents.ApiKeyEntry,
        example=examples.REVOKED_API_KEY,
        errors=(NotFoundError,),
    ),
)
async def revoke_key(request: Call) -> Answer:
    """Ends a key for good, on every server process within a second; what it did stays on record."""
    grant = granted(request)
    key_id = check_key_id(request.path_params["key_id"])
    if key_id is None:
        raise NotFoundError("key not found")
    return answer(told_row(await services_of(request).ledger.administration.revoke_key(grant, key_id)))


def _new_key(value: JsonValue) -> NewKey:
    try:
        source = body_of(value, "role", "name", "agent_id", "expires_at")
        agent_id = optional_text(source, "agent_id")
        return NewKey(
            role=one_of(source, "role", TENANT_ROLES),
            name=text(source, "name"),
            agent_id=None if agent_id is None else check_agent_id(agent_id),
            expires_at=_expiry(source),
        )
    except FieldError as error:
        raise BadRequestError(str(error)) from error


def _expiry(source: JsonObject) -> dt.datetime | None:
    written = optional_text(source, "expires_at")
    if written is None:
        return None
    try:
        return from_microseconds(parse_instant(written))
    except ValueError as error:
        raise FieldError("expires_at", str(error)) from error
