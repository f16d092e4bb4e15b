"""Spans as tests write them, and exports of them in both encodings, each by an encoder of its own.

An attribute's value is what Python says it is; ``Pairs`` is a key/value list that may hold a key twice.
"""

from __future__ import annotations

import base64
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Pair = tuple[str, Any]

Attributes = Mapping[str, Any] | tuple[Pair, ...]

SERVICE: Attributes = (("service.name", "svc"),)

START_NS = 1_791_016_055_123_456_789


class Pairs(msgspec.Struct, frozen=True):
    """A key/value list, with whatever keys."""

    pairs: tuple[Pair, ...]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One span to be sent; ``attributes`` as an object, or as pairs where a key is to stand twice."""

    name: str = "work"
    trace_id: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(16))
    span_id: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(8))
    parent_span_id: bytes = b""
    kind: int = 1
    start_ns: int = START_NS
    end_ns: int = START_NS + 1_500_000
    attributes: Mapping[str, Any] | tuple[Pair, ...] = {}
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    code: int = 0
    message: str = ""
    trace_state: str = ""
    flags: int = 0
    dropped: int = 0


def tool(name: str, parent: Sent | None = None, **changes: Any) -> Sent:
    """A call of a tool, as the GenAI conventions write it; below ``parent``."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    made = Sent(name=f"execute_tool {name}", attributes={**attributes, **changes.pop("attributes", {})})
    return child(msgspec.structs.replace(made, **changes), parent)


def child(span: Sent, parent: Sent | None) -> Sent:
    """The same span below another."""
    if parent is None:
        return span
    return msgspec.structs.replace(span, trace_id=parent.trace_id, parent_span_id=parent.span_id)


def protobuf(*spans: Sent, resource: Attributes = SERVICE) -> bytes:
    """An ExportTraceServiceRequest in protobuf."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(_messages(resource))
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name, of_scope.scope.version = "tests", "1"
    for span in spans:
        message = of_scope.spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_span_id,
            name=span.name,
            kind=span.kind,  # type: ignore[arg-type]  # any number is one
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
            trace_state=span.trace_state,
            flags=span.flags,
            dropped_attributes_count=span.dropped,
        )
        message.attributes.extend(_messages(span.attributes))
        message.status.code = span.code  # type: ignore[assignment]  # as above
        message.status.message = span.message
        for name, attributes in span.events:
            event = message.events.add(name=name, time_unix_nano=span.start_ns)
            event.attributes.extend(_messages(attributes))
        for trace_id, span_id in span.links:
            message.links.add(trace_id=trace_id, span_id=span_id)
    return request.SerializeToString()


def document(*spans: Sent, resource: Attributes = SERVICE) -> dict[str, Any]:
    """The same in OTLP/JSON, as a document that a test may still change."""
    of_scope = {"scope": {"name": "tests", "version": "1"}, "spans": [_document(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _objects(resource)}, "scopeSpans": [of_scope]}]}


def as_json(*spans: Sent, **more: Any) -> bytes:
    """The same as bytes."""
    return json.dumps(document(*spans, **more)).encode()


def _document(span: Sent) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "traceState": span.trace_state,
        "flags": span.flags,
        "droppedAttributesCount": span.dropped,
        "attributes": _objects(span.attributes),
        "status": {"code": span.code, "message": span.message},
        "events": [
            {"name": name, "timeUnixNano": str(span.start_ns), "attributes": _objects(attributes)}
            for name, attributes in span.events
        ],
        "links": [{"traceId": trace_id.hex(), "spanId": span_id.hex()} for trace_id, span_id in span.links],
    }


def _pairs(attributes: Mapping[str, Any] | Sequence[Pair]) -> Sequence[Pair]:
    return list(attributes.items()) if isinstance(attributes, Mapping) else attributes


def _messages(attributes: Mapping[str, Any] | Sequence[Pair]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in _pairs(attributes)]


def _any(value: Any) -> AnyValue:
    made = AnyValue()
    match value:
        case None:
            pass
        case str():
            made.string_value = value
        case bool():
            made.bool_value = value
        case int():
            made.int_value = value
        case float():
            made.double_value = value
        case bytes():
            made.bytes_value = value
        case list():
            made.array_value.values.extend(map(_any, value))
            made.array_value.SetInParent()
        case Pairs():
            made.kvlist_value.values.extend(_messages(value.pairs))
            made.kvlist_value.SetInParent()
        case dict():
            made.kvlist_value.values.extend(_messages(value))
            made.kvlist_value.SetInParent()
    return made


def _objects(attributes: Mapping[str, Any] | Sequence[Pair]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _object(value)} for key, value in _pairs(attributes)]


def _object(value: Any) -> dict[str, Any]:  # noqa: PLR0911  one for each form
    match value:
        case None:
            return {}
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else _special(value)}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case list():
            return {"arrayValue": {"values": [_object(item) for item in value]}}
        case Pairs():
            return {"kvlistValue": {"values": _objects(value.pairs)}}
        case _:
            return {"kvlistValue": {"values": _objects(value)}}


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
