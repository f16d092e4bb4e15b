"""The JSON form of an export (OTLP/JSON): hex ids, integers for enums, decimal strings for 64 bits.

The document as a whole is JSON in UTF-8, or all of it is refused. What is wrong inside one span costs that
span alone, and what is wrong with a resource or a scope costs its spans: a key that stands twice, an element
that is no object, U+0000, a lone surrogate, a number that overflows. Unknown members are passed over whatever
they hold, as the specification wants; the names of protobuf (``resource_spans``) are refused, since passing
over them would lose everything without a word.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from app.chain.strict import Doubled, JsonObject, JsonValue, parse
from app.errors import BadRequestError, InvalidJsonError
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

_Members: TypeAlias = Mapping[str, JsonValue]

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_DIGITS: Final = re.compile(r"-?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LONGEST_NUMBER: Final = 400

MAX_JSON_DEPTH: Final = 512
"""Nested arrays and objects of a whole document. A span whose attributes nest too deep is still read, and
rejected by itself: each of its levels takes up to four of these."""

_UINT32: Final = (0, 2**32 - 1)
_UINT64: Final = (0, 2**64 - 1)
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)

_KINDS: Final = {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}
_CODES: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}

_MISSPELT: Final = {
    "resource_spans": "write resourceSpans; OTLP/JSON spells names in lowerCamelCase",
    "resourceLogs": "this is an export of logs; it takes spans",
    "resourceMetrics": "this is an export of metrics; it takes spans",
}


def decode_json(raw: bytes) -> Export:
    """Decodes an ``ExportTraceServiceRequest`` in OTLP/JSON.

    Raises:
        InvalidJsonError: not JSON (too deep, not UTF-8, too many values), or a key twice in the outermost
            object; names the place.
        BadRequestError: not the object that it must be, or too many spans.
    """
    document = parse(
        raw, max_depth=MAX_JSON_DEPTH, max_string=len(raw) + 1, max_values=MAX_MESSAGES, lenient=True
    ).value
    if not isinstance(document, dict):
        raise BadRequestError("the body must be an object")
    if isinstance(document, Doubled):
        raise InvalidJsonError(f"duplicate key {shown(document.doubled)}", "$")
    for name, advice in _MISSPELT.items():
        if name in document and "resourceSpans" not in document:
            raise BadRequestError(f"{name}: {advice}")
    try:
        of_resources = _children(document, "resourceSpans")
    except SpanError as error:
        raise BadRequestError(f"the body: {error}") from None
    decoder = _Decoder()
    for at, of_resource in enumerate(of_resources):
        decoder.take_resource(of_resource, Place(at))
    return Export(decoder.spans, decoder.rejected)


class _Decoder:
    """Collects what one document holds."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.rejected: list[Rejected] = []
        self._scopes = 0

    def take_resource(self, of_resource: JsonValue, place: Place) -> None:
        """An element of ``resourceSpans``."""
        fault: SpanError | None = None
        resource: JsonObject = {}
        try:
            resource = _resource(_inner(of_resource, ""))
        except SpanError as error:
            fault = SpanError(f"resource: {error}")
        scopes = self._children(of_resource, "scopeSpans", place, fault, resource)
        self._scopes += len(scopes)
        if self._scopes > MAX_SPANS:
            raise BadRequestError(f"more than {MAX_SPANS} scopeSpans in one export; send several")
        for at, of_scope in enumerate(scopes):
            self._take_scope(of_scope, Place(place.resource, at), fault, resource)

    def _take_scope(
        self, of_scope: JsonValue, place: Place, fault: SpanError | None, resource: JsonObject
    ) -> None:
        scope: JsonObject = {}
        try:
            scope = _scope(_inner(of_scope, ""))
        except SpanError as error:
            fault = fault or SpanError(f"scope: {error}")
        spans = self._children(of_scope, "spans", place, fault, resource)
        if len(self.spans) + len(self.rejected) + len(spans) > MAX_SPANS:
            raise BadRequestError(f"more than {MAX_SPANS} spans in one export; send several")
        for at, message in enumerate(spans):
            try:
                if fault is not None:
                    raise fault
                self.spans.append(_span(_inner(message, ""), resource, scope))
            except SpanError as error:
                where = Place(place.resource, place.scope, at)
                self.rejected.append(_rejected(where, message, error, resource))

    def _children(
        self, parent: JsonValue, name: str, place: Place, fault: SpanError | None, resource: JsonObject
    ) -> list[JsonValue]:
        """What a resource or a scope holds; when nobody can tell, that is told once, at its own place."""
        if isinstance(parent, dict):
            try:
                return _children(parent, name)
            except SpanError as error:
                fault = error
        self.rejected.append(rejection(place, ("", ""), "", fault, resource))
        return []


def _children(parent: _Members, name: str) -> list[JsonValue]:
    """All elements of an array, also when it stands twice."""
    found = [value for key, value in parent.pairs if key == name] if isinstance(parent, Doubled) else None
    children: list[JsonValue] = []
    for value in [parent.get(name)] if found is None else found:
        if value is None:
            continue
        if not isinstance(value, list):
            raise SpanError(f"{name}: must be an array")
        children += value
    return children


def _rejected(place: Place, message: JsonValue, reason: SpanError, resource: JsonObject) -> Rejected:
    members: _Members = message if isinstance(message, dict) else {}
    trace_id, span_id, name = (_told(members.get(member)) for member in ("traceId", "spanId", "name"))
    return rejection(place, (trace_id, span_id), name, reason, resource)


def _told(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _resource(of_resource: _Members) -> JsonObject:
    resource = _described(_member_object(of_resource, "resource"), ())
    if schema_url := _text(of_resource, "schemaUrl"):
        resource["schema_url"] = schema_url
    return resource


def _scope(of_scope: _Members) -> JsonObject:
    scope = _described(_member_object(of_scope, "scope"), ("name", "version"))
    if schema_url := _text(of_scope, "schemaUrl"):
        scope["schema_url"] = schema_url
    return scope


def _described(message: _Members, texts: tuple[str, ...]) -> JsonObject:
    """A resource or a scope: its texts, attributes and their dropped count, what is empty left out."""
    described: JsonObject = {name: text for name in texts if (text := _text(message, name))}
    if attributes := _attributes(message):
        described["attributes"] = attributes
    if dropped := _integer(message, "droppedAttributesCount", _UINT32):
        described["dropped_attributes_count"] = dropped
    return described


def _span(message: _Members, resource: JsonObject, scope: JsonObject) -> Span:
    name = _text(message, "name")
    if not name:
        raise SpanError("name: is missing")
    parent = _id(message, "parentSpanId", 16)
    status = _member_object(message, "status")
    dropped: JsonObject = {
        ours: count for ours, theirs in _DROPPED.items() if (count := _integer(message, theirs, _UINT32))
    }
    return Span(
        check_id(_id(message, "traceId", 32), 32, "traceId"),
        check_id(_id(message, "spanId", 16), 16, "spanId"),
        check_id(parent, 16, "parentSpanId") if parent else NO_ID,
        name,
        _enum(message, "kind", _KINDS),
        _integer(message, "startTimeUnixNano", _UINT64),
        _integer(message, "endTimeUnixNano", _UINT64),
        _attributes(message),
        [_event(_inner(event, "events")) for event in _few(message, "events")],
        [_link(_inner(link, "links")) for link in _few(message, "links")],
        _enum(status, "code", _CODES),
        _text(status, "message"),
        _text(message, "traceState"),
        _integer(message, "flags", _UINT32),
        dropped,
        resource,
        scope,
    )


_DROPPED: Final = {
    "dropped_attributes_count": "droppedAttributesCount",
    "dropped_events_count": "droppedEventsCount",
    "dropped_links_count": "droppedLinksCount",
}


def _event(message: _Members) -> JsonValue:
    time = _integer(message, "timeUnixNano", _UINT64)
    event: JsonObject = {"name": _text(message, "name"), "time_unix_nano": str(time)}
    return event | _described(message, ())


def _link(message: _Members) -> JsonValue:
    link: JsonObject = {"trace_id": _id(message, "traceId", 32), "span_id": _id(message, "spanId", 16)}
    if trace_state := _text(message, "traceState"):
        link["trace_state"] = trace_state
    link |= _described(message, ())
    if flags := _integer(message, "flags", _UINT32):
        link["flags"] = flags
    return link


# --- values ---------------------------------------------------------------------------------------------


def _attributes(message: _Members) -> JsonObject:
    return _pairs(_few(message, "attributes"), "", 0)


def _pairs(pairs: list[JsonValue], outer: str, depth: int) -> JsonObject:
    """A list of attributes, or of the members of the attribute ``outer``, as an object."""
    members: JsonObject = {}
    for item in pairs:
        pair = _inner(item, "attributes")
        key = _text(pair, "key")
        if key in members:
            raise SpanError(
                f"attribute {shown(outer)}: the key {shown(key)} stands twice in it"
                if depth
                else f"attribute {shown(key)}: stands twice"
            )
        members[key] = _value(pair.get("value"), outer or key, depth)
    return members


def _value(value: JsonValue, key: str, depth: int) -> JsonValue:
    """One AnyValue."""
    if value is None:
        return None
    where = f"attribute {shown(key)}"
    if type(value) is not dict:
        if isinstance(value, Doubled):
            raise SpanError(f"{where}: duplicate key {shown(value.doubled)}")
        raise SpanError(f'{where}: must be an object such as {{"stringValue": "x"}}')
    forms = [form for form in _FORMS if value.get(form) is not None]
    if not forms:
        return None
    if len(forms) > 1:
        raise SpanError(f"{where}: has {forms[0]} and {forms[1]}; it can have one value")
    form = forms[0]
    if form in _SCALARS:
        return _SCALARS[form](value[form], where)
    if depth >= MAX_NESTING:
        raise SpanError(f"{where}: nested deeper than {MAX_NESTING} levels")
    items = _few(_inner(value[form], form), "values")
    if form == "kvlistValue":
        return _pairs(items, key, depth + 1)
    return [_value(item, key, depth + 1) for item in items]


def _string(value: JsonValue, where: str) -> JsonValue:
    if not isinstance(value, str):
        raise SpanError(f"{where}: stringValue must be a string")
    return check_text(value, where)


def _boolean(value: JsonValue, where: str) -> JsonValue:
    if not isinstance(value, bool):
        raise SpanError(f"{where}: boolValue must be true or false")
    return value


def _int64(value: JsonValue, where: str) -> JsonValue:
    return _whole(value, f"{where}: intValue", _INT64)


def _double(value: JsonValue, where: str) -> JsonValue:
    if isinstance(value, str):
        if value in _SPECIAL:
            return double(float(value))
        if len(value) > _LONGEST_NUMBER or _NUMBER.fullmatch(value) is None:
            raise SpanError(f"{where}: doubleValue is no number")
        value = float(value)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpanError(f"{where}: doubleValue must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpanError(f"{where}: doubleValue overflows a double")
    return double(number)


_SPECIAL: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def _bytes(value: JsonValue, where: str) -> JsonValue:
    """Base64 as protobuf's JSON takes it, either alphabet, padded or not; in its one usual spelling."""
    if isinstance(value, str):
        usual = value.replace("-", "+").replace("_", "/").rstrip("=")
        try:
            plain = base64.b64decode(usual + "=" * (-len(usual) % 4), validate=True)
        except ValueError:
            pass
        else:
            return {"bytesValue": base64_text(plain, where)}
    raise SpanError(f"{where}: bytesValue must be base64")


_SCALARS: Final[dict[str, Callable[[JsonValue, str], JsonValue]]] = {
    "stringValue": _string,
    "boolValue": _boolean,
    "intValue": _int64,
    "doubleValue": _double,
    "bytesValue": _bytes,
}
_FORMS: Final = (*_SCALARS, "arrayValue", "kvlistValue")


def _text(message: _Members, name: str) -> str:
    value = message.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SpanError(f"{name}: must be a string")
    return check_text(value, name) if value else ""


def _id(message: _Members, name: str, digits: int) -> str:
    value = message.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or _HEX.fullmatch(value) is None:
        raise SpanError(f"{name}: must be {digits} hex digits; OTLP/JSON writes ids in hex, not in base64")
    return value.lower()


def _integer(message: _Members, name: str, within: tuple[int, int]) -> int:
    """An integer of a message; absent is 0."""
    value = message.get(name)
    return 0 if value is None else _whole(value, name, within)


def _whole(value: JsonValue, where: str, within: tuple[int, int]) -> int:
    """An integer, as a number or as decimal digits in a string."""
    found: int | None = None
    if isinstance(value, str) and _DIGITS.fullmatch(value) is not None:
        found = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        found = int(value)
    low, high = within
    if found is None or not low <= found <= high:
        raise SpanError(f"{where}: must be a whole number from {low} to {high}")
    return found


def _enum(message: _Members, name: str, names: Mapping[str, int]) -> int:
    """An enum as an integer; its name, as protobuf's own JSON writes it, is taken too."""
    value = message.get(name)
    return names[value] if isinstance(value, str) and value in names else _integer(message, name, _INT32)


# --- shapes ---------------------------------------------------------------------------------------------


def _member_object(message: _Members, name: str) -> _Members:
    value = message.get(name)
    return {} if value is None else _inner(value, name)


def _inner(value: JsonValue, what: str) -> _Members:
    """An object of which each key stands once; ``what`` may be empty where the place says it."""
    if type(value) is dict:
        return value
    lead = f"{what}: " if what else ""
    if isinstance(value, Doubled):
        raise SpanError(f"{lead}duplicate key {shown(value.doubled)}")
    raise SpanError(f"{lead}must be an object")


def _few(message: _Members, name: str) -> list[JsonValue]:
    value = message.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise SpanError(f"{name}: must be an array")
    if len(value) > MAX_ATTRIBUTES:
        raise SpanError(f"{name}: more than {MAX_ATTRIBUTES}")
    return value
