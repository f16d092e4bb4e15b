"""A span as a node of a trace tree; everything raw is kept in its ``metadata.otel``.

The hash of a span's content is that of its ``metadata.otel``, so that it can be computed from the record: by
it a second delivery of the same span is told from another span under the same id.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.record import format_timestamp
from app.chain.strict import LARGE, JsonObject, JsonValue
from app.errors import FormatError
from app.trace.otlp.content import asks_for_tools, content_word, inputs_of, outputs_of, thoughts_of
from app.trace.otlp.convention import (
    MODEL_CALL,
    OUTPUT,
    PLANNING,
    TOOL_CALL,
    model_of,
    name_of,
    provider_of,
    role_of,
)
from app.trace.otlp.ending import FAILED, SUCCESS, error_of
from app.trace.otlp.ids import node_id_of, session_of
from app.trace.otlp.measures import cost_of, measures_nothing, tokens_of
from app.trace.otlp.plain import are_plain
from app.trace.otlp.span import Span, SpanError
from app.trace.span_key import SpanKey

MAX_NAME_CHARS: Final = 1_024
"""Of a node's name; ``metadata.span_name`` has all of it."""

MAX_SPAN_BYTES: Final = 4 * 1024 * 1024
"""Canonical text of one node: raw attributes, and what was read from them, together."""

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_UNSORTED: Final = msgspec.json.Encoder()


class SpanNode(msgspec.Struct, frozen=True, gc=False):
    """A node made of a span; ``plain`` says that the quick encoder writes it canonically."""

    trace_id: str
    span_id: str
    session_id: str
    value: JsonObject
    plain: bool

    @property
    def key(self) -> SpanKey:
        """The span's identity in its tenant."""
        return SpanKey(bytes.fromhex(self.trace_id), bytes.fromhex(self.span_id))

    @property
    def is_tool_call(self) -> bool:
        """Whether it is a call of a tool."""
        return self.value["node_type"] == TOOL_CALL


def node_of(span: Span) -> SpanNode:
    """Turns a span into a node."""
    attributes, events = span.attributes, span.events
    role, said_by = role_of(attributes)
    inputs, outputs = inputs_of(attributes, events), outputs_of(attributes, events)
    is_model = role == MODEL_CALL
    if is_model:
        role = PLANNING if asks_for_tools(attributes, outputs, events) else OUTPUT
    error = error_of(span, outputs.value, is_tool=role == TOOL_CALL)
    session_id, own_session, session_source = session_of(attributes, span.trace_id)
    otel = otel_of(span)
    metadata: JsonObject = {
        "content": content_word((inputs, outputs)),
        "end_time_unix_nano": otel["end_time_unix_nano"],
        "node_type_source": said_by,
        "otel": otel,
        "session": own_session,
        "session_source": session_source,
        "span_name": span.name,
        "start_time_unix_nano": otel["start_time_unix_nano"],
    }
    _add_times(metadata, span)
    _add_measures(metadata, attributes)
    ended: JsonObject = {"status": SUCCESS if error is None else FAILED}
    if outputs.source is not None:
        ended["value"] = outputs.value
    if error is not None:
        ended["error"] = error
    value: JsonObject = {
        "node_id": node_id_of(span.trace_id, span.span_id),
        "parent_id": node_id_of(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        "node_type": role,
        "name": name_of(attributes, span.name)[:MAX_NAME_CHARS],
        "inputs": inputs.value,
        "thought_process": thoughts_of(attributes, outputs),
        "outputs": ended,
        "metadata": metadata,
    }
    plain = inputs.plain and outputs.plain and _is_plain(span)
    return SpanNode(span.trace_id, span.span_id, session_id, value, plain)


def otel_of(span: Span) -> JsonObject:
    """All that the span said, what is empty left out: the content that is hashed."""
    otel: JsonObject = {
        "attributes": span.attributes,
        "end_time_unix_nano": str(span.end_ns),
        "kind": span.kind,
        "name": span.name,
        "resource": span.resource,
        "scope": span.scope,
        "span_id": span.span_id,
        "start_time_unix_nano": str(span.start_ns),
        "status": _status(span),
        "trace_id": span.trace_id,
    }
    if span.parent_span_id:
        otel["parent_span_id"] = span.parent_span_id
    if span.events:
        otel["events"] = span.events
    if span.links:
        otel["links"] = span.links
    if span.trace_state:
        otel["trace_state"] = span.trace_state
    if span.flags:
        otel["flags"] = span.flags
    if span.dropped:
        otel |= span.dropped
    return otel


def content_hash(node: JsonValue) -> str | None:
    """SHA-256 of a node's canonical ``metadata.otel`` (64 hex); None for a node that has none."""
    otel = _otel_in(node)
    return None if otel is None else hashlib.sha256(canonical(otel).encode()).hexdigest()


def _otel_in(node: JsonValue) -> JsonObject | None:
    metadata = node.get("metadata") if isinstance(node, dict) else None
    otel = metadata.get("otel") if isinstance(metadata, dict) else None
    return otel if isinstance(otel, dict) else None


def node_text(node: SpanNode) -> str:
    """The node's canonical text, made once.

    Raises:
        SpanError: it is longer than ``MAX_SPAN_BYTES``.
    """
    # Many members may be in an order that makes the encoder's sorting slow: ``canonical`` sorts them first.
    is_quick = node.plain and _UNSORTED.encode(node.value).count(b":") <= LARGE
    text = _ENCODER.encode(node.value).decode() if is_quick else canonical(node.value)
    if len(text) * 4 > MAX_SPAN_BYTES and len(text.encode()) > MAX_SPAN_BYTES:
        raise SpanError(f"the span: more than {MAX_SPAN_BYTES} bytes as a node")
    return text


def _status(span: Span) -> JsonObject:
    status: JsonObject = {"code": span.status_code}
    if span.status_message:
        status["message"] = span.status_message
    return status


def _add_times(metadata: JsonObject, span: Span) -> None:
    """The start as an instant, cut to microseconds as everywhere; a start of 0 is unknown."""
    if not span.start_ns:
        return
    try:
        seconds, rest = divmod(span.start_ns // 1_000, 1_000_000)
        metadata["timestamp"] = f"{_second(seconds)}.{rest:06d}Z"
    except FormatError:
        return
    if span.end_ns >= span.start_ns:
        whole, rest = divmod((span.end_ns - span.start_ns) // 1_000, 1_000)
        metadata["duration_ms"] = whole + rest / 1_000 if rest else whole


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """An instant without its fraction; the spans of one delivery share few."""
    return format_timestamp(seconds * 1_000_000).removesuffix(".000000Z")


def _add_measures(metadata: JsonObject, attributes: JsonObject) -> None:
    if measures_nothing(attributes):
        return
    found: JsonObject = {
        "model": model_of(attributes),
        "provider": provider_of(attributes),
        "tokens": tokens_of(attributes),
        "cost": cost_of(attributes),
    }
    for name, value in found.items():
        if value is not None:
            metadata[name] = value


def _is_plain(span: Span) -> bool:
    return (
        are_plain(span.attributes)
        and are_plain(span.resource)
        and are_plain(span.scope)
        and (not span.events or all(map(_plain_object, span.events)))
        and (not span.links or all(map(_plain_object, span.links)))
    )


def _plain_object(value: JsonValue) -> bool:
    return isinstance(value, dict) and are_plain(value)
