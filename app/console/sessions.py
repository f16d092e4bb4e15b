"""Sessions: finding them, and the picture of one session's tree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from litestar import get
from litestar.response.base import ASGIResponse

from app.console import telling  # noqa: F401  its filters
from app.console.node import Detail, detail_of, look
from app.console.page import HEADERS, Page, render, see_other
from app.console.tree import Chosen, Row, draw, parents_of, path_to, read_row
from app.console.visitor import Visitor, visit
from app.console.waterfall import lay_out
from app.errors import BadRequestError, NotFoundError
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, headers, services_of
from app.http.query import instant_of, known_fields
from app.http.responses import Answer
from app.http.sessions import wanted_of
from app.http.target import Query, one_field
from app.ledger.session_reading import LIMITS
from app.ledger.sessions import SessionQuery, read_beginning
from app.ledger.surveys import Survey
from app.principal import Grant, Permission
from app.trace.node import read_uuid

LISTED: Final = 50
"""Sessions in one page."""

FAILURES_LISTED: Final = 20
"""Failed nodes whose paths stand above the picture."""

UNVERIFIED_LISTED: Final = 20

_FIELDS: Final = ("session", "agent", "tool", "status", "node_type", "since", "until")
_KNOWN: Final = frozenset({*_FIELDS, "after"})
_TREE_FIELDS: Final = frozenset({"node", "of", "failed", "type", "q", "from", "open"})
_A_UUID: Final = "123e4567-e89b-12d3-a456-426614174000"
_MAX_TEXT: Final = 200
_MAX_DIGITS: Final = 7


@get("/sessions", opt={PERMISSION: Permission.READ_SESSIONS}, include_in_schema=False)
async def list_sessions(request: Call) -> ASGIResponse:
    """Sessions, newest first, by what is asked for; everything that is asked is in the address."""
    visitor, grant = await visit(request)
    fields = fields_of(request, _KNOWN)
    given = {name: one_field(fields, name) or "" for name in _FIELDS}
    try:
        session_id = _session_asked(given["session"])
        if session_id is not None:
            return see_other(f"/sessions/{session_id}")
        query = _query(fields)
    except BadRequestError as error:
        return render(
            "sessions/list.html", visitor, status=400, given=given, message=error.message, page=None
        )
    ledger = services_of(request).ledger
    found: Mapping[str, Any] = await ledger.sessions(grant, query)
    entries = found["sessions"]
    sums = await ledger.session_sums(grant, [UUID(entry["session_id"]) for entry in entries])
    kept = {name: value for name, value in given.items() if value}
    page = {
        "entries": [(entry, sums.get(UUID(entry["session_id"]))) for entry in entries],
        "newest": None if query.after is None else _address("/sessions", kept),
        "older": found["next"] and _address("/sessions", {**kept, "after": found["next"]}),
        "looked_at": LIMITS.looked_at,
        "filtered": bool(kept),
    }
    return render("sessions/list.html", visitor, given=given, message=None, page=page)


@get("/sessions/{session_id:str}", opt={PERMISSION: Permission.READ_SESSIONS}, include_in_schema=False)
async def show_session(request: Call) -> ASGIResponse:
    """The tree of one session as a picture, with one of its nodes beside it; or that node alone for htmx."""
    visitor, grant = await visit(request)
    session_id = _session_id(request)
    fields = fields_of(request, _TREE_FIELDS)
    if _is_for_detail(request):
        detail = await _detail(request, grant, session_id, fields)
        if detail is not None:
            await _put_on_record(request, grant, session_id)
        kept = _base({name: value for name, value in fields if name not in {"node", "of"}})
        return render("sessions/beside.html", visitor, detail=detail, base=kept, alone=True)
    page = await _picture(request, visitor, grant, session_id=session_id, fields=fields)
    await _put_on_record(request, grant, session_id)
    return page


@get(
    "/sessions/{session_id:str}/tree.json",
    opt={PERMISSION: Permission.READ_SESSIONS},
    include_in_schema=False,
)
async def session_json(request: Call) -> ASGIResponse:
    """The same tree as the API gives it, for a browser that is signed in."""
    _, grant = await visit(request)
    session_id = _session_id(request)
    text = await services_of(request).ledger.session(grant, session_id)
    await _put_on_record(request, grant, session_id)
    return Answer(text.encode(), tuple(HEADERS))


async def _put_on_record(request: Call, grant: Grant, session_id: UUID) -> None:
    """That somebody looks at a session that there is (case T15), before it is shown."""
    await services_of(request).ledger.views.put_on_record(grant, {"session": str(session_id)}, {})


def fields_of(request: Call, known: frozenset[str]) -> Query:
    """The fields of a page's address; those that a form left empty are none.

    Raises:
        BadRequestError: one that means nothing here, which would else be believed to be asked for.
    """
    fields = known_fields(request, known)
    return [(name, value) for name, value in fields if value.strip()]


async def _picture(request: Call, visitor: Visitor, grant: Grant, *, session_id: UUID, fields: Query) -> Page:
    ledger = services_of(request).ledger
    chosen = _chosen(fields)
    first = _first(fields)
    _node_asked(fields)  # before anything is read
    survey = await ledger.survey(grant, session_id, lambda node, sent: read_row(node, sent, chosen))
    detail = await _detail(request, grant, session_id, fields)
    sums = await ledger.session_sums(grant, [session_id])
    models = await ledger.session_models(grant, session_id)
    kept = {name: value for name, value in fields if name in {"failed", "type", "q", "open"}}
    return await asyncio.to_thread(
        _rendered,
        visitor,
        survey,
        chosen,
        first,
        session_id=session_id,
        detail=detail,
        sums=sums.get(session_id),
        models=models,
        kept=kept,
    )


def _rendered(  # runs in a thread: a large tree takes a while
    visitor: Visitor,
    survey: Survey[Row],
    chosen: Chosen,
    first: int,
    *,
    kept: dict[str, str],
    detail: Detail | None,
    **values: Any,  # noqa: ANN401  what the template shows as it is
) -> Page:
    rows = survey.seen
    everything = kept.get("open") == "all"
    picture = draw(rows, chosen, first=first, everything=everything)
    lines = [*picture.lines, *picture.astray]
    waterfall = lay_out([row.span for row in rows])
    parents = parents_of(rows)
    paths = [
        (place + 1, rows[place], path_to(place, rows, parents)[:-1])
        for place in picture.wrong[:FAILURES_LISTED]
    ]
    return render(
        "sessions/session.html",
        visitor,
        survey=survey,
        unverified=survey.unverified[:UNVERIFIED_LISTED],
        decisions=_decisions(survey),
        denied=sum(row.status == "denied" for row in rows),
        harmful=sum(row.status == "harmful" for row in rows),
        picture=picture,
        waterfall=waterfall,
        bars={} if waterfall is None else {line.number: waterfall.bars[line.number - 1] for line in lines},
        paths=paths,
        tokens=any(row.figures.total_tokens is not None for row in rows),
        cost=any(row.figures.cost is not None for row in rows),
        skewed=sum(row.skewed for row in rows),
        timed=sum(row.figures.started_us is not None for row in rows),
        conflicts=sum(row.conflict for row in rows),
        orphans=survey.tree.orphans,
        types=sorted({row.node_type for row in rows})[:100],
        chosen=chosen,
        at=None if detail is None else (detail.looked.row.agent_id, detail.looked.row.node_id),
        detail=detail,
        alone=False,
        base=_base(kept),
        pages=_pages(kept, picture.first, picture.following),
        everything=everything,
        **values,
    )


def _decisions(survey: Survey[Row]) -> list[tuple[int, str]]:
    """What became of the actions that were asked for in this session, from its verified records.

    That an action was allowed stands in the agent's own log; here its end tells.
    """
    asked = survey.kinds.get("action_requested", 0)
    denied, rejected = survey.kinds.get("action_denied", 0), survey.kinds.get("action_rejected", 0)
    ended = sum(row.guarded and row.status != "denied" for row in survey.seen)
    told = (
        (asked, "asked for"),
        (ended, "allowed and reported"),
        (denied, "denied"),
        (rejected, "rejected by a person"),
        (asked - ended - denied - rejected, "without an end yet"),
    )
    return [(number, words) for number, words in told if number > 0]


def _pages(kept: dict[str, str], first: int, following: int | None) -> dict[str, str | None]:
    """Addresses of the first and the next page of a picture, and of all of it, open."""
    without = {name: value for name, value in kept.items() if name != "open"}
    return {
        "first": None if first == 1 else "?" + urlencode(kept),
        "next": None if following is None else "?" + urlencode({**kept, "from": following}),
        "open": "?" + urlencode({**without, "open": "all"}),
    }


async def _detail(request: Call, grant: Grant, session_id: UUID, fields: Query) -> Detail | None:
    """The node that is asked for, if one is.

    Raises:
        NotFoundError: the session has no such node.
    """
    node_id, agent_id = _node_asked(fields)
    if node_id is None:
        return None
    survey = await services_of(request).ledger.survey_node(
        grant,
        session_id,
        look,
        only=lambda node: node.shown.node_id == node_id and agent_id in {None, node.shown.source.agent_id},
    )
    return await asyncio.to_thread(detail_of, survey)


def _is_for_detail(request: Call) -> bool:
    """Whether htmx asks for what stands beside the tree."""
    return b"detail" in headers(request.scope, b"hx-target")


def _session_id(request: Call) -> UUID:
    session_id = read_uuid(request.path_params["session_id"])
    if session_id is None:
        raise NotFoundError(f"there is no such session: its id is a UUID such as {_A_UUID}")
    return session_id


def _session_asked(text: str) -> UUID | None:
    if not text:
        return None
    session_id = read_uuid(text)
    if session_id is None:
        raise BadRequestError(f"session: must be a whole id such as {_A_UUID}")
    return session_id


def _query(fields: Query) -> SessionQuery:
    after = one_field(fields, "after")
    return SessionQuery(
        limit=LISTED,
        wanted=wanted_of(fields),
        since_us=instant_of(fields, "since"),
        until_us=instant_of(fields, "until"),
        after=None if after is None else read_beginning(after),
    )


def _node_asked(fields: Query) -> tuple[str | None, str | None]:
    node, of = one_field(fields, "node"), one_field(fields, "of")
    if node is None:
        return None, None
    node_id = read_uuid(node)
    if node_id is None:
        raise BadRequestError("node: must be the id of a node")
    return str(node_id), None if of is None else check_agent_id(of)


def _chosen(fields: Query) -> Chosen:
    text = one_field(fields, "q")
    if text is not None and len(text) > _MAX_TEXT:
        raise BadRequestError(f"q: must have at most {_MAX_TEXT} characters")
    return Chosen(one_field(fields, "failed") is not None, one_field(fields, "type"), text)


def _first(fields: Query) -> int:
    first = one_field(fields, "from") or "1"
    if not (first.isascii() and first.isdigit() and len(first) <= _MAX_DIGITS and int(first)):
        raise BadRequestError("from: must be the number of a node, from 1")
    return int(first)


def _base(kept: Mapping[str, str]) -> str:
    """What a link to a node begins with, behind ``?``."""
    return urlencode(kept) + "&" if kept else ""


def _address(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
