"""One agent: how it stands, what it may do, and what an operator can do to it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from litestar import get, post
from litestar.response.base import ASGIResponse

from app.chain.canonical import canonical
from app.chain.record import format_timestamp
from app.console.form import Form, read_form
from app.console.json_text import shown_json
from app.console.page import Page, render, see_other
from app.console.visitor import Visitor, visit
from app.errors import (
    AlreadyTerminatedError,
    BadRequestError,
    ConflictError,
    TrailsError,
    UnknownActionError,
)
from app.guard.bodies import AddScar, Terminate
from app.guard.words import Severity
from app.http.access import PERMISSION
from app.http.exchange import Call, services_of
from app.http.problems import problem_of
from app.http.streaming import Download
from app.ledger.export.wanted import Wanted
from app.ledger.idempotency import Stamp, stamp
from app.principal import ADMINISTRATION, Permission

if TYPE_CHECKING:
    from app.chain.strict import JsonObject
    from app.ledger.fleet import AgentView
    from app.principal import Grant

ONCE: Final = "once"
"""The field that makes a form one request, however often it is sent."""


@get("/agents/{agent_id:str}", opt={PERMISSION: Permission.READ_STATUS}, include_in_schema=False)
async def agent(request: Call) -> ASGIResponse:
    """The agent's standing, no older than the page."""
    visitor, grant = await visit(request)
    if grant.agent_id == ADMINISTRATION:
        return see_other("/administration")
    return await agent_page(request, visitor, grant)


async def agent_page(
    request: Call,
    visitor: Visitor,
    grant: Grant,
    *,
    status: int = 200,
    form: Form | None = None,
    why: str = "",
) -> Page:
    """The page, with what was wrong in the form that it holds."""
    view = await services_of(request).ledger.fleet.agent(grant)
    return render(
        "agent.html",
        visitor,
        status=status,
        agent_id=grant.agent_id,
        view=view,
        checkpoint=checkpoint_of(view.status),
        last=None if view.last_us is None else format_timestamp(view.last_us),
        policy=None if view.policy is None else shown_json(view.policy.to_json()).text,
        severities=[severity.value for severity in Severity],
        once=secrets.token_urlsafe(16),
        form=form or {},
        why=why,
    )


def checkpoint_of(status: JsonObject | None) -> str | None:
    """The head of a chain as a checkpoint, ``seq:hash``."""
    head = None if status is None else status["head"]
    return f"{head['seq']}:{head['hash']}" if isinstance(head, dict) else None


@post("/agents/{agent_id:str}/scars", opt={PERMISSION: Permission.SCAR}, include_in_schema=False)
async def add_scar(request: Call) -> ASGIResponse:
    """Marks the agent, and shows how it stands then."""
    visitor, grant = await visit(request)
    form = await read_form(request, visitor)
    body: JsonObject = {"severity": form.get("severity"), "reason": form.get("reason", "").strip()}
    if form.get("action_id", "").strip():
        body["action_id"] = form["action_id"].strip()
    try:
        _require_reason(form)
        await services_of(request).ledger.scar(grant, AddScar.parse(body), once(form, "scars", body))
    except (BadRequestError, ConflictError, UnknownActionError) as error:
        return await agent_page(
            request, visitor, grant, status=status_of(error), form=form, why=error.message
        )
    return see_other(f"/agents/{grant.agent_id}#scars")


@get("/agents/{agent_id:str}/terminate", opt={PERMISSION: Permission.TERMINATE}, include_in_schema=False)
async def terminate_page(request: Call) -> ASGIResponse:
    """Asks whether the agent is to be ended."""
    visitor, grant = await visit(request)
    view = await services_of(request).ledger.fleet.agent(grant)
    return _terminate_page(visitor, grant, view)


@post("/agents/{agent_id:str}/terminate", opt={PERMISSION: Permission.TERMINATE}, include_in_schema=False)
async def terminate(request: Call) -> ASGIResponse:
    """Ends the agent for good, if its id was typed."""
    visitor, grant = await visit(request)
    form = await read_form(request, visitor)
    ledger = services_of(request).ledger
    reason = form.get("reason", "").strip()
    body: JsonObject = {"reason": reason, "by": visitor.name}
    try:
        _require_id(form, grant)
        _require_reason(form)
        await ledger.terminate(grant, Terminate.parse(body), once(form, "terminate", body))
    except (BadRequestError, ConflictError) as error:
        view = await ledger.fleet.agent(grant)
        return _terminate_page(visitor, grant, view, error, form)
    return see_other(f"/agents/{grant.agent_id}")


def _terminate_page(
    visitor: Visitor,
    grant: Grant,
    view: AgentView,
    error: TrailsError | None = None,
    form: Form | None = None,
) -> Page:
    ended = None if view.status is None else view.status["termination_reason"]
    if error is None and ended is not None:
        error = AlreadyTerminatedError(str(ended))
    return render(
        "terminate.html",
        visitor,
        status=200 if error is None else status_of(error),
        agent_id=grant.agent_id,
        view=view,
        is_ended=ended is not None,
        once=secrets.token_urlsafe(16),
        form=form or {},
        why="" if error is None else error.message,
    )


@get("/agents/{agent_id:str}/export.jsonl", opt={PERMISSION: Permission.EXPORT}, include_in_schema=False)
async def export(request: Call) -> ASGIResponse:
    """The agent's chain as a file of export lines; as ``GET /v1/agents/{agent_id}/export``, on record."""
    _, grant = await visit(request)
    wanted = Wanted(agents=(grant.agent_id or "",))
    return Download(services_of(request).ledger.export(grant, wanted))


def _require_reason(form: Form) -> None:
    if not form.get("reason", "").strip():
        raise BadRequestError("reason: say why")


def _require_id(form: Form, grant: Grant) -> None:
    if form.get("agent_id", "").strip() != grant.agent_id:
        raise BadRequestError("the id that was typed is not the agent's: nothing was done")


def once(form: Form, endpoint: str, body: JsonObject) -> Stamp | None:
    """What makes a form that is sent twice (a double click, a reload) one act."""
    key = form.get(ONCE, "")
    return stamp(endpoint, f"console {key}", canonical(body)) if key else None


def status_of(error: TrailsError) -> int:
    """The HTTP status of an error, as the API has it."""
    return problem_of(error, "").status
