"""The approval queue: what waits, and a page each on which somebody decides.

What is decided on is what was shown: the form carries the hash of the request's record, and the ledger
decides on no other. Of decisions at the same time one counts; the others are told it (case G10).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from litestar import get, post
from litestar.response.base import ASGIResponse

from app.chain.strict import JsonObject, JsonValue
from app.console import telling  # noqa: F401  its filters
from app.console.form import Form, read_form
from app.console.json_text import Shown, shown_json
from app.console.page import TEMPLATES, render, see_other
from app.console.visitor import Visitor, require_visit, visit
from app.errors import BadRequestError, ConflictError, ForbiddenError, InvalidStateError
from app.guard.bodies import Approve, Reject
from app.guard.decide import objection
from app.guard.words import Severity
from app.http.access import PERMISSION, check_action_id, check_agent_id
from app.http.event_stream import Event, EventStream
from app.http.exchange import Call, services_of
from app.http.query import page_of
from app.http.target import one_field, parse_query
from app.ledger.approvals import MARK_SECS, Place, Queue, Waiting
from app.principal import Grant, Permission, grant

SHOWN_AT_ONCE: Final = 50

SEVERITIES: Final = (("", "no scar"), *((each.value, f"{each.value} scar") for each in Severity))


class Ask(msgspec.Struct, frozen=True):
    """An action that waits, as pages show it."""

    agent_id: str
    action_id: str
    tool: str
    input: Shown
    cost: int
    remaining: int
    scars: int
    scar_limit: int
    alive: bool
    asked_by: tuple[str, ...]
    joins: int
    requested_at: JsonValue
    expires_at: JsonValue
    expired: bool
    approvals: int
    approvers: int
    approved_by: tuple[str, ...]
    seq: JsonValue
    seen: str

    @property
    def place(self) -> str:
        """The page on which it is decided."""
        return _place(self.agent_id, self.action_id)

    @property
    def key(self) -> str:
        """Names it among all on the page."""
        return f"{self.agent_id}-{self.action_id}"


class Decided(msgspec.Struct, frozen=True):
    """An action that waits no more, or never did."""

    tool: str
    input: Shown
    status: str
    outcome: JsonValue
    approved_by: str | None
    reason: str | None


@get("/approvals", opt={PERMISSION: Permission.READ_PENDING}, include_in_schema=False)
async def queue(request: Call) -> ASGIResponse:
    """What waits, oldest first; the first page of all agents renews itself."""
    visitor, given = await visit(request)
    page = page_of(request, default=SHOWN_AT_ONCE, most=SHOWN_AT_ONCE)
    after = None if page.after is None else Place.parse(page.after)
    agent_id = one_field(parse_query(request.scope["query_string"]), "agent")
    ledger = services_of(request).ledger
    if agent_id is None:
        found = await ledger.approvals(given, after, page.limit)
    else:
        of_agent = grant(visitor.principal, Permission.READ_PENDING, check_agent_id(agent_id))
        found = await ledger.approvals_of(of_agent, after, page.limit)
    return render(
        "approvals/queue.html",
        visitor,
        asks=_asks(found),
        broken=found.broken,
        next=None if found.next is None else str(found.next),
        agent_id=agent_id,
        is_live=after is None and agent_id is None,
    )


@get("/approvals/stream", opt={PERMISSION: Permission.READ_PENDING}, include_in_schema=False)
async def stream(request: Call) -> ASGIResponse:
    """The first page of the queue, whenever it changes."""
    visitor, given = await visit(request, renews=False)
    return EventStream(
        _events(request, visitor, given), tenant_id=given.tenant_id, still=lambda: require_visit(request)
    )


@get("/approvals/waiting", opt={PERMISSION: Permission.READ_PENDING}, include_in_schema=False)
async def waiting(request: Call) -> ASGIResponse:
    """How many wait, for the head of a page."""
    visitor, _ = await visit(request, renews=False)
    return render("parts/waiting.html", visitor)


@get(
    "/approvals/{agent_id:str}/{action_id:str}",
    opt={PERMISSION: Permission.READ_PENDING},
    include_in_schema=False,
)
async def action(request: Call) -> ASGIResponse:
    """One action: exactly what is asked, and the forms to decide; or what became of it."""
    visitor, given = await visit(request)
    return await _action_page(request, visitor, given)


@post(
    "/approvals/{agent_id:str}/{action_id:str}",
    status_code=200,
    opt={PERMISSION: Permission.DECIDE},
    include_in_schema=False,
)
async def decide(request: Call) -> ASGIResponse:
    """Approves or rejects what the form's page has shown."""
    visitor, given = await visit(request)
    form = await read_form(request, visitor)
    action_id = check_action_id(request.path_params["action_id"])
    try:
        await _decide(request, visitor, given, action_id, form)
    except InvalidStateError as error:
        late = f"What you decided came too late and was not taken: action {action_id} is {error.status}."
        return await _action_page(request, visitor, given, form, message=late, status=409)
    except (BadRequestError, ConflictError, ForbiddenError) as error:
        status = {BadRequestError: 400, ForbiddenError: 403}.get(type(error), 409)
        return await _action_page(request, visitor, given, form, message=error.message, status=status)
    return see_other(_place(given.agent_id or "", action_id))


async def _decide(request: Call, visitor: Visitor, given: Grant, action_id: str, form: Form) -> None:
    ledger, seen = services_of(request).ledger, form.get("seen")
    if not seen:
        raise BadRequestError("the form does not say what was shown; open the page again")
    said: JsonObject = {"approver": visitor.name}
    if form.get("decision") == "approve":
        if form.get("note"):
            said["note"] = form["note"]
        await ledger.approve(given, action_id, Approve.parse(said), seen=seen)
    elif form.get("decision") == "reject":
        if not form.get("reason", "").strip():
            raise BadRequestError("say why: the reason is told to the agent")
        said |= {"reason": form["reason"], "scar": form.get("scar") or None}
        await ledger.reject(given, action_id, Reject.parse(said), seen=seen)
    else:
        raise BadRequestError("decision: must be approve or reject")


async def _action_page(
    request: Call,
    visitor: Visitor,
    given: Grant,
    form: Form | None = None,
    *,
    message: str | None = None,
    status: int = 200,
) -> ASGIResponse:
    ledger, form = services_of(request).ledger, form or {}
    action_id = check_action_id(request.path_params["action_id"])
    found = await ledger.approval(given, action_id)
    ask = None if found is None else _ask(found)
    against = None
    if found is not None:
        against = objection(
            found.pending, action_id, agent_id=given.agent_id, actor=given.actor, key=given.key
        )
    return render(
        "approvals/action.html",
        visitor,
        status=status,
        agent_id=given.agent_id,
        action_id=action_id,
        ask=ask,
        done=None if ask is not None else _decided(await ledger.action(given, action_id)),
        objection=None if against is None else against.message,
        message=message,
        severities=SEVERITIES,
        note=form.get("note", ""),
        reason=form.get("reason", ""),
        scar=form.get("scar", ""),
    )


async def _events(request: Call, visitor: Visitor, given: Grant) -> AsyncIterator[Event]:
    ledger, last = services_of(request).ledger, None
    while True:
        mark = await ledger.approvals_mark(given)
        if mark != last:
            last = mark
            found = await ledger.approvals(given, None, SHOWN_AT_ONCE)
            count = await ledger.approvals_waiting(given)
            html = TEMPLATES.get_template("approvals/event.html").render(
                visitor=msgspec.structs.replace(visitor, waiting=count),
                asks=_asks(found),
                broken=found.broken,
            )
            yield Event(html, event="queue")
        await asyncio.sleep(MARK_SECS)


def _asks(found: Queue) -> list[Ask]:
    return [_ask(each) for each in found.waiting]


def _ask(found: Waiting) -> Ask:
    entry, pending, state = found.entry, found.pending, found.state
    asked = entry["action"]
    value = asked.get("input") if isinstance(asked, dict) else None
    policy = state.policy
    return Ask(
        agent_id=found.agent_id,
        action_id=found.action_id,
        tool=pending.tool,
        input=shown_json(value),
        cost=pending.cost,
        remaining=state.remaining,
        scars=state.scar_score,
        scar_limit=0 if policy is None else policy.scar_limit,
        alive=state.alive,
        asked_by=pending.names,
        joins=pending.joins,
        requested_at=entry["requested_at"],
        expires_at=entry.get("expires_at"),
        expired=entry.get("expired") is True,
        approvals=len(pending.approvals),
        approvers=1 if policy is None else policy.approvers(pending.tool),
        approved_by=tuple(given.by for given in pending.approvals),
        seq=entry["seq"],
        seen=pending.hash,
    )


def _decided(told: JsonObject) -> Decided:
    """What ``Ledger.action`` tells, for the page."""
    reason = told.get("reason")
    approved_by = told.get("approved_by")
    return Decided(
        tool=str(told["tool"]),
        input=shown_json(told["input"]),
        status=str(told["status"]),
        outcome=told.get("outcome"),
        approved_by=approved_by if isinstance(approved_by, str) else None,
        reason=_reason(reason) if isinstance(reason, dict) else None,
    )


def _reason(reason: JsonObject) -> str:
    if reason.get("code") == "rejected":
        return f"by {reason.get('by')}: {reason.get('reason')}"
    words = [f"{name} {value}" for name, value in reason.items() if name != "code"]
    return str(reason.get("code")) + (f" ({', '.join(words)})" if words else "")


def _place(agent_id: str, action_id: str) -> str:
    return f"/approvals/{agent_id}/{action_id}"
