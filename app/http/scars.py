"""Scars and the kill switch."""

from __future__ import annotations

from litestar import post

from app.errors import AlreadyTerminatedError, IdempotencyConflictError, UnknownActionError
from app.guard.bodies import AddScar, Terminate
from app.http import documents, examples
from app.http.access import granted
from app.http.bodies import read_json
from app.http.exchange import Call, services_of
from app.http.operation import ON_AGENT, describe
from app.http.responses import Answer, answer
from app.principal import Permission


@post(
    "/v1/agents/{agent_id:str}/scars",
    status_code=200,
    summary="Scar an agent",
    opt=describe(
        Permission.SCAR,
        body=(documents.NewScar, examples.NEW_SCAR),
        answer=documents.Status,
        example=examples.STATUS,
        errors=(*ON_AGENT, UnknownActionError, IdempotencyConflictError),
    ),
)
async def add_scar(request: Call) -> Answer:
    """Marks the agent; when the sum reaches the policy's ``scar_limit`` it is terminated. Operators only."""
    grant = granted(request)
    body = await read_json(request, grant)
    scar = AddScar.parse(body.value)
    ledger = services_of(request).ledger
    return answer(await ledger.scar(grant, scar, body.stamp("scars")))


@post(
    "/v1/agents/{agent_id:str}/terminate",
    status_code=200,
    summary="Terminate an agent",
    opt=describe(
        Permission.TERMINATE,
        body=(documents.Termination, examples.TERMINATION),
        answer=documents.Status,
        example={**examples.STATUS, "alive": False, "termination_reason": "project ended"},
        errors=(*ON_AGENT, AlreadyTerminatedError, IdempotencyConflictError),
    ),
)
async def terminate_agent(request: Call) -> Answer:
    """Ends the agent for good: it is never allowed anything again. Operators only."""
    grant = granted(request)
    body = await read_json(request, grant)
    termination = Terminate.parse(body.value)
    ledger = services_of(request).ledger
    return answer(await ledger.terminate(grant, termination, body.stamp("terminate")))
