"""The protobuf form of an export, walked by hand.

The library's own ``MessageToDict`` writes ids as base64 and takes six times as long. Each span is parsed by
itself: the first two levels are walked here (``wire``), so that a span that cannot be parsed costs no other,
other threads run between two spans, and what a request says beyond any limit is never made an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans as ScopeMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError
from app.trace.otlp.span import (
    MAX_ATTRIBUTES,
    MAX_MESSAGES,
    MAX_NESTING,
    MAX_SPANS,
    NO_ID,
    Export,
    Place,
    Rejected,
    Span,
    SpanError,
    base64_text,
    check_id,
    check_text,
    double,
    rejection,
    shown,
)
from app.trace.otlp.wire import Shape, WireError, fields, is_crowded, key

_SHORT = 256 * 1024
"""Characters that are surely less than the limit of a string's bytes."""

LARGE_MESSAGE: Final = 1024 * 1024
"""Bytes of one span above which its fields are counted before it is parsed: up to this size the library takes
0.05 s for the worst of them."""

MAX_FIELDS: Final = 100_000
"""Fields of one span (or resource, or scope) of more than ``LARGE_MESSAGE`` bytes."""

_RESOURCE_SPANS: Final = key(1)
_SCOPE_SPANS: Final = key(2)
_SPANS: Final = key(2)

_IDS: Final = {key(1): 0, key(2): 1, key(5): 2}
"""Trace id, span id and name of a span, in the order in which they are told."""

_LOOKED_AT: Final = 64
"""Fields of a span that cannot be parsed which are looked at for its ids; writers write them first."""

_ATTRIBUTE: Final[dict[int, Shape]] = {}
_VALUE: Final[dict[int, Shape]] = {5: {1: {}}, 6: {1: _ATTRIBUTE}}
_VALUE[5] = {1: _VALUE}
_ATTRIBUTE[2] = _VALUE
_SPAN_SHAPE: Final[Shape] = {9: _ATTRIBUTE, 11: {3: _ATTRIBUTE}, 13: {4: _ATTRIBUTE}, 15: {}}
_RESOURCE_SHAPE: Final[Shape] = {1: {1: _ATTRIBUTE, 3: {}}}
_SCOPE_SHAPE: Final[Shape] = {1: {3: _ATTRIBUTE}}

_NOT_PARSED: Final = (
    f"it cannot be read as protobuf; strings must be UTF-8, and attributes nest at most {MAX_NESTING} levels"
)


def decode_protobuf(raw: bytes) -> Export:
    """Decodes an ``ExportTraceServiceRequest``.

    Raises:
        BadRequestError: the bytes are no such message, or say more than ``MAX_SPANS`` or ``MAX_MESSAGES``.
    """
    decoder = _Decoder(raw)
    try:
        decoder.take_all()
    except WireError as error:
        raise BadRequestError(
            f"the body is not an ExportTraceServiceRequest in protobuf: {error}; nothing of it was stored"
        ) from None
    return Export(decoder.spans, decoder.rejected)


class _Room:
    """How many more messages one export may hold."""

    __slots__ = ("_left", "_limit", "_what")

    def __init__(self, limit: int, what: str) -> None:
        self._left = self._limit = limit
        self._what = what

    def take(self, count: int) -> None:
        """Counts so many.

        Raises:
            BadRequestError: they are too many.
        """
        self._left -= count
        if self._left < 0:
            raise BadRequestError(f"more than {self._limit} {self._what} in one export; send several")


class _Decoder:
    """Collects what one body holds. A part that is left of a message is parsed for what it says of itself."""

    def __init__(self, raw: bytes) -> None:
        self.spans: list[Span] = []
        self.rejected: list[Rejected] = []
        self._raw = raw
        self._resources = _Room(MAX_SPANS, "resourceSpans")
        self._scopes = _Room(MAX_SPANS, "scopeSpans")
        self._span_room = _Room(MAX_SPANS, "spans")
        self._values = _Room(MAX_MESSAGES, "attributes, events, links and values in them")

    def take_all(self) -> None:
        """Reads the whole body; what it holds beside resources is unknown, and passed over."""
        _, of_resources = self._split(0, len(self._raw), _RESOURCE_SPANS, self._resources)
        for at, (start, end) in enumerate(of_resources):
            self._take_resource(start, end, at)

    def _take_resource(self, start: int, end: int, at: int) -> None:
        rest, of_scopes = self._split(start, end, _SCOPE_SPANS, self._scopes)
        fault: SpanError | None = None
        resource: JsonObject = {}
        try:
            if rest:
                resource = _resource(_parsed(ResourceMessage, rest, _RESOURCE_SHAPE), self._values)
        except SpanError as error:
            fault = SpanError(f"resource: {error}")
        for number, (begins, ends) in enumerate(of_scopes):
            self._take_scope(begins, ends, Place(at, number), fault, resource)

    def _take_scope(
        self, start: int, end: int, place: Place, fault: SpanError | None, resource: JsonObject
    ) -> None:
        rest, of_spans = self._split(start, end, _SPANS, self._span_room)
        scope: JsonObject = {}
        try:
            if rest:
                scope = _scope(_parsed(ScopeMessage, rest, _SCOPE_SHAPE), self._values)
        except SpanError as error:
            fault = fault or SpanError(f"scope: {error}")
        raw, values = self._raw, self._values
        for number, (begins, ends) in enumerate(of_spans):
            part = raw[begins:ends]
            try:
                if fault is not None:
                    raise fault
                self.spans.append(_span(_parsed(SpanMessage, part, _SPAN_SHAPE), resource, scope, values))
            except SpanError as error:
                ids, name = _named(part)
                where = Place(place.resource, place.scope, number)
                self.rejected.append(rejection(where, ids, name, error, resource))

    def _split(self, start: int, end: int, inner: int, room: _Room) -> tuple[bytes, list[tuple[int, int]]]:
        """What a message says of itself, and where the messages in it stand."""
        rest: list[bytes] = []
        found: list[tuple[int, int]] = []
        for number, begins, payload, ends in fields(self._raw, start, end):
            room.take(1)
            if number == inner:
                found.append((payload, ends))
            else:
                rest.append(self._raw[begins:ends])
        return b"".join(rest), found


def _parsed(kind: Any, part: bytes, shape: Shape) -> Any:  # noqa: ANN401  messages
    if len(part) > LARGE_MESSAGE and is_crowded(part, 0, len(part), shape, MAX_FIELDS):
        raise SpanError(f"more than {MAX_FIELDS} fields, attributes and their values among them")
    try:
        return kind.FromString(part)
    except (DecodeError, RecursionError):
        raise SpanError(_NOT_PARSED) from None


def _named(part: bytes) -> tuple[tuple[str, str], str]:
    """Ids and name of a span, as far as they can be read."""
    told = ["", "", ""]
    for at, payload in _first(part):
        told[at] = payload.hex() if at < 2 else payload[:256].decode("utf-8", "replace")
    return (told[0], told[1]), told[2]


def _first(part: bytes) -> Iterator[tuple[int, bytes]]:
    try:
        for number, _, payload, ends in islice(fields(part, 0, len(part)), _LOOKED_AT):
            if number in _IDS:
                yield _IDS[number], part[payload:ends]
    except WireError:
        return


def _resource(of_resource: Any, values: _Room) -> JsonObject:  # noqa: ANN401  a message
    message = of_resource.resource
    resource: JsonObject = {}
    if message.attributes:
        resource["attributes"] = _attributes(message.attributes, values)
    if message.dropped_attributes_count:
        resource["dropped_attributes_count"] = message.dropped_attributes_count
    if of_resource.schema_url:
        resource["schema_url"] = _text(of_resource.schema_url, "schema_url")
    return resource


def _scope(of_scope: Any, values: _Room) -> JsonObject:  # noqa: ANN401  a message
    message = of_scope.scope
    scope: JsonObject = {}
    if message.name:
        scope["name"] = _text(message.name, "name")
    if message.version:
        scope["version"] = _text(message.version, "version")
    if message.attributes:
        scope["attributes"] = _attributes(message.attributes, values)
    if message.dropped_attributes_count:
        scope["dropped_attributes_count"] = message.dropped_attributes_count
    if of_scope.schema_url:
        scope["schema_url"] = _text(of_scope.schema_url, "schema_url")
    return scope


def _span(message: Any, resource: JsonObject, scope: JsonObject, values: _Room) -> Span:  # noqa: ANN401  a message
    parent = message.parent_span_id.hex()
    status = message.status
    name = message.name
    if not name:
        raise SpanError("name: is missing")
    dropped: JsonObject = {}
    if message.dropped_attributes_count:
        dropped["dropped_attributes_count"] = message.dropped_attributes_count
    if message.dropped_events_count:
        dropped["dropped_events_count"] = message.dropped_events_count
    if message.dropped_links_count:
        dropped["dropped_links_count"] = message.dropped_links_count
    trace_id = check_id(message.trace_id.hex(), 32, "trace_id")
    events, links = message.events, message.links
    return Span(
        trace_id,
        check_id(message.span_id.hex(), 16, "span_id"),
        check_id(parent, 16, "parent_span_id") if parent else NO_ID,
        _text(name, "name"),
        message.kind,
        message.start_time_unix_nano,
        message.end_time_unix_nano,
        _attributes(message.attributes, values),
        [_event(event, values) for event in _few(events, "events", values)] if events else [],
        [_link(link, values) for link in _few(links, "links", values)] if links else [],
        status.code,
        _text(status.message, "status.message"),
        _text(message.trace_state, "trace_state"),
        message.flags,
        dropped,
        resource,
        scope,
    )


def _few(messages: Any, what: str, values: _Room) -> Any:  # noqa: ANN401  a repeated field
    if len(messages) > MAX_ATTRIBUTES:
        raise SpanError(f"{what}: more than {MAX_ATTRIBUTES}")
    values.take(len(messages))
    return messages


def _event(message: Any, values: _Room) -> JsonValue:  # noqa: ANN401  a message
    event: JsonObject = {
        "name": _text(message.name, "event name"),
        "time_unix_nano": str(message.time_unix_nano),
    }
    if message.attributes:
        event["attributes"] = _attributes(message.attributes, values)
    if message.dropped_attributes_count:
        event["dropped_attributes_count"] = message.dropped_attributes_count
    return event


def _link(message: Any, values: _Room) -> JsonValue:  # noqa: ANN401  a message
    link: JsonObject = {"trace_id": message.trace_id.hex(), "span_id": message.span_id.hex()}
    if message.trace_state:
        link["trace_state"] = _text(message.trace_state, "link trace_state")
    if message.attributes:
        link["attributes"] = _attributes(message.attributes, values)
    if message.dropped_attributes_count:
        link["dropped_attributes_count"] = message.dropped_attributes_count
    if message.flags:
        link["flags"] = message.flags
    return link


def _attributes(pairs: Any, values: _Room) -> JsonObject:  # noqa: ANN401  a repeated field
    """A list of attributes as an object. Nearly all are strings, which are taken without a further call."""
    attributes: JsonObject = {}
    for pair in _few(pairs, "attributes", values):
        name = pair.key
        value = pair.value
        text = value.string_value  # empty when it is of another kind, too
        if text:
            if "\0" in text or len(text) > _SHORT:
                check_text(text, f"attribute {shown(name)}")
            attributes[name] = text
        else:
            attributes[name] = _value(value, value.WhichOneof("value"), name, 0, values)
    if len(attributes) != len(pairs):
        raise SpanError(f"attribute {_twice(pairs)}: stands twice")
    _check_keys(attributes)
    return attributes


def _check_keys(attributes: JsonObject) -> None:
    joined = "".join(attributes)
    if "\0" in joined or len(joined) > _SHORT:
        for name in attributes:
            check_text(name, f"attribute key {shown(name)}")


def _twice(pairs: Any) -> str:  # noqa: ANN401  a repeated field
    seen: set[str] = set()
    return shown(next(pair.key for pair in pairs if pair.key in seen or seen.add(pair.key)))  # type: ignore[func-returns-value]  # add says nothing


def _value(value: Any, kind: str | None, name: str, depth: int, values: _Room) -> JsonValue:  # noqa: ANN401  a message
    if kind is None:
        return None
    if kind in _SCALARS:
        return _SCALARS[kind](value, name)
    if depth >= MAX_NESTING:
        raise SpanError(f"attribute {shown(name)}: nested deeper than {MAX_NESTING} levels")
    if kind == "array_value":
        items = _few(value.array_value.values, f"attribute {shown(name)}", values)
        return [_value(item, item.WhichOneof("value"), name, depth + 1, values) for item in items]
    if kind == "kvlist_value":
        return _object(value.kvlist_value.values, name, depth + 1, values)
    raise SpanError(f"attribute {shown(name)}: a value of the unknown form {kind}")


_SCALARS: Final[dict[str, Callable[[Any, str], JsonValue]]] = {
    "int_value": lambda value, _: value.int_value,
    "string_value": lambda value, name: _text(value.string_value, f"attribute {shown(name)}"),
    "bool_value": lambda value, _: value.bool_value,
    "double_value": lambda value, _: double(value.double_value),
    "bytes_value": lambda value, name: {"bytesValue": base64_text(value.bytes_value, name)},
}


def _object(pairs: Any, name: str, depth: int, values: _Room) -> JsonObject:  # noqa: ANN401  a repeated field
    members: JsonObject = {
        pair.key: _value(pair.value, pair.value.WhichOneof("value"), name, depth, values)
        for pair in _few(pairs, f"attribute {shown(name)}", values)
    }
    if len(members) != len(pairs):
        raise SpanError(f"attribute {shown(name)}: the key {_twice(pairs)} stands twice in it")
    _check_keys(members)
    return members


def _text(text: str, what: str) -> str:
    return check_text(text, what) if "\0" in text or len(text) > _SHORT else text
