"""Posting records: one document, several in one JSON body, or a batch of one document a line.

What comes in is parsed once and canonicalised once, beside the event loop when it is large; the canonical
text goes into the record as it is. In a batch each line stands for itself: the sound ones are stored in one
transaction, and the answer says of each line, in order, what became of it.

An Idempotency-Key names the documents of the request in their order, in whatever form they come.
"""

from __future__ import annotations

import enum
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from app.chain.canonical import canonical_parsed
from app.chain.record import Draft, parse_timestamp
from app.chain.strict import JsonObject, JsonValue, Parsed, parse
from app.errors import (
    BadRequestError,
    IdempotencyConflictError,
    InvalidJsonError,
    InvalidMemberError,
    TrailsError,
)
from app.http.bodies import Received, beside, receive
from app.http.exchange import Call, services_of
from app.http.problems import line_of
from app.http.responses import Answer, answer, answer_lines
from app.ledger.idempotency import Keyed, digest_of, refused
from app.ledger.post import Entry, Receipt
from app.principal import Grant
from app.trace.instant import is_skewed

MAX_ITEMS = 1_000
"""Lines of one batch, or documents of one JSON body."""

MAX_VALUES = 400_000
"""Values of one body, all levels together: nearly twice what 10,000 nodes of 20 members each have."""

_BLANK = b" \t\r\n"


class Post(msgspec.Struct, frozen=True):
    """A record to post.

    Attributes:
        draft: what the record says.
        told: what its receipt tells beside its place in the chain.
        occurred_at_us: the time that the sender gave, when there is one.
    """

    draft: Draft
    told: JsonObject
    occurred_at_us: int | None = None


class Sent(msgspec.Struct, frozen=True):
    """A document that was sent: strictly parsed, its canonical text, where it stands, and who sent it.

    ``at`` is the path of its members in the body, such as ``events[3].``.
    """

    parsed: Parsed
    text: str
    at: str
    actor: str


class Posting(msgspec.Struct, frozen=True):
    """What a route takes.

    Attributes:
        name: of its keys' scope.
        read: makes a post of a document; raises ``BadRequestError``.
        several: the member under which one JSON body holds several documents, if there is such a form.
    """

    name: str
    read: Callable[[Sent], Post]
    several: str | None = None


class _Form(enum.Enum):
    """How a body holds its documents, and so how it is answered."""

    ONE = enum.auto()
    SEVERAL = enum.auto()
    LINES = enum.auto()


class _Document(msgspec.Struct, frozen=True):
    """A document of a request, counted from 1: what is to be posted, or why it is refused.

    ``text`` is its canonical text, or its bytes where they are no JSON.
    """

    number: int
    text: str | bytes
    post: Post | None
    refused: JsonObject


class _Body(msgspec.Struct, frozen=True):
    """A request's documents; ``keyed`` when it came with an Idempotency-Key."""

    form: _Form
    documents: Sequence[_Document]
    keyed: Keyed | None


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
    body = await beside(received.raw, lambda: _read(received, posting, grant.actor))
    posts = [document.post for document in body.documents if document.post is not None]
    entries = [Entry(post.draft) for post in posts]
    ledger = services_of(request).ledger
    if body.form is _Form.LINES:
        results = await ledger.post(grant, entries, keyed=body.keyed)
        _raise_conflict(results)
        waiting = iter(results)
        return answer_lines(_line_told(document, waiting) for document in body.documents)
    results = await ledger.post(grant, entries, whole=True, keyed=body.keyed)
    receipts: list[JsonValue] = [_receipt(*pair) for pair in zip(posts, _stored(results), strict=True)]
    return answer({"receipts": receipts} if body.form is _Form.SEVERAL else receipts[0])


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


# --- reading ----------------------------------------------------------------------------------------------


def _read(received: Received, posting: Posting, actor: str) -> _Body:
    if received.is_lines:
        form, documents = _Form.LINES, _lines(received.raw, posting, actor)
    else:
        form, documents = _whole(received.raw, posting, actor)
    return _Body(form, documents, _keyed(received, posting, documents))


def _keyed(received: Received, posting: Posting, documents: Sequence[_Document]) -> Keyed | None:
    if received.idempotency_key is None:
        return None
    digests = [(digest_of(document.text), document.post is not None) for document in documents]
    return Keyed(
        endpoint=posting.name,
        key=received.idempotency_key,
        digests=tuple(digest if is_sound else refused(digest) for digest, is_sound in digests),
        places=tuple(place for place, (_, is_sound) in enumerate(digests) if is_sound),
    )


def _whole(raw: bytes, posting: Posting, actor: str) -> tuple[_Form, list[_Document]]:
    """A JSON body: one document, or several of them.

    Raises:
        BadRequestError: what is wrong with it, or with one of them.
    """
    try:
        parsed = parse(raw, max_values=MAX_VALUES)
    except InvalidJsonError as error:
        if _looks_like_lines(raw):
            reason = "more than one JSON document; send one a line as Content-Type: application/x-ndjson"
            raise InvalidJsonError(reason, error.place) from None
        raise
    value = _object(parsed, f"the body must be a JSON object; {_how_to_send_several(posting)}")
    if posting.several is None or posting.several not in value:
        return _Form.ONE, [_document(1, Sent(parsed, canonical_parsed(parsed), "", actor), posting)]
    items = [Parsed(item, parsed.plain_numbers) for item in _several(value, posting.several)]
    return _Form.SEVERAL, [
        _document(
            index + 1, Sent(item, canonical_parsed(item), f"{posting.several}[{index}].", actor), posting
        )
        for index, item in enumerate(items)
    ]


def _object(parsed: Parsed, otherwise: str) -> JsonObject:
    if type(parsed.value) is not dict:
        raise BadRequestError(otherwise)
    return parsed.value


def _several(value: JsonObject, member: str) -> list[JsonValue]:
    unknown = next((name for name in value if name != member), None)
    if unknown is not None:
        raise InvalidMemberError(unknown[:64], f"is no member beside {member}")
    items = value[member]
    if type(items) is not list or not 0 < len(items) <= MAX_ITEMS:
        raise InvalidMemberError(member, f"must be an array of 1 to {MAX_ITEMS} {member}")
    return items


def _how_to_send_several(posting: Posting) -> str:
    also = "" if posting.several is None else f' as {{"{posting.several}": [...]}} or'
    return f"send several{also} one a line as Content-Type: application/x-ndjson"


def _looks_like_lines(raw: bytes) -> bool:
    """Whether a body that is no JSON begins with a line that is: it was sent as another type than it has."""
    first, _, rest = raw.strip(_BLANK).partition(b"\n")
    if not rest:
        return False
    with suppress(InvalidJsonError):
        return type(parse(first.strip(_BLANK), max_values=MAX_VALUES).value) is dict
    return False


def _document(number: int, sent: Sent, posting: Posting) -> _Document:
    return _Document(number, sent.text, posting.read(sent), {})


def _lines(raw: bytes, posting: Posting, actor: str) -> list[_Document]:
    """A batch, read line by line; what is wrong with a line is told of that line alone.

    Raises:
        BadRequestError: no line, too many of them, or too many values in all.
    """
    numbered = list(_numbered(raw))
    if not numbered:
        raise BadRequestError("the batch is empty: send one JSON object a line")
    documents: list[_Document] = []
    values = _Values(raw, len(numbered))
    for number, line in numbered:
        document = _line(number, line, posting, actor)
        if document.post is not None:
            values.add(document.post.draft.payload)
        documents.append(document)
    return documents


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


def _line(number: int, line: bytes, posting: Posting, actor: str) -> _Document:
    text: str | bytes = line
    try:
        parsed = parse(line, max_values=MAX_VALUES)
        sent = Sent(parsed, canonical_parsed(parsed), "", actor)
        text = sent.text
        _object(parsed, "the line must be a JSON object")
        return _document(number, sent, posting)
    except BadRequestError as error:
        return _Document(number, text, None, line_of(error))


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


# --- answering --------------------------------------------------------------------------------------------


def _line_told(document: _Document, results: Iterator[Receipt | TrailsError]) -> JsonObject:
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
