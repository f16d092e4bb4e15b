"""How the spans of one request hang together: calls seen from both ends, and parents that lead in a circle.

One call over MCP can give a span at the client and one at the server, both of them tool executions. The inner
one is marked with ``metadata.nested_in``, the node of the outer, so that the call is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from app.chain.strict import JsonObject, JsonValue
from app.trace.otlp.convention import TOOL_CALL
from app.trace.otlp.node import SpanNode
from app.trace.otlp.span import Span

NESTED_IN: Final = "nested_in"

_MAX_BETWEEN: Final = 16
"""Spans of a transport (HTTP and the like) that may stand between the two ends of a call."""

_Place = tuple[str, str]


def mark_nested(nodes: Sequence[SpanNode]) -> None:
    """Marks each TOOL_CALL inside a TOOL_CALL of the same tool; spans of no convention may stand between."""
    if sum(node.is_tool_call for node in nodes) < _A_PAIR:
        return
    places = {(node.trace_id, _id(node.value["node_id"])): node for node in nodes}
    for node in nodes:
        if node.is_tool_call:
            outer = _outer_call(node, places)
            if outer is not None:
                mark_value(node.value, _id(outer.value["node_id"]))


_A_PAIR: Final = 2


def mark_value(node: JsonObject, outer_id: str) -> None:
    """Says that a node is the inner end of the call that ``outer_id`` is the outer end of."""
    metadata = node.get("metadata")
    if isinstance(metadata, dict):
        metadata[NESTED_IN] = outer_id


def is_same_call(inner: JsonValue, outer: JsonValue) -> bool:
    """Whether two nodes, one below the other, are the two ends of one call: calls of the same tool."""
    return (
        isinstance(inner, dict)
        and isinstance(outer, dict)
        and outer.get("node_type") == TOOL_CALL
        and inner.get("name") == outer.get("name")
    )


def passes_on(node: JsonObject) -> bool:
    """Whether a node is one of a transport between two ends: no convention says what it is."""
    metadata = node.get("metadata")
    return isinstance(metadata, dict) and metadata.get("node_type_source") == "default"


def _outer_call(node: SpanNode, places: dict[_Place, SpanNode]) -> SpanNode | None:
    at = node
    for _ in range(_MAX_BETWEEN):
        parent = places.get((node.trace_id, _id(at.value["parent_id"])))
        if parent is None:
            return None
        if parent.is_tool_call:
            return parent if is_same_call(node.value, parent.value) else None
        at = parent
        if not passes_on(at.value):
            return None
    return None


def _id(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def looping(spans: Iterable[Span]) -> frozenset[_Place]:
    """The spans whose parents lead back to themselves within the request."""
    parents = {
        (span.trace_id, span.span_id): (span.trace_id, span.parent_span_id)
        for span in spans
        if span.parent_span_id
    }
    sound: set[_Place] = set()
    loops: set[_Place] = set()
    for start in parents:
        path: dict[_Place, None] = {}
        at = start
        while at in parents and at not in sound and at not in path:
            path[at] = None
            at = parents[at]
        if at in path:
            steps = list(path)
            loops.update(steps[steps.index(at) :])
        sound.update(path)
    return frozenset(loops)
