"""Actions: asking for them, reading them, deciding on them, reporting how they went."""

from __future__ import annotations

from litestar import get, post

from app.errors import (
    ClaimRefusedError,
    IdempotencyConflictError,
    InvalidStateError,
    TooManyRequestsError,
    UnknownActionError,
)
from app.guard.bodies import Approve, Ask, Claim, Reject, Report
from app.guard.words import OutcomeStatus
from app.http import documents, examples
from app.http.access import grant_further, granted
from app.http.bodies import read_json
from app.http.exchange import Call, services_of
from app.http.operation import ON_AGENT, Errors, describe
from app.http.responses import Answer, answer, answer_decision
from app.principal import Permission

_ON_ACTION: Errors = (*ON_AGENT, UnknownActionError, InvalidStateError, IdempotencyConflictError)


@post(
    "/v1/agents/{agent_id:str}/actions",
    status_code=200,
    summary="Ask to act",
    opt=describe(
        Permission.REQUEST,
        body=(documents.NewAction, examples.NEW_ACTION),
        answer=documents.Decision,
        example=examples.ALLOWED,
        errors=(*ON_AGENT, TooManyRequestsError, IdempotencyConflictError),
    ),
)
async def request_action(request: Call) -> Answer:
    """Asks the guard: allowed, denied, or held for a person. Both are on record before the answer is out.

    A denial is no error: the answer is 200. When only the rate limit stood in the way, ``Retry-After`` says
    after how many seconds the window has room again.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    ask = Ask.parse(body.value)
    ledger = services_of(request).ledger
    return answer_decision(await ledger.request(grant, ask, body.stamp("actions")))


@get(
    "/v1/agents/{agent_id:str}/actions/pending",
    summary="Pending actions",
    opt=describe(
        Permission.READ_PENDING, answer=documents.PendingList, example=examples.PENDING, errors=ON_AGENT
    ),
)
async def pending_actions(request: Call) -> Answer:
    """What waits for a person, oldest first, with the input exactly as requested."""
    waiting = await services_of(request).ledger.pending(granted(request))
    return answer({"pending": [*waiting]})


@get(
    "/v1/agents/{agent_id:str}/actions/{action_id:str}",
    summary="An action",
    opt=describe(Permission.READ_ACTION, answer=documents.Action, example=examples.ACTION, errors=ON_AGENT),
)
async def read_action(request: Call) -> Answer:
    """One action as it stands: what was asked, what became of it, how it went."""
    ledger = services_of(request).ledger
    return answer(await ledger.action(granted(request), _action_id(request)))


@post(
    "/v1/agents/{agent_id:str}/actions/{action_id:str}/outcome",
    status_code=200,
    summary="Report an outcome",
    opt=describe(
        Permission.REPORT,
        body=(documents.Outcome, examples.OUTCOME),
        answer=documents.Status,
        example=examples.STATUS,
        errors=_ON_ACTION,
    ),
)
async def report_outcome(request: Call) -> Answer:
    """Records how an allowed action went, once. ``harmful`` is for operators only.

    ``unknown`` is for a caller who cannot tell, e.g. since a reply was lost; one of the others may follow.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    report = Report.parse(body.value)
    if report.status is OutcomeStatus.HARMFUL:
        grant = grant_further(request, Permission.REPORT_HARM, request.path_params["agent_id"])
    action_id = _action_id(request)
    stamp = body.stamp(f"actions/{action_id}/outcome")
    return answer(await services_of(request).ledger.report(grant, action_id, report, stamp))


@post(
    "/v1/agents/{agent_id:str}/actions/{action_id:str}/approve",
    status_code=200,
    summary="Approve an action",
    opt=describe(
        Permission.DECIDE,
        body=(documents.Approval, examples.APPROVAL),
        answer=documents.Decision,
        example=examples.ALLOWED,
        errors=_ON_ACTION,
    ),
)
async def approve_action(request: Call) -> Answer:
    """Lets a pending action go, unless the guard, which checks it once more, denies it. Operators only.

    Not with the key that asked for it (403). On record the approver is the key; ``approver`` is kept apart.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    approval = Approve.parse(body.value)
    action_id = _action_id(request)
    stamp = body.stamp(f"actions/{action_id}/approve")
    ledger = services_of(request).ledger
    return answer_decision(await ledger.approve(grant, action_id, approval, stamp))


@post(
    "/v1/agents/{agent_id:str}/actions/{action_id:str}/reject",
    status_code=200,
    summary="Reject an action",
    opt=describe(
        Permission.DECIDE,
        body=(documents.Rejection, examples.REJECTION),
        answer=documents.Decision,
        example={
            "decision": "denied",
            "action_id": "act-2",
            "reason": {"code": "rejected", "by": "operator", "reason": "wrong address"},
        },
        errors=_ON_ACTION,
    ),
)
async def reject_action(request: Call) -> Answer:
    """Refuses a pending action, with a scar for having asked when ``scar`` names one. Operators only."""
    grant = granted(request)
    body = await read_json(request, grant)
    rejection = Reject.parse(body.value)
    action_id = _action_id(request)
    stamp = body.stamp(f"actions/{action_id}/reject")
    ledger = services_of(request).ledger
    return answer_decision(await ledger.reject(grant, action_id, rejection, stamp))


@post(
    "/v1/agents/{agent_id:str}/actions/{action_id:str}/claim",
    status_code=200,
    summary="Claim an action",
    opt=describe(
        Permission.CLAIM,
        body=(documents.NewClaim, examples.NEW_CLAIM),
        answer=documents.Claim,
        example=examples.CLAIM,
        errors=(
            *ON_AGENT,
            UnknownActionError,
            ClaimRefusedError,
            TooManyRequestsError,
            IdempotencyConflictError,
        ),
    ),
)
async def claim_action(request: Call) -> Answer:
    """Takes an allowed action to carry it out: exactly what was allowed, while the agent is alive, and once.

    For the backend that acts. A refused claim (409) says why in ``code``, is on record, and leaves the action
    as it was: ``claim_mismatch``, ``already_claimed``, ``not_allowed``, ``completed``, ``terminated``,
    ``approval_expired``. Send an Idempotency-Key: who lost the answer gets it again with the same key.
    """
    grant = granted(request)
    body = await read_json(request, grant)
    claim = Claim.parse(body.value)
    action_id = _action_id(request)
    stamp = body.stamp(f"actions/{action_id}/claim")
    return answer(await services_of(request).ledger.claim(grant, action_id, claim, stamp))


def _action_id(request: Call) -> str:
    return str(request.path_params["action_id"])
