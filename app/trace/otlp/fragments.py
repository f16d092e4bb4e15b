"""The spans of one request as fragments: what one agent sent of one trace in one session.

A span is sent when it ends, children first, so that a request holds any part of a tree; each part becomes a
fragment of its own, and nothing waits for a root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.trace.fragment import MAX_NODES
from app.trace.otlp.ids import agent_of
from app.trace.otlp.nesting import looping, mark_nested
from app.trace.otlp.node import SpanNode, content_hash, node_of, node_text
from app.trace.otlp.span import Export, Rejected, Span, SpanError
from app.trace.span_key import SpanKey

MAX_FRAGMENT_CHARS: Final = 4 * 1024 * 1024
"""Canonical text of the nodes of one fragment, unless one node alone has more."""

MAX_REJECTED_TOLD: Final = 100
"""Rejected spans of one request that are named one by one; ``count`` counts all of them."""

SPANS_REJECTED: Final = "spans_rejected"
SPAN_CONFLICT: Final = "span_conflict"


class TextNode(msgspec.Struct, frozen=True, gc=False):
    """A node, the text that it is recorded as, and its span's identity."""

    node: SpanNode
    text: str
    key: SpanKey


class SpanFragment(msgspec.Struct, frozen=True):
    """Nodes of one agent, session and trace; no span stands twice in it."""

    session_id: str
    nodes: tuple[TextNode, ...]

    @property
    def payload(self) -> JsonObject:
        """``{session_id, total_nodes, trace_tree}``, as ``trace`` records hold it."""
        tree: list[JsonValue] = [item.node.value for item in self.nodes]
        return {"session_id": self.session_id, "total_nodes": len(tree), "trace_tree": tree}

    @property
    def payload_text(self) -> str:
        """The canonical text of ``payload``, put together from those of the nodes."""
        tree = ",".join([item.text for item in self.nodes])
        return f'{{"session_id":"{self.session_id}","total_nodes":{len(self.nodes)},"trace_tree":[{tree}]}}'

    @property
    def keys(self) -> tuple[SpanKey, ...]:
        """The spans that it holds."""
        return tuple([item.key for item in self.nodes])

    def without(self, known: frozenset[SpanKey]) -> SpanFragment | None:
        """What is left when these spans are on record already; None when nothing is."""
        rest = tuple(item for item in self.nodes if item.key not in known)
        return SpanFragment(self.session_id, rest) if rest else None


class AgentSpans(msgspec.Struct, frozen=True):
    """All that one request holds for one agent.

    ``open_ends`` are the calls in the request whose outer end, if they have one, came in another, and the
    span to look for.
    """

    fragments: list[SpanFragment]
    rejected: list[Rejected]
    open_ends: Mapping[SpanKey, SpanKey] = {}


def arrange(export: Export, agent_id: str | None) -> dict[str, AgentSpans]:
    """Nodes for each agent, grouped into fragments, and the spans that are rejected.

    Args:
        export: the decoded request.
        agent_id: the agent that the caller's token belongs to; None takes it from each span.
    """
    arranged: dict[str, _Groups] = {}
    rejected = [(_agent(item.resource, agent_id), item) for item in export.rejected]
    nodes = _nodes(export.spans, agent_id, rejected)
    open_ends = mark_nested([node for _, _, node in nodes])
    for agent, span, node in nodes:
        try:
            item = TextNode(node, node_text(node), node.key)
        except SpanError as error:
            rejected.append((agent, _rejected(span, str(error))))
        else:
            arranged.setdefault(agent, _Groups()).add(item)
    told: dict[str, list[Rejected]] = {}
    for agent, refusal in rejected:
        told.setdefault(agent, []).append(refusal)
    agents = dict.fromkeys([*arranged, *told])
    return {
        agent: AgentSpans(
            list(arranged[agent].fragments()) if agent in arranged else [], told.get(agent, []), open_ends
        )
        for agent in agents
    }


def rejection_event(rejected: list[Rejected], request_digest: str) -> JsonObject:
    """The payload of the event that tells which spans were not kept, and why.

    Args:
        rejected: they.
        request_digest: SHA-256 of the request's body: the same request sent again is told of once.
    """
    spans: list[JsonValue] = [
        {"trace_id": item.trace_id, "span_id": item.span_id, "name": item.name, "reason": item.reason}
        for item in rejected[:MAX_REJECTED_TOLD]
    ]
    data: JsonObject = {"count": len(rejected), "request": request_digest, "spans": spans}
    return {"type": SPANS_REJECTED, "data": data}


def conflict_event(later: SpanNode, first: JsonObject) -> JsonObject:
    """The payload of the event that keeps a span whose id is on record with other content.

    It stands in the session of the span that it keeps.

    Args:
        later: the node that came second, kept whole here.
        first: where the first one stands: ``{agent_id, seq, hash}``, its record's.
    """
    data: JsonObject = {
        "trace_id": later.trace_id,
        "span_id": later.span_id,
        "first": first,
        "node": later.value,
    }
    return {"session_id": later.session_id, "type": SPAN_CONFLICT, "data": data}


def _agent(resource: JsonObject, agent_id: str | None) -> str:
    return agent_of({}, resource) if agent_id is None else agent_id


def _nodes(
    spans: list[Span], agent_id: str | None, rejected: list[tuple[str, Rejected]]
) -> list[tuple[str, Span, SpanNode]]:
    loops = looping(spans)
    nodes = []
    for span in spans:
        agent = agent_of(span.attributes, span.resource) if agent_id is None else agent_id
        if loops and (span.trace_id, span.span_id) in loops:
            rejected.append((agent, _rejected(span, "parent_span_id: leads in a cycle")))
        else:
            nodes.append((agent, span, node_of(span)))
    return nodes


def _rejected(span: Span, reason: str) -> Rejected:
    return Rejected(span.trace_id, span.span_id, span.name[:64], reason, span.resource)


class _Groups:
    """Collects the nodes of one agent by session and trace; what stands twice goes into a further group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], list[TextNode]] = {}
        self._seen: dict[SpanKey, TextNode] = {}
        self._again: list[TextNode] = []

    def add(self, item: TextNode) -> None:
        first = self._seen.setdefault(item.key, item)
        if first is item:
            self._groups.setdefault((item.node.session_id, item.node.trace_id), []).append(item)
        elif content_hash(first.node.value) != content_hash(item.node.value):
            self._again.append(item)

    def fragments(self) -> Iterator[SpanFragment]:
        for (session_id, _), items in self._groups.items():
            for part in _split(items):
                yield SpanFragment(session_id, tuple(part))
        for item in self._again:
            yield SpanFragment(item.node.session_id, (item,))


def _split(items: Iterable[TextNode]) -> Iterator[list[TextNode]]:
    part: list[TextNode] = []
    chars = 0
    for item in items:
        if part and (len(part) == MAX_NODES or chars + len(item.text) > MAX_FRAGMENT_CHARS):
            yield part
            part, chars = [], 0
        part.append(item)
        chars += len(item.text)
    if part:
        yield part
