"""Posting records: one, several as one JSON document, or a batch of one document a line.

What comes in is parsed once and canonicalised once, beside the event loop when it is large; the canonical
text goes into the record as it is. In a batch each line stands for itself: the sound ones are stored in one
transaction, and the answer says of each line, in order, what became of it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

import msgspec

from app.chain.canonical import canonical_parsed
from app.chain.record import Draft, parse_timestamp
from app.chain.strict import JsonObject, JsonValue, Parsed
from app.errors import BadRequestError, TrailsError
from app.http.bodies import Received, beside, parse_object
from app.http.exchange import Call, services_of
from app.http.problems import line_of
from app.http.responses import Answer, answer_lines
from app.ledger.idempotency import Stamp, stamp
from app.ledger.post import Entry, Receipt
from app.principal import Grant
from app.trace.instant import is_skewed

MAX_ITEMS = 1_000
"""Lines of one batch, or events of one document."""

MAX_VALUES = 400_000
"""Values of one body, all levels together: nearly twice what 10,000 nodes of 20 members each have."""

_BLANK = b" \t\r\n"


class Post(msgspec.Struct, frozen=True):
    """A record to post.

    Attributes:
        draft: what the record says.
        told: what its receipt tells beside its place in the chain.
        mark: the stamp of what was sent, when the sender gave an Idempotency-Key.
        occurred_at_us: the time that the sender gave, when there is one.
    """

    draft: Draft
    told: JsonObject
    mark: Stamp | None = None
    occurred_at_us: int | None = None


Make = Callable[[Parsed, str, Stamp | None], Post]
"""Makes a post of a document, its canonical text and its stamp; raises ``BadRequestError``."""


class Line(msgspec.Struct, frozen=True):
    """A line of a batch that is not blank, counted from 1: what is to be posted, or why it is refused."""

    number: int
    post: Post | None
    refused: JsonObject


def read_object(received: Received) -> tuple[Parsed, str]:
    """The body as one JSON object, and its canonical text. Raises as ``parse_object`` does."""
    parsed = parse_object(received.raw, MAX_VALUES)
    return parsed, canonical_parsed(parsed)


def mark_of(received: Received, endpoint: str, text: str) -> Stamp | None:
    """The stamp of what was sent to ``endpoint``; None without an Idempotency-Key."""
    key = received.idempotency_key
    return None if key is None else stamp(endpoint, key, text)


async def post_all(request: Call, grant: Grant, posts: Sequence[Post]) -> list[JsonObject]:
    """Posts all in one transaction, or none; the receipts in the same order.

    Raises:
        TrailsError: why nothing was posted.
    """
    results = await services_of(request).ledger.post(grant, [_entry(post) for post in posts], whole=True)
    return [_receipt(post, result) for post, result in zip(posts, results, strict=True)]


async def post_lines(request: Call, grant: Grant, received: Received, endpoint: str, make: Make) -> Answer:
    """Posts the sound lines of a batch in one transaction; the answer has one line for each of them all.

    Raises:
        BadRequestError: the batch as a whole breaks a limit; nothing was stored.
        TrailsError: the agent's chain takes nothing.
    """
    lines = await beside(received.raw, lambda: read_lines(received, endpoint, make))
    posts = [line.post for line in lines if line.post is not None]
    results = iter(await services_of(request).ledger.post(grant, [_entry(post) for post in posts]))
    return answer_lines(_told(line, results) for line in lines)


def read_lines(received: Received, endpoint: str, make: Make) -> list[Line]:
    """Reads a batch line by line; what is wrong with a line is told of that line alone.

    Raises:
        BadRequestError: no line, too many of them, or too many values in all.
    """
    numbered = list(_numbered(received.raw))
    if not numbered:
        raise BadRequestError("the batch is empty: send one JSON object a line")
    lines: list[Line] = []
    values = _Values(received.raw, len(numbered))
    for number, text in numbered:
        line = _line(received, endpoint, number, text, make)
        if line.post is not None:
            values.add(line.post.draft.payload)
        lines.append(line)
    return lines


def _numbered(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    found = 0
    for number, line in enumerate(io.BytesIO(raw), 1):
        text = line.strip(_BLANK)
        if not text:
            continue
        found += 1
        if found > MAX_ITEMS:
            raise BadRequestError(f"more than {MAX_ITEMS} lines in one batch; send several batches")
        yield number, text


def _line(received: Received, endpoint: str, number: int, text: bytes, make: Make) -> Line:
    try:
        parsed = parse_object(text, MAX_VALUES)
        canonical_text = canonical_parsed(parsed)
        mark = mark_of(received, f"{endpoint}/{number}", canonical_text)
        return Line(number, make(parsed, canonical_text, mark), {})
    except BadRequestError as error:
        return Line(number, None, line_of(error))


class _Values:
    """Counts the values of a batch, exactly only when its punctuation says that they may be too many.

    Punctuation within strings is counted, too, so that it says no less than there is.
    """

    def __init__(self, raw: bytes, lines: int) -> None:
        self._exact = raw.count(b",") + raw.count(b"[") + raw.count(b"{") + lines > MAX_VALUES
        self._found = 0

    def add(self, value: JsonValue) -> None:
        """Counts ``value`` and all that is in it.

        Raises:
            BadRequestError: the batch has too many values.
        """
        if not self._exact:
            return
        level = [value]
        while level:
            self._found += len(level)
            if self._found > MAX_VALUES:
                raise BadRequestError(f"more than {MAX_VALUES} values in one batch; send several batches")
            level = [item for container in level for item in _items(container)]


def _items(value: JsonValue) -> list[JsonValue]:
    if type(value) is dict:
        return list(value.values())
    return value if type(value) is list else []


def _entry(post: Post) -> Entry:
    return Entry(post.draft, post.mark)


def _told(line: Line, results: Iterator[Receipt | TrailsError]) -> JsonObject:
    """What the answer says of a line; the results are those of the lines that were posted, in order."""
    told: JsonObject = {"line": line.number, "status": 200}
    if line.post is None:
        return {**told, **line.refused}
    try:
        return {**told, **_receipt(line.post, next(results))}
    except TrailsError as error:
        return {**told, **line_of(error)}


def _receipt(post: Post, result: Receipt | TrailsError) -> JsonObject:
    """What the sender is told of a record, the same whenever it is asked again; raises a refusal."""
    if isinstance(result, TrailsError):
        raise result
    told: JsonObject = {**result.to_json(), **post.told}
    if post.occurred_at_us is not None:
        told["clock_skewed"] = is_skewed(post.occurred_at_us, parse_timestamp(result.timestamp))
    return told
