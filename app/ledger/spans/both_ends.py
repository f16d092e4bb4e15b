"""One call, two spans, two deliveries: the inner end is marked whichever of them comes first.

A client and a server that both trace the same call export by themselves. When the outer span is on record,
the inner one is marked before it is stored. When the inner one came first, the service sends it again with
the mark: a node sent again replaces the earlier one in views, and the first sending stays on record.

Only what is in one chain, or what one key posted that is no agent's, is taken for the two ends of a call: no
agent can make another one's call the inner end of its own, and so keep it out of the counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.record import Draft
from app.errors import QuarantinedError, TrailsError
from app.guard.kinds import TRACE
from app.ledger.idempotency import Stamp
from app.ledger.post import MAX_TOGETHER, Entry
from app.principal import Permission, Principal, grant
from app.trace.otlp.fragments import AgentSpans, SpanFragment, TextNode
from app.trace.otlp.nesting import NESTED_IN, End, end_of, is_inner_end, mark, mark_of
from app.trace.otlp.node import node_text
from app.trace.span_key import SpanKey
from db.spans import Below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from app.chain.strict import JsonObject
    from app.ledger.ledger import Ledger
    from app.ledger.spans.on_record import Call

MAX_STEPS: Final = 4
"""Parents that are looked up one after the other: the transport's own spans may stand between the ends."""

SKEW: Final = timedelta(minutes=5)
"""How far the clocks of two machines may be apart for their spans to be looked for together."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BothEnds:
    """Finds the other ends of the calls of one agent in one request."""

    def __init__(self, ledger: Ledger, principal: Principal, agent_id: str) -> None:
        self._ledger = ledger
        self._principal = principal
        self._grant = grant(principal, Permission.POST, agent_id)
        # Beyond the agent's own chain counts what this very key posted, unless it speaks for one agent.
        is_agents = principal.agent_id is not None or principal.name == agent_id
        self._actor = None if is_agents else principal.name

    async def marked(self, spans: AgentSpans) -> AgentSpans:
        """The same with the calls marked whose outer end is on record already."""
        own = {item.key for item in _items(spans.fragments)} if spans.open_ends else ()
        open_ends = {inner: parent for inner, parent in spans.open_ends.items() if inner in own}
        if not open_ends:
            return spans
        outer = await self._outer_ends(open_ends)
        if not outer:
            return spans
        fragments = [
            msgspec.structs.replace(fragment, nodes=tuple(_marked(item, outer) for item in fragment.nodes))
            for fragment in spans.fragments
        ]
        return msgspec.structs.replace(spans, fragments=fragments)

    async def _outer_ends(self, open_ends: Mapping[SpanKey, SpanKey]) -> dict[SpanKey, End]:
        """For each span the nearest one above it that is more than transport, as far as it is on record."""
        found: dict[SpanKey, End] = {}
        looking = dict(open_ends)
        for _ in range(MAX_STEPS):
            if not looking:
                break
            above = await self._on_record(set(looking.values()))
            following: dict[SpanKey, SpanKey] = {}
            for inner, parent in looking.items():
                end = above.get(parent)
                if end is None:
                    continue
                if not end.is_transport:
                    found[inner] = end
                elif end.parent is not None:
                    following[inner] = end.parent
            looking = following
        return found

    async def _on_record(self, keys: set[SpanKey]) -> dict[SpanKey, End]:
        try:
            return await self._ledger.ends_on_record(self._grant, keys, self._actor)
        except QuarantinedError:
            return {}  # what does not verify says nothing, and is no reason to refuse a sound span

    async def mark_earlier(self, fragments: Sequence[SpanFragment], written: Sequence[int]) -> None:
        """Sends the inner ends again, marked, that were on record before their outer ends.

        Args:
            fragments: of the request; what they hold is on record.
            written: ``seq`` of the records that this request has written itself.
        """
        outer = _outer_calls(fragments)
        if not outer:
            return
        wanted = Below(
            parent_ids=list(outer),
            trace_ids=list({bytes.fromhex(item.node.trace_id) for item in outer.values()}),
            since=_moment(min(_start(item.node.value) for item in outer.values())) - SKEW,
            written=written,
        )

        def is_wanted(node: JsonObject) -> bool:
            above = outer.get(str(node.get("parent_id")))
            if above is None or mark_of(node) is not None:
                return False
            return is_inner_end(end_of(node), end_of(above.node.value))

        try:
            async for calls in self._ledger.calls_below(self._grant, wanted, self._actor, is_wanted):
                await self._send_again(calls)
        except QuarantinedError:
            return  # as above

    async def _send_again(self, calls: Sequence[Call]) -> None:
        by_agent: dict[str, list[Call]] = {}
        for call in calls:
            by_agent.setdefault(call.agent_id, []).append(call)
        for agent_id, own in by_agent.items():
            given = grant(self._principal, Permission.POST, agent_id)
            for part in _parts(own):
                results = await self._ledger.post(given, [_again(call, given.actor) for call in part])
                for result in results:
                    if isinstance(result, TrailsError):
                        raise result


def _outer_calls(fragments: Sequence[SpanFragment]) -> dict[str, TextNode]:
    """The calls, by node id, that no other one of the request is known to be the inner end of."""
    calls = {str(item.node.value["node_id"]): item for item in _items(fragments) if item.node.is_tool_call}
    paired = {mark_of(item.node.value) for item in calls.values()}
    return {node_id: item for node_id, item in calls.items() if node_id not in paired}


def _items(fragments: Sequence[SpanFragment]) -> Iterator[TextNode]:
    return (item for fragment in fragments for item in fragment.nodes)


def _marked(item: TextNode, outer: Mapping[SpanKey, End]) -> TextNode:
    end = outer.get(item.key)
    if end is None or not is_inner_end(end_of(item.node.value), end):
        return item
    mark(item.node.value, end.node_id)
    return TextNode(item.node, node_text(item.node), item.key)


def _parts(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    return (calls[start : start + MAX_TOGETHER] for start in range(0, len(calls), MAX_TOGETHER))


def _again(call: Call, actor: str) -> Entry:
    """The node once more, with its mark; under a stamp, so that it is sent again once."""
    mark(call.node, str(call.node["parent_id"]))
    payload: JsonObject = {"session_id": call.session_id, "total_nodes": 1, "trace_tree": [call.node]}
    digest = hashlib.sha256(f"otlp/{NESTED_IN}\n{call.node['node_id']}".encode()).hexdigest()
    return Entry(Draft(kind=TRACE, payload=payload, actor=actor), Stamp(digest, digest))


def _start(node: JsonObject) -> int:
    """When a span began, in nanoseconds; 0 where that is unknown."""
    metadata = node.get("metadata")
    return int(str(metadata.get("start_time_unix_nano", 0))) if isinstance(metadata, dict) else 0


def _moment(nanoseconds: int) -> datetime:
    """A time as a table holds it; the epoch for one that is beyond that, and ``SKEW`` after it at least."""
    try:
        return _EPOCH + max(timedelta(microseconds=nanoseconds // 1_000), SKEW)
    except OverflowError:
        return _EPOCH + SKEW
