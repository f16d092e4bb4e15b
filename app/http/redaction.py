"""Redaction: what is taken out of a tenant's records before they are written."""

from __future__ import annotations

from litestar import get, post

from app.errors import IdempotencyConflictError
from app.http import documents, examples
from app.http.access import granted
from app.http.bodies import read_json
from app.http.exchange import Call, services_of
from app.http.operation import describe
from app.http.responses import Answer, answer
from app.principal import Permission
from app.redaction import RuleList


@get(
    "/v1/redaction",
    summary="Redaction rules",
    opt=describe(
        Permission.READ_REDACTION, answer=documents.RedactionRules, example=examples.REDACTION_RULES
    ),
)
async def read_redaction(request: Call) -> Answer:
    """What is taken out of what agents send before it is hashed and signed, and which patterns there are."""
    return answer((await services_of(request).ledger.redaction(granted(request))).described())


@post(
    "/v1/redaction",
    status_code=200,
    summary="Change the redaction rules",
    opt=describe(
        Permission.SET_REDACTION,
        body=(documents.NewRedactionRules, examples.NEW_REDACTION_RULES),
        answer=documents.RedactionRules,
        example=examples.REDACTION_RULES,
        errors=(IdempotencyConflictError,),
    ),
)
async def set_redaction(request: Call) -> Answer:
    """Replaces the rules, on record; within a second every server process goes by them. Operators only.

    Records that are written already stay as they are: nothing takes a secret out of them.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    wanted = RuleList.parse(body.value, 0)
    administration = services_of(request).ledger.administration
    return answer((await administration.set_redaction(grant, wanted, body.stamp("redaction"))).described())
