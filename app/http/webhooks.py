"""Webhooks of a tenant: setting them up, listing, trying, switching on again, deleting."""

from __future__ import annotations

import re
from typing import Final

from litestar import delete, get, post

from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError, ConflictError, IdempotencyConflictError, NotFoundError
from app.guard.fields import FieldError, body_of, text
from app.http import documents, examples
from app.http.access import check_agent_id, granted
from app.http.bodies import read_json, read_json_if_any
from app.http.exchange import Call, services_of
from app.http.feed import MAX_NAMED, check_kind
from app.http.operation import describe
from app.http.responses import Answer, answer
from app.http.why import reason_of
from app.ledger.feed.batches import Wanted
from app.ledger.webhooks.hooks import NewWebhook
from app.ledger.webhooks.trial import tried
from app.principal import Permission

_WEBHOOK_ID: Final = re.compile(r"[0-9a-f]{16}")


@post(
    "/v1/webhooks",
    status_code=200,
    summary="Make a webhook",
    opt=describe(
        Permission.SET_WEBHOOKS,
        body=(documents.NewWebhook, examples.NEW_WEBHOOK),
        answer=documents.CreatedWebhook,
        example=examples.CREATED_WEBHOOK,
        errors=(ConflictError, IdempotencyConflictError),
    ),
)
async def create_webhook(request: Call) -> Answer:
    """Records are told to its URL from now on, one after the other; ``secret`` is shown once. Operators only.

    Each is a CloudEvents 1.0 event in structured JSON, as the feed has it, signed as Standard Webhooks says.
    What is not answered with 2xx is sent again, later and later; a webhook that takes nothing for
    TRAILS_WEBHOOK_GIVE_UP_HOURS is switched off. Events may come twice, under the same webhook-id. That it
    was set up is on record in the tenant's ``_administration``, without path and query of its URL.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    services = services_of(request)
    webhook, secret = await services.ledger.webhooks.create(
        grant, _new(body.value), services.settings.webhook_allow or (), body.stamp("webhooks")
    )
    return answer({"webhook": webhook, "secret": secret})


@get(
    "/v1/webhooks",
    summary="List webhooks",
    opt=describe(Permission.LIST_WEBHOOKS, answer=documents.WebhookList, example=examples.WEBHOOKS),
)
async def list_webhooks(request: Call) -> Answer:
    """The tenant's webhooks, oldest first, with how far each is and why it fails. Operators and auditors."""
    webhooks = await services_of(request).ledger.webhooks.list(granted(request))
    return answer({"webhooks": list(webhooks)})


@delete(
    "/v1/webhooks/{webhook_id:str}",
    status_code=200,
    summary="Delete a webhook",
    opt=describe(
        Permission.SET_WEBHOOKS,
        answer=documents.DeletedWebhook,
        example=examples.DELETED_WEBHOOK,
        errors=(NotFoundError,),
    ),
)
async def delete_webhook(request: Call) -> Answer:
    """Ends a webhook for good, within some seconds; that it was one stays on record. Operators only."""
    grant = granted(request)
    await services_of(request).ledger.webhooks.delete(grant, _id_of(request))
    return answer({"deleted": True})


@post(
    "/v1/webhooks/{webhook_id:str}/enable",
    status_code=200,
    summary="Switch a webhook on again",
    opt=describe(
        Permission.SET_WEBHOOKS,
        body=(documents.WebhookReason, examples.WEBHOOK_REASON),
        answer=documents.WebhookEntry,
        example=examples.WEBHOOK,
        errors=(NotFoundError, ConflictError, IdempotencyConflictError),
    ),
)
async def enable_webhook(request: Call) -> Answer:
    """A webhook that was switched off goes on where it was, with all that came meanwhile. Operators only."""
    grant = granted(request)
    webhook_id = _id_of(request)
    body = await read_json(request, grant)
    hooks = services_of(request).ledger.webhooks
    stamp = body.stamp(f"webhooks/{webhook_id}/enable")
    return answer(await hooks.enable(grant, webhook_id, reason_of(body.value), stamp))


@post(
    "/v1/webhooks/{webhook_id:str}/test",
    status_code=200,
    summary="Try a webhook",
    opt=describe(
        Permission.SET_WEBHOOKS,
        body=(documents.WebhookTrial, {}),
        needs_body=False,
        answer=documents.WebhookTried,
        example=examples.WEBHOOK_TRIED,
        errors=(NotFoundError,),
    ),
)
async def try_webhook(request: Call) -> Answer:
    """Sends one signed event of the type ``trails.webhook.test``, and tells how that went. Operators only.

    It is no record, and is not repeated; what waits for the webhook stays as it is.
    """
    grant = granted(request)
    webhook_id = _id_of(request)
    body = await read_json_if_any(request, grant)
    try:
        body_of(body.value)
    except FieldError as error:
        raise BadRequestError(str(error)) from error
    services = services_of(request)
    hook = await services.ledger.webhooks.opened(grant.tenant_id, webhook_id)
    return answer(await tried(hook, services.settings.webhook_allow or ()))


def _id_of(request: Call) -> str:
    webhook_id: str = request.path_params["webhook_id"]
    if _WEBHOOK_ID.fullmatch(webhook_id) is None:
        raise NotFoundError("webhook not found")
    return webhook_id


def _new(value: JsonValue) -> NewWebhook:
    try:
        source = body_of(value, "name", "url", "kinds", "agents")
        kinds, agents = _list(source, "kinds"), _list(source, "agents")
        return NewWebhook(
            name=text(source, "name"),
            url=text(source, "url"),
            wanted=Wanted(
                None if kinds is None else tuple(check_kind(kind, "kinds") for kind in kinds),
                None if agents is None else tuple(check_agent_id(agent_id) for agent_id in agents),
            ),
        )
    except FieldError as error:
        raise BadRequestError(str(error)) from error


def _list(source: JsonObject, name: str) -> list[str] | None:
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not list or not 1 <= len(value) <= MAX_NAMED:
        raise FieldError(name, f"must be a list of 1 to {MAX_NAMED}")
    if not all(isinstance(entry, str) for entry in value):
        raise FieldError(name, "must be a list of strings")
    return list(dict.fromkeys(str(entry) for entry in value))
