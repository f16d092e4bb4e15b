"""Events: anything that a service wants on an agent's record."""

from __future__ import annotations

from typing import Final

from litestar import post

from app.chain.canonical import canonical_parsed
from app.chain.record import Draft
from app.chain.strict import Parsed
from app.errors import IdempotencyConflictError, InvalidMemberError
from app.guard.kinds import EVENT
from app.http import documents, examples
from app.http.access import granted
from app.http.batches import post_documents
from app.http.exchange import Call
from app.http.operation import JSON, LINES, ON_AGENT, Variant, describe
from app.http.posted import Post, Posting, Sent
from app.http.responses import Answer
from app.principal import Permission
from app.trace.event import Event


def _read(sent: Sent) -> Post:
    event = Event.parse(sent.parsed.value, sent.at)
    payload = event.payload
    text = canonical_parsed(Parsed(payload, sent.parsed.plain_numbers))
    return Post(
        draft=Draft(EVENT, payload, sent.actor, text, within_limits=True),
        told={"type": event.type},
        occurred_at_us=event.occurred_at_us,
    )


_EVENTS: Final = Posting("events", _read, several="events")


@post(
    "/v1/agents/{agent_id:str}/events",
    status_code=200,
    summary="Post an event",
    opt=describe(
        Permission.POST,
        body=(documents.NewEvent, examples.NEW_EVENT),
        answer=documents.EventReceipt,
        example=examples.EVENT_RECEIPT,
        errors=(*ON_AGENT, InvalidMemberError, IdempotencyConflictError),
        variants=(
            Variant(
                name="several",
                media_type=JSON,
                body=documents.NewEvents,
                body_example={"events": [examples.NEW_EVENT, {"type": "deployed", "data": "v2"}]},
                answer=documents.EventReceipts,
                example={"receipts": [examples.EVENT_RECEIPT]},
            ),
            Variant(
                name="lines",
                media_type=LINES,
                body=documents.Lines,
                body_example=examples.lines(
                    examples.NEW_EVENT, {"type": "deployed", "data": None, "session_id": "none"}
                ),
                answer=documents.ResultLines,
                example=examples.lines(
                    {"line": 1, "status": 200, **examples.EVENT_RECEIPT}, {"line": 2, **examples.REFUSED_LINE}
                ),
            ),
        ),
    ),
)
async def post_events(request: Call) -> Answer:
    """Records one event, or with ``{"events": [...]}`` several of them: all in one transaction, or none.

    As ``application/x-ndjson``, one event a line (at most 1,000), the good lines are stored in one
    transaction and the answer has one line for each, in order. The record's time is the service's own;
    ``occurred_at`` is the sender's word and stands beside it. ``clock_skewed`` says that it is more than 5
    minutes ahead of the record's time or more than a day behind it.
    """
    return await post_documents(request, granted(request), _EVENTS)
