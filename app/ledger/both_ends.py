"""One call, two spans, two deliveries: the inner end is marked whichever of them comes first.

A client and a server that both trace the same call export by themselves. When the outer span is on record,
the inner one is marked before it is stored. When the inner one came first, the service sends it again with
the mark: a node sent again replaces the earlier one in views, and the first sending stays on record.
"""

from __future__ import annotations

import copy
import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.record import Draft
from app.errors import QuarantinedError, TrailsError
from app.guard.kinds import TRACE
from app.ledger.idempotency import Stamp
from app.ledger.post import Entry, Receipt
from app.principal import Permission, Principal, grant
from app.trace.otlp.fragments import AgentSpans, SpanFragment, TextNode
from app.trace.otlp.nesting import NESTED_IN, is_same_call, mark_value, passes_on
from app.trace.otlp.node import node_text
from app.trace.span_key import SpanKey
from db.spans import Below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.ledger import Ledger
    from app.ledger.on_record import OnRecord

MAX_STEPS: Final = 4
"""Parents that are looked up one after the other: the transport's own spans may stand between the ends."""

SKEW: Final = timedelta(minutes=5)
"""How far the clocks of two machines may be apart for their spans to be looked for together."""


class BothEnds:
    """Finds the other ends of the calls of one agent in one request."""

    def __init__(self, ledger: Ledger, principal: Principal, agent_id: str) -> None:
        self._ledger = ledger
        self._principal = principal
        self._grant = grant(principal, Permission.POST, agent_id)

    async def marked(self, spans: AgentSpans) -> AgentSpans:
        """The same with the calls marked whose outer end is on record already."""
        own = {item.key for fragment in spans.fragments for item in fragment.nodes}
        open_ends = {
            item.key: parent
            for fragment in spans.fragments
            for item in fragment.nodes
            if _is_open(item) and (parent := _parent_key(item.node.value)) is not None and parent not in own
        }
        if not open_ends:
            return spans
        nodes = await self._parents_of(open_ends)
        outer = {key: node for key, node in nodes.items() if node is not None}
        if not outer:
            return spans
        fragments = [
            msgspec.structs.replace(fragment, nodes=tuple(_marked(item, outer) for item in fragment.nodes))
            for fragment in spans.fragments
        ]
        return msgspec.structs.replace(spans, fragments=fragments)

    async def _parents_of(self, open_ends: Mapping[SpanKey, SpanKey]) -> dict[SpanKey, JsonObject | None]:
        """For each span the nearest node above it that is more than transport, as far as it is on record."""
        found: dict[SpanKey, JsonObject | None] = {}
        looking = dict(open_ends)
        for _ in range(MAX_STEPS):
            if not looking:
                break
            on_record = await self._on_record(set(looking.values()))
            above = {key: _node_in(place, key) for key, place in on_record.items()}
            following: dict[SpanKey, SpanKey] = {}
            for inner, parent in looking.items():
                node = above.get(parent)
                if node is not None and passes_on(node) and (further := _parent_key(node)) is not None:
                    following[inner] = further
                else:
                    found[inner] = node
            looking = following
        return found

    async def _on_record(self, keys: set[SpanKey]) -> dict[SpanKey, OnRecord]:
        try:
            return await self._ledger.spans_on_record(self._grant, list(keys))
        except QuarantinedError:
            return {}  # what does not verify says nothing, and is no reason to refuse a sound span

    async def mark_earlier(self, fragments: Sequence[SpanFragment], receipts: Sequence[Receipt]) -> None:
        """Sends the inner ends again, marked, that were on record before their outer ends."""
        outer = {
            item.node.value["node_id"]: item.node
            for fragment in fragments
            for item in fragment.nodes
            if item.node.is_tool_call
        }
        if not outer:
            return
        wanted = Below(
            parent_ids=[str(node_id) for node_id in outer],
            trace_ids=[*{bytes.fromhex(node.trace_id) for node in outer.values()}],
            since=min(_start(node.value) for node in outer.values()) - SKEW,
            agent_id=self._grant.agent_id or "",
            written=[receipt.seq for receipt in receipts],
        )
        try:
            places = await self._ledger.calls_below(self._grant, wanted)
        except QuarantinedError:
            return  # as above
        inner: dict[tuple[str, JsonValue], tuple[OnRecord, JsonObject]] = {}
        for place in places:
            for node in _calls_in(place):
                inner[place.agent_id, node["node_id"]] = (place, node)  # the latest sending comes last
        for place, node in inner.values():
            above = outer.get(node.get("parent_id"))
            if above is not None and is_same_call(node, above.value) and not _is_marked(node):
                await self._send_again(place, node, above.value)

    async def _send_again(self, place: OnRecord, node: JsonObject, outer: JsonObject) -> None:
        if self._principal.agent_id not in (None, place.agent_id):
            return  # an agent's token does not write into another agent's chain
        again = copy.deepcopy(node)
        mark_value(again, str(outer["node_id"]))
        payload: JsonObject = {
            "session_id": place.record.payload["session_id"],
            "total_nodes": 1,
            "trace_tree": [again],
        }
        digest = hashlib.sha256(f"otlp/{NESTED_IN}\n{node['node_id']}".encode()).hexdigest()
        given = grant(self._principal, Permission.POST, place.agent_id)
        draft = Draft(kind=TRACE, payload=payload, actor=given.actor)
        [result] = await self._ledger.post(given, [Entry(draft, Stamp(digest, digest))])
        if isinstance(result, TrailsError):
            raise result


def _is_open(item: TextNode) -> bool:
    return item.node.is_tool_call and not _is_marked(item.node.value)


def _is_marked(node: JsonValue) -> bool:
    return _member(_member(node, "metadata"), NESTED_IN) is not None


def _marked(item: TextNode, outer: Mapping[SpanKey, JsonObject]) -> TextNode:
    node = outer.get(item.key)
    if node is None or not is_same_call(item.node.value, node):
        return item
    mark_value(item.node.value, str(node["node_id"]))
    return TextNode(item.node, node_text(item.node), item.key)


def _node_in(place: OnRecord, key: SpanKey) -> JsonObject | None:
    tree = place.record.payload.get("trace_tree")
    wanted = (key.trace_id.hex(), key.span_id.hex())
    for node in tree if isinstance(tree, list) else ():
        otel = _member(_member(node, "metadata"), "otel")
        if isinstance(node, dict) and (_member(otel, "trace_id"), _member(otel, "span_id")) == wanted:
            return node
    return None


def _calls_in(place: OnRecord) -> list[JsonObject]:
    tree = place.record.payload.get("trace_tree")
    return [
        node
        for node in (tree if isinstance(tree, list) else ())
        if isinstance(node, dict) and _member(_member(node, "metadata"), "otel") is not None
    ]


def _parent_key(node: JsonValue) -> SpanKey | None:
    otel = _member(_member(node, "metadata"), "otel")
    trace_id, parent = _member(otel, "trace_id"), _member(otel, "parent_span_id")
    if not isinstance(trace_id, str) or not isinstance(parent, str) or not parent:
        return None
    return SpanKey(bytes.fromhex(trace_id), bytes.fromhex(parent))


def _start(node: JsonObject) -> datetime:
    """When a span began; the epoch where that is unknown or beyond what a table holds."""
    nanos = str(_member(_member(node, "metadata"), "start_time_unix_nano"))
    try:
        return _EPOCH + max(timedelta(microseconds=int(nanos) // 1_000), SKEW)
    except OverflowError:
        return _EPOCH + SKEW


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _member(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None
