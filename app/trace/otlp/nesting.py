"""How the spans of one request hang together: calls seen from both ends, and parents that lead in a circle.

One call over MCP can give a span at the client and one at the server, both of them tool executions. The inner
one is marked with ``metadata.nested_in``, the node of the outer, so that the call is counted once. A mark is
a hint: who counts checks by the same rule. A failure that the outer end does not know of is never marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.trace.otlp.convention import TOOL_CALL
from app.trace.otlp.ending import SUCCESS
from app.trace.otlp.node import SpanNode
from app.trace.otlp.span import Span
from app.trace.span_key import SpanKey, span_key

NESTED_IN: Final = "nested_in"

_MAX_BETWEEN: Final = 16
"""Spans of a transport (HTTP and the like) that may stand between the two ends of a call."""

Place = tuple[str, str]
"""A span by its trace id and its own (lower-case hex)."""


class End(msgspec.Struct, frozen=True):
    """What of a node tells whether it is an end of a call, and what is above it.

    Attributes:
        node_id: its own.
        parent: the span above it; None at a root.
        name: of the tool, for a call.
        status: how it ended; None where it does not say so.
        is_call: whether it is a call of a tool.
        is_transport: whether it may stand between two ends: no convention says what it is.
    """

    node_id: str
    parent: SpanKey | None
    name: str | None
    status: JsonValue
    is_call: bool
    is_transport: bool


def end_of(node: JsonObject) -> End:
    """The end that a node is: of a span, or as a record holds it."""
    name, above = node.get("name"), _parent(node)
    return End(
        node_id=_text(node.get("node_id")),
        parent=None if above is None else span_key(*above),
        name=name if isinstance(name, str) else None,
        status=_members(node.get("outputs")).get("status"),
        is_call=node.get("node_type") == TOOL_CALL,
        is_transport=_is_transport(node),
    )


def is_inner_end(inner: End, outer: End) -> bool:
    """Whether two nodes, one below the other, are the two ends of one call: calls of the same tool.

    What failed inside a call that did not fail is a call of its own.
    """
    return (
        inner.is_call
        and outer.is_call
        and inner.name is not None
        and inner.name == outer.name
        and inner.node_id != outer.node_id
        and (inner.status is None or inner.status in (SUCCESS, outer.status))
    )


def mark_nested(nodes: Sequence[SpanNode]) -> dict[SpanKey, SpanKey]:
    """Marks the inner ends of calls among the spans of one request.

    Returns:
        The calls whose next span above, beyond those of a transport, is not in the request, and that span.
    """
    calls = [node for node in nodes if node.is_tool_call]
    if not calls:
        return {}
    places = {(node.trace_id, node.span_id): node.value for node in nodes}
    open_ends: dict[SpanKey, SpanKey] = {}
    for node in calls:
        above = _nearest(node.value, places)
        if isinstance(above, tuple):
            key = span_key(*above)
            if key is not None:
                open_ends[node.key] = key
        elif above is not None and above["node_type"] == TOOL_CALL:
            outer = end_of(above)
            if is_inner_end(end_of(node.value), outer):
                mark(node.value, outer.node_id)
    _name_outermost(calls)
    return open_ends


def _name_outermost(calls: Sequence[SpanNode]) -> None:
    """Lets each mark name the outermost end: a call that is marked itself is the outer end of none."""
    marks = {_text(node.value.get("node_id")): mark_of(node.value) for node in calls}
    for node in calls:
        outer = mark_of(node.value)
        for _ in range(_MAX_BETWEEN):
            further = marks.get(outer) if isinstance(outer, str) else None
            if not isinstance(further, str):
                break
            outer = further
        if isinstance(outer, str):
            mark(node.value, outer)


def _nearest(node: JsonObject, places: Mapping[Place, JsonObject]) -> JsonObject | Place | None:
    """What stands above a node, beyond the spans of a transport.

    Args:
        node: of a span.
        places: the nodes of the request.

    Returns:
        The node; or the place of a span that is not in the request; None at a root.
    """
    at = _parent(node)
    for _ in range(_MAX_BETWEEN):
        if at is None or at not in places:
            return at
        above = places[at]
        if not _is_transport(above):
            return above
        at = _parent(above)
    return None


def mark(node: JsonObject, outer_id: str) -> None:
    """Says that a node is the inner end of the call that ``outer_id`` is the outer end of."""
    metadata = node.get("metadata")
    if isinstance(metadata, dict):
        metadata[NESTED_IN] = outer_id


def mark_of(node: JsonObject) -> JsonValue:
    """The mark that a node has; None when it has none."""
    return _members(node.get("metadata")).get(NESTED_IN)


def _parent(node: JsonObject) -> Place | None:
    otel = _members(_members(node.get("metadata")).get("otel"))
    trace_id, parent = otel.get("trace_id"), otel.get("parent_span_id")
    if not isinstance(trace_id, str) or not isinstance(parent, str) or not parent:
        return None
    return trace_id, parent


def _is_transport(node: JsonObject) -> bool:
    source = _members(node.get("metadata")).get("node_type_source")
    return source == "default" and node.get("node_type") != TOOL_CALL


def _members(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def looping(spans: Iterable[Span]) -> frozenset[Place]:
    """The spans whose parents lead back to themselves within the request."""
    parents = {
        (span.trace_id, span.span_id): (span.trace_id, span.parent_span_id)
        for span in spans
        if span.parent_span_id
    }
    sound: set[Place] = set()
    loops: set[Place] = set()
    for start in parents:
        path: dict[Place, None] = {}
        at = start
        while at in parents and at not in sound and at not in path:
            path[at] = None
            at = parents[at]
        if at in path:
            steps = list(path)
            loops.update(steps[steps.index(at) :])
        sound.update(path)
    return frozenset(loops)
