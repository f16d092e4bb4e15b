"""Trace trees: fragments become records as they were sent."""

from __future__ import annotations

from typing import Final

from litestar import post

from app.chain.record import Draft
from app.errors import IdempotencyConflictError, InvalidMemberError
from app.guard.kinds import TRACE
from app.http import documents, examples
from app.http.access import granted
from app.http.batches import post_documents
from app.http.exchange import Call
from app.http.operation import LINES, ON_AGENT, Variant, describe
from app.http.posted import Post, Posting, Sent
from app.http.responses import Answer
from app.principal import Permission
from app.trace.fragment import Fragment


def _read(sent: Sent) -> Post:
    fragment = Fragment.parse(sent.parsed.value)
    return Post(
        draft=Draft(TRACE, fragment.payload, sent.actor, sent.text, within_limits=True),
        told={"session_id": str(fragment.session_id), "nodes": fragment.nodes},
    )


_TRACES: Final = Posting("traces", _read)


@post(
    "/v1/agents/{agent_id:str}/traces",
    status_code=200,
    summary="Post a trace tree",
    opt=describe(
        Permission.POST,
        body=(documents.NewTrace, examples.NEW_TRACE),
        answer=documents.TraceReceipt,
        example=examples.TRACE_RECEIPT,
        errors=(*ON_AGENT, InvalidMemberError, IdempotencyConflictError),
        variants=(
            Variant(
                name="lines",
                media_type=LINES,
                body=documents.Lines,
                body_example=examples.lines(examples.NEW_TRACE, {"session_id": "none"}),
                answer=documents.ResultLines,
                example=examples.lines(
                    {"line": 1, "status": 200, **examples.TRACE_RECEIPT}, {"line": 2, **examples.REFUSED_LINE}
                ),
            ),
        ),
    ),
)
async def post_traces(request: Call) -> Answer:
    """Records a whole compiled trace tree or any part of one, exactly as sent.

    Nodes may arrive before their parents, from several agents, and again: the latest sending of a node is
    what views show. Refused are a count that is not the count, an id twice, a cycle, all within one fragment.
    As ``application/x-ndjson``, one fragment a line (at most 1,000), the good lines are stored in one
    transaction and the answer has one line for each, in order. The record's time is the service's own; times
    in nodes are the sender's word, kept as sent.
    """
    return await post_documents(request, granted(request), _TRACES)
