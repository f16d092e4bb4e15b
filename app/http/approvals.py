"""The approval queue: what waits for a person in the whole tenant."""

from __future__ import annotations

from litestar import get

from app.http import documents, examples
from app.http.access import granted
from app.http.exchange import Call, services_of
from app.http.operation import TEXT, Field, describe
from app.http.query import page_of
from app.http.responses import Answer, answer
from app.ledger.approvals import DEFAULT_LIMIT, MAX_LIMIT, Place
from app.principal import Permission


@get(
    "/v1/approvals",
    summary="The approval queue",
    opt=describe(
        Permission.READ_PENDING,
        answer=documents.ApprovalQueue,
        example=examples.APPROVALS,
        query=(
            Field("after", TEXT, "Go on behind this place: `next` of the page before."),
            Field(
                "limit", {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}, "Most actions to list."
            ),
        ),
    ),
)
async def approvals(request: Call) -> Answer:
    """What waits for a person, of all agents, oldest first, with each input exactly as requested.

    Agents whose chain does not verify are named apart, as long as something waits there. Operators and
    auditors.
    """
    grant = granted(request)
    page = page_of(request, default=DEFAULT_LIMIT, most=MAX_LIMIT)
    after = None if page.after is None else Place.parse(page.after)
    queue = await services_of(request).ledger.approvals(grant, after, page.limit)
    return answer(queue.to_json())
