"""What is posted: the documents of a body, which is one, several in one JSON document, or one a line.

They are parsed once and canonicalised once. In a batch each line stands for itself: what is wrong with one is
told of that line alone.
"""

from __future__ import annotations

import enum
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec

from app.chain.canonical import canonical_parsed
from app.chain.record import Draft
from app.chain.strict import JsonObject, JsonValue, Parsed, parse
from app.errors import BadRequestError, InvalidJsonError, InvalidMemberError
from app.http.bodies import Received
from app.http.problems import line_of
from app.ledger.idempotency import Keyed, digest_of, refused

MAX_ITEMS = 1_000
"""Lines of one batch, or documents of one JSON body."""

MAX_VALUES = 400_000
"""Values of one body, all levels together: nearly twice what 10,000 nodes of 20 members each have."""

_BLANK = b" \t\r\n"
_DECODER = json.JSONDecoder()


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


class Form(enum.Enum):
    """How a body holds its documents, and so how it is answered."""

    ONE = enum.auto()
    SEVERAL = enum.auto()
    LINES = enum.auto()


class Document(msgspec.Struct, frozen=True):
    """A document of a request, counted from 1: what is to be posted, or why it is refused.

    ``text`` is its canonical text, or its bytes where they are no JSON.
    """

    number: int
    text: str | bytes
    post: Post | None
    refused: JsonObject


class Body(msgspec.Struct, frozen=True):
    """A request's documents; ``keyed`` when it came with an Idempotency-Key."""

    form: Form
    documents: Sequence[Document]
    keyed: Keyed | None


def read_body(received: Received, posting: Posting, actor: str) -> Body:
    """The documents of a body that ``actor`` sent, each of them strictly parsed.

    Raises:
        BadRequestError: what is wrong with a JSON body, or with a batch as a whole.
    """
    if received.is_lines:
        form, documents = Form.LINES, _lines(received.raw, posting, actor)
    else:
        form, documents = _whole(received.raw, posting, actor)
    return Body(form, documents, _keyed(received, posting, documents))


def _keyed(received: Received, posting: Posting, documents: Sequence[Document]) -> Keyed | None:
    if received.idempotency_key is None:
        return None
    digests = [(digest_of(document.text), document.post is not None) for document in documents]
    return Keyed(
        endpoint=posting.name,
        key=received.idempotency_key,
        digests=tuple(digest if is_sound else refused(digest) for digest, is_sound in digests),
        places=tuple(place for place, (_, is_sound) in enumerate(digests) if is_sound),
    )


def _whole(raw: bytes, posting: Posting, actor: str) -> tuple[Form, list[Document]]:
    """A JSON body: one document, or several of them.

    Raises:
        BadRequestError: what is wrong with it, or with one of them.
    """
    try:
        parsed = parse(raw, max_values=MAX_VALUES)
    except InvalidJsonError as error:
        if _is_followed_by_another(raw):
            reason = "more than one JSON document; send one a line as Content-Type: application/x-ndjson"
            raise InvalidJsonError(reason, error.place) from None
        raise
    value = _object(parsed, f"the body must be a JSON object; {_how_to_send_several(posting)}")
    if posting.several is None or posting.several not in value:
        return Form.ONE, [_document(1, Sent(parsed, canonical_parsed(parsed), "", actor), posting)]
    items = [Parsed(item, parsed.plain_numbers) for item in _several(value, posting.several)]
    return Form.SEVERAL, [
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


def _is_followed_by_another(raw: bytes) -> bool:
    """Whether behind a JSON object another one begins: what is no document may be several."""
    with suppress(ValueError, RecursionError):
        text = raw.decode().lstrip()
        value, end = _DECODER.raw_decode(text)
        return type(value) is dict and text[end:].lstrip().startswith("{")
    return False


def _document(number: int, sent: Sent, posting: Posting) -> Document:
    return Document(number, sent.text, posting.read(sent), {})


def _lines(raw: bytes, posting: Posting, actor: str) -> list[Document]:
    """A batch, read line by line; what is wrong with a line is told of that line alone.

    Raises:
        BadRequestError: no line, too many of them, or too many values in all.
    """
    numbered = list(_numbered(raw))
    if not numbered:
        raise BadRequestError("the batch is empty: send one JSON object a line")
    documents: list[Document] = []
    values = _Values(raw, len(numbered))
    for number, line in numbered:
        document = _line(number, line, posting, actor)
        if document.post is not None:
            values.add(document.post.draft.payload)
        documents.append(document)
    if len(documents) > 1 and all(document.post is None for document in documents) and _is_object(raw):
        raise BadRequestError(
            "this is one JSON document over several lines; send it as Content-Type: application/json, or "
            "without line feeds in it"
        )
    return documents


def _is_object(raw: bytes) -> bool:
    with suppress(InvalidJsonError):
        return type(parse(raw, max_values=MAX_VALUES).value) is dict
    return False


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


def _line(number: int, line: bytes, posting: Posting, actor: str) -> Document:
    text: str | bytes = line
    try:
        parsed = parse(line, max_values=MAX_VALUES)
        sent = Sent(parsed, canonical_parsed(parsed), "", actor)
        text = sent.text
        _object(parsed, "the line must be a JSON object")
        return _document(number, sent, posting)
    except InvalidJsonError as error:
        return Document(number, text, None, line_of(_within_line(error, line)))
    except BadRequestError as error:
        return Document(number, text, None, line_of(error))


def _within_line(error: InvalidJsonError, line: bytes) -> InvalidJsonError:
    """The fault of a line as its sender sees it: the answer says which line, the place where in it."""
    reason, place = error.reason, error.place.replace("line 1 column", "column")
    if _is_followed_by_another(line):
        reason = "more than one JSON document in one line; send one a line (with curl: --data-binary)"
    return InvalidJsonError(reason, place)


class _Values:
    """Counts the values of a batch, exactly only when its punctuation says that they may be too many.

    Punctuation within strings is counted, too, so that it says no less than there is. No value is shorter
    than two bytes with what parts it from the next.
    """

    def __init__(self, raw: bytes, lines: int) -> None:
        self._exact = (
            len(raw) > 2 * MAX_VALUES
            and raw.count(b",") + raw.count(b"[") + raw.count(b"{") + lines > MAX_VALUES
        )
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
