"""Which spans a trace record holds: the identity by which a second delivery is recognised."""

from __future__ import annotations

import msgspec

from app.chain.record import is_hex
from app.chain.strict import JsonObject, JsonValue

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8


class SpanKey(msgspec.Struct, frozen=True):
    """Identity of one OpenTelemetry span: its trace id (16 bytes) and its span id (8 bytes)."""

    trace_id: bytes
    span_id: bytes


def span_keys(payload: JsonObject) -> frozenset[SpanKey]:
    """The spans that the nodes of a payload's ``trace_tree`` were made of, as ``metadata.otel`` names them.

    Args:
        payload: of any record; what is not lowercase hex of the right length names no span.
    """
    tree = payload.get("trace_tree")
    if not isinstance(tree, list):
        return frozenset()
    return frozenset(key for node in tree if (key := _key(_member(_member(node, "metadata"), "otel"))))


def _key(otel: JsonValue) -> SpanKey | None:
    trace_id = _bytes(_member(otel, "trace_id"), TRACE_ID_BYTES)
    span_id = _bytes(_member(otel, "span_id"), SPAN_ID_BYTES)
    return None if trace_id is None or span_id is None else SpanKey(trace_id, span_id)


def _member(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None


def _bytes(text: JsonValue, size: int) -> bytes | None:
    return bytes.fromhex(text) if isinstance(text, str) and is_hex(text, 2 * size) else None
