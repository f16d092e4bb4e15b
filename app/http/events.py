"""Events: anything that a service wants on an agent's record."""

from __future__ import annotations

from litestar import post

from app.chain.canonical import canonical_parsed
from app.chain.record import Draft
from app.chain.strict import JsonObject, JsonValue, Parsed
from app.errors import IdempotencyConflictError, InvalidMemberError
from app.guard.kinds import EVENT
from app.http import documents, examples
from app.http.access import granted
from app.http.batches import MAX_ITEMS, Make, Post, mark_of, post_all, post_lines, read_object
from app.http.bodies import Received, beside, receive
from app.http.exchange import Call
from app.http.operation import JSON, LINES, ON_AGENT, Variant, describe
from app.http.responses import Answer, answer
from app.ledger.idempotency import Stamp
from app.principal import Permission
from app.trace.event import Event


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
    grant = granted(request)
    received = await receive(request, grant, lines=True)
    make = _maker(grant.actor)
    if received.is_lines:
        return await post_lines(request, grant, received, "events", make)
    posts, are_several = await beside(received.raw, lambda: _read(received, grant.actor, make))
    receipts = await post_all(request, grant, posts)
    several: JsonObject = {"receipts": [*receipts]}
    return answer(several if are_several else receipts[0])


def _read(received: Received, actor: str, make: Make) -> tuple[list[Post], bool]:
    """The events of a JSON body, and whether it is the form for several."""
    parsed, text = read_object(received)
    value = parsed.value
    if type(value) is not dict or "events" not in value:
        return [make(parsed, text, mark_of(received, "events", text))], False
    posts = [
        # Each is stamped with the whole body: what was sent together is one request.
        _post(item, f"events[{index}].", parsed, actor, mark_of(received, f"events[{index}]", text))
        for index, item in enumerate(_several(value))
    ]
    return posts, True


def _several(value: JsonObject) -> list[JsonValue]:
    unknown = next((name for name in value if name != "events"), None)
    if unknown is not None:
        raise InvalidMemberError(unknown[:64], "is no member beside events")
    items = value["events"]
    if type(items) is not list or not 0 < len(items) <= MAX_ITEMS:
        raise InvalidMemberError("events", f"must be an array of 1 to {MAX_ITEMS} events")
    return items


def _maker(actor: str) -> Make:
    def make(parsed: Parsed, _text: str, mark: Stamp | None) -> Post:
        return _post(parsed.value, "", parsed, actor, mark)

    return make


def _post(value: JsonValue, at: str, within: Parsed, actor: str, mark: Stamp | None) -> Post:
    """The post of an event that stands ``within`` a parsed document, which says how plain its numbers are."""
    event = Event.parse(value, at)
    payload = event.payload
    text = canonical_parsed(Parsed(payload, within.plain_numbers))
    return Post(
        draft=Draft(EVENT, payload, actor, text),
        told={"type": event.type},
        mark=mark,
        occurred_at_us=event.occurred_at_us,
    )
