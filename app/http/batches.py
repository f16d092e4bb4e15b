"""Posting records: one document, several in one JSON body, or a batch of one document a line.

The body is read beside the event loop when it is large; a document's canonical text goes into its record as
it is. Of a batch the sound lines are stored in one transaction, and the answer says of each line, in order,
what became of it.

An Idempotency-Key names the documents of the request in their order, in whatever form they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.chain.record import parse_timestamp
from app.chain.strict import JsonObject, JsonValue
from app.errors import IdempotencyConflictError, TrailsError
from app.http.bodies import beside, receive
from app.http.exchange import Call, services_of
from app.http.posted import Document, Form, Post, Posting, read_body
from app.http.problems import line_of
from app.http.responses import Answer, answer, answer_lines
from app.ledger.post import Entry, Receipt
from app.principal import Grant
from app.trace.instant import is_skewed


async def post_documents(request: Call, grant: Grant, posting: Posting) -> Answer:
    """Posts what a request holds, in the form in which it is sent, and answers in that form.

    One document or several in one JSON body are stored whole or not at all; of a batch the sound lines are
    stored in one transaction, and the answer has one line for each of them all.

    Raises:
        BadRequestError: what is wrong with the body, or that a batch as a whole breaks a limit.
        IdempotencyConflictError: the key names other documents.
        TrailsError: the agent's chain takes nothing.
    """
    received = await receive(request, grant, lines=True)
    body = await beside(received.raw, lambda: read_body(received, posting, grant.actor))
    posts = [document.post for document in body.documents if document.post is not None]
    entries = [Entry(post.draft) for post in posts]
    ledger = services_of(request).ledger
    if body.form is Form.LINES:
        results = await ledger.post(grant, entries, keyed=body.keyed)
        _raise_conflict(results)
        waiting = iter(results)
        return answer_lines(_line_told(document, waiting) for document in body.documents)
    results = await ledger.post(grant, entries, whole=True, keyed=body.keyed)
    receipts: list[JsonValue] = [_receipt(*pair) for pair in zip(posts, _stored(results), strict=True)]
    return answer({"receipts": receipts} if body.form is Form.SEVERAL else receipts[0])


def _stored(results: Iterable[Receipt | TrailsError]) -> Iterator[Receipt]:
    """The receipts of what stands together; raises the refusal of one that has none."""
    for result in results:
        if isinstance(result, TrailsError):
            raise result
        yield result


def _raise_conflict(results: Iterable[Receipt | TrailsError]) -> None:
    """A key speaks of the whole request: where it names other documents, no line is answered."""
    for result in results:
        if isinstance(result, IdempotencyConflictError):
            raise result


def _line_told(document: Document, results: Iterator[Receipt | TrailsError]) -> JsonObject:
    """What the answer says of a line; the results are those of the lines that were posted, in order."""
    told: JsonObject = {"line": document.number, "status": 200}
    if document.post is None:
        return {**told, **document.refused}
    result = next(results)
    if isinstance(result, TrailsError):
        return {**told, **line_of(result)}
    return {**told, **_receipt(document.post, result)}


def _receipt(post: Post, receipt: Receipt) -> JsonObject:
    """What the sender is told of a record, the same whenever it is asked again."""
    told: JsonObject = {**receipt.to_json(), **post.told}
    if post.occurred_at_us is not None:
        told["clock_skewed"] = is_skewed(post.occurred_at_us, parse_timestamp(receipt.timestamp))
    return told
