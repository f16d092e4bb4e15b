"""The protobuf form of an export, walked by hand.

The library's own ``MessageToDict`` writes ids as base64 and takes six times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.chain.strict import JsonObject, JsonValue
from app.errors import BadRequestError
from app.trace.otlp.span import (
    MAX_ATTRIBUTES,
    MAX_NESTING,
    NO_ID,
    Export,
    Rejected,
    Span,
    SpanError,
    base64_text,
    check_id,
    check_text,
    double,
    shown,
)

_SHORT = 256 * 1024
"""Characters that are surely less than the limit of a string's bytes."""


def decode_protobuf(raw: bytes) -> Export:
    """Decodes an ``ExportTraceServiceRequest``.

    Raises:
        BadRequestError: the bytes are no such message.
    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(raw)
    except (DecodeError, RecursionError):
        raise BadRequestError(
            "the body is not an ExportTraceServiceRequest in protobuf; strings must be UTF-8, and attributes "
            f"nest at most {MAX_NESTING} levels"
        ) from None
    spans: list[Span] = []
    rejected: list[Rejected] = []
    for of_resource in request.resource_spans:
        _decode_resource(of_resource, spans, rejected)
    return Export(spans, rejected)


def _decode_resource(of_resource: Any, spans: list[Span], rejected: list[Rejected]) -> None:  # noqa: ANN401  a message
    fault: SpanError | None = None
    resource: JsonObject = {}
    try:
        resource = _resource(of_resource)
    except SpanError as error:
        fault = SpanError(f"resource: {error}")
    for of_scope in of_resource.scope_spans:
        scope_fault = fault
        scope: JsonObject = {}
        try:
            scope = _scope(of_scope)
        except SpanError as error:
            scope_fault = fault or SpanError(f"scope: {error}")
        for message in of_scope.spans:
            try:
                if scope_fault is not None:
                    raise scope_fault
                spans.append(_span(message, resource, scope))
            except SpanError as error:
                ids = shown(message.trace_id.hex()), shown(message.span_id.hex())
                rejected.append(Rejected(*ids, shown(message.name), str(error), resource))


def _resource(of_resource: Any) -> JsonObject:  # noqa: ANN401  a message
    message = of_resource.resource
    resource: JsonObject = {}
    if message.attributes:
        resource["attributes"] = _attributes(message.attributes)
    if message.dropped_attributes_count:
        resource["dropped_attributes_count"] = message.dropped_attributes_count
    if of_resource.schema_url:
        resource["schema_url"] = _text(of_resource.schema_url, "schema_url")
    return resource


def _scope(of_scope: Any) -> JsonObject:  # noqa: ANN401  a message
    message = of_scope.scope
    scope: JsonObject = {}
    if message.name:
        scope["name"] = _text(message.name, "name")
    if message.version:
        scope["version"] = _text(message.version, "version")
    if message.attributes:
        scope["attributes"] = _attributes(message.attributes)
    if message.dropped_attributes_count:
        scope["dropped_attributes_count"] = message.dropped_attributes_count
    if of_scope.schema_url:
        scope["schema_url"] = _text(of_scope.schema_url, "schema_url")
    return scope


def _span(message: Any, resource: JsonObject, scope: JsonObject) -> Span:  # noqa: ANN401  a message
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
        _attributes(message.attributes),
        [_event(event) for event in _few(events, "events")] if events else [],
        [_link(link) for link in _few(links, "links")] if links else [],
        status.code,
        _text(status.message, "status.message"),
        _text(message.trace_state, "trace_state"),
        message.flags,
        dropped,
        resource,
        scope,
    )


def _few(messages: Any, what: str) -> Any:  # noqa: ANN401  a repeated field
    if len(messages) > MAX_ATTRIBUTES:
        raise SpanError(f"{what}: more than {MAX_ATTRIBUTES}")
    return messages


def _event(message: Any) -> JsonValue:  # noqa: ANN401  a message
    event: JsonObject = {
        "name": _text(message.name, "event name"),
        "time_unix_nano": str(message.time_unix_nano),
    }
    if message.attributes:
        event["attributes"] = _attributes(message.attributes)
    if message.dropped_attributes_count:
        event["dropped_attributes_count"] = message.dropped_attributes_count
    return event


def _link(message: Any) -> JsonValue:  # noqa: ANN401  a message
    link: JsonObject = {"trace_id": message.trace_id.hex(), "span_id": message.span_id.hex()}
    if message.trace_state:
        link["trace_state"] = _text(message.trace_state, "link trace_state")
    if message.attributes:
        link["attributes"] = _attributes(message.attributes)
    if message.dropped_attributes_count:
        link["dropped_attributes_count"] = message.dropped_attributes_count
    if message.flags:
        link["flags"] = message.flags
    return link


def _attributes(pairs: Any) -> JsonObject:  # noqa: ANN401  a repeated field
    """A list of attributes as an object. Nearly all are strings, which are taken without a further call."""
    attributes: JsonObject = {}
    for pair in pairs:
        key = pair.key
        value = pair.value
        kind = value.WhichOneof("value")
        if kind == "string_value":
            text = value.string_value
            if "\0" in text or len(text) > _SHORT:
                check_text(text, f"attribute {shown(key)}")
            attributes[key] = text
        else:
            attributes[key] = _value(value, kind, key, 0)
    if len(attributes) != len(pairs):
        raise SpanError(f"attribute {_twice(pairs)}: stands twice")
    _check_keys(attributes)
    return attributes


def _check_keys(attributes: JsonObject) -> None:
    if len(attributes) > MAX_ATTRIBUTES:
        raise SpanError(f"attributes: more than {MAX_ATTRIBUTES}")
    joined = "".join(attributes)
    if "\0" in joined or len(joined) > _SHORT:
        for key in attributes:
            check_text(key, f"attribute key {shown(key)}")


def _twice(pairs: Any) -> str:  # noqa: ANN401  a repeated field
    seen: set[str] = set()
    return shown(next(pair.key for pair in pairs if pair.key in seen or seen.add(pair.key)))  # type: ignore[func-returns-value]  # add says nothing


def _value(value: Any, kind: str | None, key: str, depth: int) -> JsonValue:  # noqa: ANN401  a message
    if kind is None:
        return None
    if kind in _SCALARS:
        return _SCALARS[kind](value, key)
    if depth >= MAX_NESTING:
        raise SpanError(f"attribute {shown(key)}: nested deeper than {MAX_NESTING} levels")
    if kind == "array_value":
        items = _few(value.array_value.values, f"attribute {shown(key)}")
        return [_value(item, item.WhichOneof("value"), key, depth + 1) for item in items]
    if kind == "kvlist_value":
        return _object(value.kvlist_value.values, key, depth + 1)
    raise SpanError(f"attribute {shown(key)}: a value of the unknown form {kind}")


_SCALARS: Final[dict[str, Callable[[Any, str], JsonValue]]] = {
    "int_value": lambda value, _: value.int_value,
    "string_value": lambda value, key: _text(value.string_value, f"attribute {shown(key)}"),
    "bool_value": lambda value, _: value.bool_value,
    "double_value": lambda value, _: double(value.double_value),
    "bytes_value": lambda value, key: {"bytesValue": base64_text(value.bytes_value, key)},
}


def _object(pairs: Any, key: str, depth: int) -> JsonObject:  # noqa: ANN401  a repeated field
    members: JsonObject = {
        pair.key: _value(pair.value, pair.value.WhichOneof("value"), key, depth) for pair in pairs
    }
    if len(members) != len(pairs):
        raise SpanError(f"attribute {shown(key)}: the key {_twice(pairs)} stands twice in it")
    _check_keys(members)
    return members


def _text(text: str, what: str) -> str:
    return check_text(text, what) if "\0" in text or len(text) > _SHORT else text
