"""Spans on record: what one OTLP request holds is posted, each span once, whatever is delivered again.

Delivery is at least once: after any doubt the same spans come again, in the same request or in others, to
this process or to another. A span's identity is (chain, trace id, span id), kept unique by the table, and the
hash of its content. The same again is left out; other content under the same id is recorded as a conflict,
whole. What stands in another agent's chain is another node. An answer means that everything is committed.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.record import Draft
from app.errors import BadRequestError, NameInUseError, TrailsError, UnavailableError
from app.guard.kinds import EVENT, TRACE
from app.ledger.idempotency import Stamp
from app.ledger.post import (
    MAX_TOGETHER,
    MAX_TOGETHER_CHARS,
    Entry,
    Receipt,
    SpansOnRecordError,
)
from app.ledger.redacting import redacted_node
from app.ledger.spans.both_ends import BothEnds
from app.principal import ADMINISTRATION, PERMISSIONS, Grant, Permission, Principal, grant
from app.redaction.redactor import Findings
from app.trace.otlp.fragments import (
    AgentSpans,
    SpanFragment,
    TextNode,
    conflict_event,
    rejection_event,
)
from app.trace.otlp.node import content_hash
from app.trace.otlp.span import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from app.chain.strict import JsonObject
    from app.ledger.ledger import Ledger
    from app.ledger.spans.on_record import Held
    from app.redaction.redactor import Redactor
    from app.trace.span_key import SpanKey

AGENTS_AT_ONCE: Final = 8
"""Agents of one request whose spans are posted at the same time."""

MAX_ROUNDS: Final = 8
"""Times the rest of a fragment is posted again after some of its spans turned out to be on record."""

MAX_TOLD: Final = 20
"""Rejected spans that an answer names."""


class Recorded(msgspec.Struct, frozen=True):
    """What became of the spans of one agent in one request: ``receipt`` is that of its last record."""

    agent_id: str
    receipt: Receipt | None
    stored: int
    known: int
    conflicts: int
    rejected: tuple[Rejected, ...]


async def record_spans(
    ledger: Ledger, principal: Principal, arranged: Mapping[str, AgentSpans], request_digest: str
) -> list[Recorded]:
    """Posts all spans of one request; returns when every one of them is committed or told of.

    Args:
        ledger: where to.
        principal: who sent them; an agent's token reaches that agent alone, an operator's begins the chains
            of agents that are new.
        arranged: the spans by agent.
        request_digest: SHA-256 of the request's body, for the record of spans that are rejected.

    Raises:
        QuarantinedError: a chain does not verify; the spans of other agents are stored.
        UnavailableError: passing trouble; what is stored already is known when it comes again.
    """
    turn = asyncio.Semaphore(AGENTS_AT_ONCE)
    unbegun = await _begun(ledger, principal, arranged)
    refused = unbegun.agent_ids if isinstance(unbegun, NameInUseError) else ()

    async def record(agent_id: str, spans: AgentSpans) -> Recorded:
        if agent_id in refused:
            return _refused(agent_id, spans)
        async with turn:
            given = grant(principal, Permission.POST, agent_id)
            ends = BothEnds(ledger, principal, agent_id)
            recording = _Recording(ledger, given)
            recorded = await recording.run(await ends.marked(spans), request_digest)
            await ends.mark_earlier(spans.fragments, recording.written)
            return recorded

    # Each agent's spans are tried, whatever goes wrong with another's: the next delivery then has fewer left.
    results = await asyncio.gather(
        *(record(agent_id, spans) for agent_id, spans in arranged.items()), return_exceptions=True
    )
    for result in (None if refused else unbegun, *results):
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Recorded)]


async def _begun(ledger: Ledger, principal: Principal, agent_ids: Iterable[str]) -> TrailsError | None:
    """Begins the chains of agents that are new, if the sender may; why they could not be begun.

    Agents that exist are no worse off by that.
    """
    if Permission.OBSERVE not in PERMISSIONS[principal.role]:
        return None
    try:
        # The chain of administrative acts is no agent's: posting to it is refused as it is to anybody else.
        await ledger.observed(
            *(
                grant(principal, Permission.OBSERVE, agent_id)
                for agent_id in agent_ids
                if agent_id != ADMINISTRATION
            )
        )
    except TrailsError as error:
        return error
    return None


def _refused(agent_id: str, spans: AgentSpans) -> Recorded:
    """Nothing is stored for an agent that is not created; its spans are told of in the answer alone."""
    reason = str(NameInUseError([agent_id]))
    nodes = (item.node for fragment in spans.fragments for item in fragment.nodes)
    rejected = [Rejected(node.trace_id, node.span_id, "", reason, {}) for node in nodes]
    return Recorded(agent_id, None, 0, 0, 0, (*spans.rejected, *rejected))


class _Recording:
    """Posts what one request holds for one agent."""

    def __init__(self, ledger: Ledger, given: Grant) -> None:
        self._ledger = ledger
        self._grant = given
        self.written: list[int] = []
        self._receipts: list[Receipt] = []
        self._events: list[Entry] = []
        self._rejected: list[Rejected] = []
        self._stored = self._known = self._conflicts = 0

    async def run(self, spans: AgentSpans, request_digest: str) -> Recorded:
        waiting: Sequence[SpanFragment] = spans.fragments
        for _ in range(MAX_ROUNDS):
            if not waiting:
                break
            waiting = await self._post(waiting)
        if waiting:
            raise UnavailableError("other senders keep sending the same spans; try again")
        self._rejected += spans.rejected
        if self._rejected:
            payload = rejection_event(self._rejected, request_digest)
            self._events.append(self._event(payload, request_digest))
        await self._post_events()
        agent_id = self._grant.agent_id or ""
        last = max(self._receipts, key=lambda receipt: receipt.seq, default=None)
        redactor = await self._ledger.redactor(self._grant)
        told = tuple(_without_secrets(redactor, item) for item in self._rejected)
        return Recorded(agent_id, last, self._stored, self._known, self._conflicts, told)

    async def _post(self, fragments: Sequence[SpanFragment]) -> list[SpanFragment]:
        """Posts fragments; returns what is to be posted again without the spans that are on record."""
        again: list[SpanFragment] = []
        for part in _parts(fragments):
            again += await self._post_part(part)
        return again

    async def _post_part(self, fragments: Sequence[SpanFragment]) -> list[SpanFragment]:
        results = await self._ledger.post(self._grant, [self._entry(fragment) for fragment in fragments])
        again: list[SpanFragment] = []
        overlapping: list[SpanFragment] = []
        known: set[SpanKey] = set()
        for fragment, result in zip(fragments, results, strict=True):
            if isinstance(result, Receipt):
                self._receipts.append(result)
                self.written.append(result.seq)
                self._stored += len(fragment.nodes)
            elif isinstance(result, SpansOnRecordError):
                overlapping.append(fragment)
                known.update(result.known)
            elif isinstance(result, BadRequestError):
                again += self._apart(fragment, result)
            else:
                raise result
        if overlapping:
            again += await self._without_known(overlapping, known)
        return again

    async def _without_known(self, fragments: list[SpanFragment], known: set[SpanKey]) -> list[SpanFragment]:
        """Settles the spans that are on record; returns what is left of the fragments."""
        found = await self._ledger.spans_on_record(self._grant, known)
        if len(found) < len(known):
            missing = len(known) - len(found)
            raise UnavailableError(f"{missing} spans are on record and cannot be read yet; try again")
        again = [item for fragment in fragments for item in fragment.nodes if item.key in found]
        redactor = await self._ledger.redactor(self._grant)
        # Hashing what may be many megabytes lets the event loop work meanwhile.
        hashes = await asyncio.to_thread(
            lambda: [content_hash(redacted_node(redactor, item.node.value)) for item in again]
        )
        for item, content in zip(again, hashes, strict=True):
            self._settle(item, found[item.key], content)
        rests = (fragment.without(frozenset(found)) for fragment in fragments)
        return [rest for rest in rests if rest is not None]

    def _settle(self, item: TextNode, held: Held, content: str | None) -> None:
        """A span that is on record: nothing to store when it is the same, else a conflict to be recorded."""
        if content == held.content:
            self._known += 1
            self._receipts.append(held.receipt)
            return
        self._conflicts += 1
        at = held.receipt
        payload = conflict_event(item.node, {"agent_id": at.agent_id, "seq": at.seq, "hash": at.hash})
        self._events.append(self._event(payload, f"{item.node.trace_id}{item.node.span_id}{content}"))

    def _apart(self, fragment: SpanFragment, error: BadRequestError) -> list[SpanFragment]:
        """A fragment that no record can hold: each of its spans alone; the one at fault is rejected."""
        if len(fragment.nodes) > 1:
            return [SpanFragment(fragment.session_id, (item,)) for item in fragment.nodes]
        [item] = fragment.nodes
        self._rejected.append(Rejected(item.node.trace_id, item.node.span_id, "", str(error), {}))
        return []

    async def _post_events(self) -> None:
        if not self._events:
            return
        for result in await self._ledger.post(self._grant, self._events):
            if isinstance(result, TrailsError):
                raise result
            self._receipts.append(result)

    def _entry(self, fragment: SpanFragment) -> Entry:
        draft = Draft(
            kind=TRACE,
            payload=fragment.payload,
            actor=self._grant.actor,
            payload_text=fragment.payload_text,
            within_limits=True,
        )
        return Entry(draft, spans=fragment.keys)

    def _event(self, payload: JsonObject, identity: str) -> Entry:
        """An event that is recorded once, however often what it tells of comes again."""
        digest = hashlib.sha256(f"otlp/{payload['type']}\n{identity}".encode()).hexdigest()
        return Entry(Draft(kind=EVENT, payload=payload, actor=self._grant.actor), Stamp(digest, digest))


def _without_secrets(redactor: Redactor, item: Rejected) -> Rejected:
    """What the answer tells of a span: names and faulty ids are what the sender wrote."""
    said = (item.trace_id, item.span_id, item.name, item.reason)
    trace_id, span_id, name, reason = (redactor.text(text, "", Findings()) for text in said)
    return Rejected(trace_id, span_id, name, reason, item.resource)


def _parts(fragments: Sequence[SpanFragment]) -> Iterator[list[SpanFragment]]:
    """Fragments in groups that one statement writes well within its time."""
    part: list[SpanFragment] = []
    chars = 0
    for fragment in fragments:
        size = sum(len(item.text) for item in fragment.nodes)
        if part and (len(part) == MAX_TOGETHER or chars + size > MAX_TOGETHER_CHARS):
            yield part
            part, chars = [], 0
        part.append(fragment)
        chars += size
    if part:
        yield part


def message_of(recorded: Iterable[Recorded]) -> str:
    """What the sender is told beside the counts: which spans were not stored, and why; empty if all were."""
    parts: list[str] = []
    rejected = [item for result in recorded for item in result.rejected]
    for item in rejected[:MAX_TOLD]:
        named = f"{item.trace_id or '(no trace id)'}/{item.span_id or '(no span id)'}"
        parts.append(f"span {named} {item.name!r}: {item.reason}")
    if len(rejected) > MAX_TOLD:
        parts.append(f"and {len(rejected) - MAX_TOLD} more")
    conflicts = sum(result.conflicts for result in recorded)
    if conflicts:
        parts.append(
            f"{conflicts} spans are on record with other content; what came now is recorded as a conflict"
        )
    return "; ".join(parts)
