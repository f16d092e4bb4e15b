"""Sessions: what all agents of the tenant did together, as a list and as one tree."""

from __future__ import annotations

import re

from litestar import get

from app.errors import AnswerTooLargeError, BadRequestError, ConflictError, NotFoundError, QuarantinedError
from app.http import documents, examples
from app.http.access import check_agent_id, granted
from app.http.exchange import Call, services_of
from app.http.operation import AGENT_ID, TEXT, Field, describe
from app.http.query import instant_of, known_fields, page_of
from app.http.responses import Answer, answer
from app.http.target import Query, one_field
from app.ledger.session_reading import MAX_NODES
from app.ledger.sessions import NodeCursor, SessionQuery, read_beginning
from app.principal import Permission
from app.trace.fragment import MAX_NAME_CHARS
from app.trace.node import read_uuid
from db.sessions import Wanted

SESSION_LIMIT = 50
MAX_SESSION_LIMIT = 500
"""Sessions in one page, by default and at most."""

_NODE_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_NAME = {**TEXT, "minLength": 1, "maxLength": MAX_NAME_CHARS}
_TYPE = {"type": "string", "pattern": f"^{_NODE_TYPE.pattern}$"}
_DAY_OR_INSTANT = {"type": "string", "anyOf": [{"format": "date-time"}, {"format": "date"}]}
_A_DAY = "A date alone, such as 2026-11-30, is the start of that day in UTC."
_FIELDS = frozenset({"agent", "since", "until", "status", "tool", "node_type", "after", "limit"})
_PAGE_FIELDS = frozenset({"after", "limit"})


@get(
    "/v1/sessions",
    summary="List sessions",
    opt=describe(
        Permission.READ_SESSIONS,
        answer=documents.SessionList,
        example=examples.SESSIONS,
        query=(
            Field("agent", AGENT_ID, "Sessions in which this agent took part."),
            Field("since", _DAY_OR_INSTANT, f"Begun at this time or later. {_A_DAY}"),
            Field("until", _DAY_OR_INSTANT, f"Begun before this time. {_A_DAY}"),
            Field("status", _NAME, "With a node of this outputs.status, such as failed."),
            Field("tool", _NAME, "With a call of this tool."),
            Field(
                "node_type",
                {"type": "string", "pattern": f"^{_NODE_TYPE.pattern}$"},
                "With a node of this type, such as SELF_CORRECTION.",
            ),
            Field("after", TEXT, "The next of an earlier answer: go on there."),
            Field(
                "limit",
                {"type": "integer", "minimum": 1, "default": SESSION_LIMIT},
                f"Most sessions to list; above {MAX_SESSION_LIMIT} counts as {MAX_SESSION_LIMIT}.",
            ),
        ),
    ),
)
async def list_sessions(request: Call) -> Answer:
    """Newest first, by the time of a session's first record. Operators and auditors.

    status, tool and node_type must hold of one and the same node. A page looks at a bounded number of
    records: it may be short, or empty, and still have a next; the list ends where next is null.
    """
    grant = granted(request)
    fields = known_fields(request, _FIELDS)
    page = page_of(request, default=SESSION_LIMIT, most=MAX_SESSION_LIMIT)
    query = SessionQuery(
        limit=page.limit,
        wanted=wanted_of(fields),
        since_us=instant_of(fields, "since"),
        until_us=instant_of(fields, "until"),
        after=None if page.after is None else read_beginning(page.after),
    )
    return answer(await services_of(request).ledger.sessions(grant, query))


@get(
    "/v1/sessions/{session_id:str}",
    summary="A session's tree",
    opt=describe(
        Permission.READ_SESSIONS,
        answer=documents.Session,
        example=examples.SESSION,
        errors=(NotFoundError, ConflictError, AnswerTooLargeError, QuarantinedError),
        query=(
            Field("after", TEXT, "The next of an earlier answer: go on there."),
            Field(
                "limit",
                {"type": "integer", "minimum": 1},
                f"Most nodes in the answer (at most {MAX_NODES}); without it all, or an error.",
            ),
        ),
    ),
)
async def read_session(request: Call) -> Answer:
    """The tree of all nodes of the session, whoever sent them, from verified records. Operators and auditors.

    Each node is the latest sending of its agent; what the guard recorded of an action stands before whatever
    was posted under the same id. Records that do not verify are listed, and their nodes left out.
    """
    grant = granted(request)
    known_fields(request, _PAGE_FIELDS)
    session_id = read_uuid(request.path_params["session_id"])
    if session_id is None:
        raise BadRequestError("session_id: must be a UUID such as 123e4567-e89b-12d3-a456-426614174000")
    page = page_of(request, default=0, most=MAX_NODES)
    text = await services_of(request).ledger.session(
        grant,
        session_id,
        after=None if page.after is None else NodeCursor.parse(page.after),
        limit=page.limit or (MAX_NODES if page.after is not None else None),
    )
    return Answer(text.encode())


def wanted_of(fields: Query) -> Wanted:
    """Which sessions a query asks for.

    Raises:
        BadRequestError: a field that cannot be what it is to be.
    """
    agent, node_type = one_field(fields, "agent"), one_field(fields, "node_type")
    if agent is not None:
        check_agent_id(agent)
    if node_type is not None and _NODE_TYPE.fullmatch(node_type) is None:
        raise BadRequestError("node_type: must match [A-Z][A-Z0-9_]{0,63}, such as TOOL_CALL")
    return Wanted(agent, _text(fields, "status"), _text(fields, "tool"), node_type)


def _text(fields: Query, name: str) -> str | None:
    value = one_field(fields, name)
    if value is not None and not 0 < len(value) <= MAX_NAME_CHARS:
        raise BadRequestError(f"{name}: must have 1 to {MAX_NAME_CHARS} characters")
    return value
