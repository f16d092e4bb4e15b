"""Which spans a trace record holds: the identity by which a second delivery is recognised."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from app.chain.record import is_hex
from app.chain.strict import JsonObject, JsonValue

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8


class SpanKey(msgspec.Struct, frozen=True):
    """Identity of one OpenTelemetry span: its trace id (16 bytes) and its span id (8 bytes)."""

    trace_id: bytes
    span_id: bytes


def keyed_nodes(payload: JsonObject) -> Iterator[tuple[SpanKey, JsonObject]]:
    """The nodes of a payload's ``trace_tree`` that were made of spans, as their ``metadata.otel`` names them.

    Args:
        payload: of any record; what is not lowercase hex of the right length names no span.
    """
    tree = payload.get("trace_tree")
    for node in tree if isinstance(tree, list) else ():
        otel = _member(_member(node, "metadata"), "otel")
        key = span_key(_member(otel, "trace_id"), _member(otel, "span_id"))
        if key is not None and isinstance(node, dict):
            yield key, node


def span_key(trace_id: JsonValue, span_id: JsonValue) -> SpanKey | None:
    """The span of two ids in lowercase hex; None for anything else."""
    trace, span = _bytes(trace_id, TRACE_ID_BYTES), _bytes(span_id, SPAN_ID_BYTES)
    return None if trace is None or span is None else SpanKey(trace, span)


def _member(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None


def _bytes(text: JsonValue, size: int) -> bytes | None:
    return bytes.fromhex(text) if isinstance(text, str) and is_hex(text, 2 * size) else None
