"""Post: what agents and services send of their own accord (traces, events, spans) becomes records.

No decision of the guard is involved, so a post works on terminated and on observed agents too. Posts to one
chain that wait at the same moment are sealed together: while one append is under way, what arrives waits and
goes together in the next, so that a chain with many senders costs no commit for each of them. Every entry has
its own result; all that are accepted are written by one statement, and one entry's trouble is not another's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

import db.ledger
from app.chain.canonical import canonical
from app.chain.link import seal
from app.chain.record import Draft
from app.errors import (
    BadRequestError,
    ChainError,
    ConflictError,
    InvalidJsonError,
    MirrorError,
    StaleChainError,
    TrailsError,
    UnavailableError,
)
from app.guard.kinds import EVENT, TRACE
from app.ledger.act import MAX_ATTEMPTS, outrun
from app.ledger.idempotency import MEMBER, Keyed, Stamp, act_length, stamped
from app.ledger.keys.sealing import sealed
from app.ledger.mirror import row_of
from app.ledger.read import verified_row
from app.ledger.rebuild import QUICK_CHARS, catch_up
from app.ledger.redacting import MEMBER as REDACTED
from app.ledger.redacting import redacted_draft, sealed_stamp
from app.ledger.turns import Turn, Turns
from app.trace.node import is_uuid
from app.trace.span_key import SpanKey
from db.errors import DuplicateKeyError, DuplicateSpanError
from db.ledger import SpanRow, TrailRow

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator, Sequence

    from app.chain.keys import SigningKey
    from app.chain.record import Head, VerifiedRecord
    from app.chain.signer import Signer
    from app.chain.strict import JsonObject
    from app.ledger.act import Actor
    from app.ledger.chain import Chain
    from app.ledger.clock import Clock
    from app.ledger.commit import Committer
    from app.ledger.keys.keystore import TenantKeys
    from app.ledger.keys.signers import SourceSigner
    from app.ledger.redacting import Redacting
    from app.ledger.tenancy.standings import Standings
    from app.redaction.redactor import Redactor
    from db.pool import Pool

__all__ = ["Entry", "Poster", "Receipt", "SpanKey", "SpansOnRecordError"]

MAX_TOGETHER = 512
"""Entries of several posts that are sealed together: enough to share the commit, few enough to be quick."""

MAX_TOGETHER_CHARS = 8 * 1024 * 1024
"""Canonical text that is sealed together, unless one post alone has more."""

_POSTED = frozenset({TRACE, EVENT})


class Entry(msgspec.Struct, frozen=True):
    """One record to be posted.

    Attributes:
        draft: what it says; of kind ``trace`` or ``event``.
        mark: idempotency stamp of this entry alone; with one seen before the first receipt is given again.
        spans: the spans that the record holds; when the chain holds one already, nothing of it is stored.
    """

    draft: Draft
    mark: Stamp | None = None
    spans: tuple[SpanKey, ...] = ()


class Receipt(msgspec.Struct, frozen=True):
    """Where a posted record stands: ``timestamp`` is the record's own, RFC 3339."""

    agent_id: str
    seq: int
    hash: str
    timestamp: str

    def to_json(self) -> JsonObject:
        """The receipt as the API answers it."""
        return {
            "agent_id": self.agent_id,
            "seq": self.seq,
            "hash": self.hash,
            "timestamp": self.timestamp,
        }


class SpansOnRecordError(ConflictError):
    """The chain holds some spans of an entry already, so nothing of it was stored; ``known`` are those."""

    code = "spans_on_record"

    def __init__(self, known: tuple[SpanKey, ...]) -> None:
        self.known = known
        super().__init__(f"{len(known)} of the spans are on record already; nothing of this was stored")


class _Item:
    """One entry on its way: ``draft`` is ready to be sealed, ``result`` None until it is settled.

    ``together`` are the items that stand or fall with it, itself included; empty when it stands alone.
    """

    __slots__ = ("draft", "entry", "result", "together")

    def __init__(self, entry: Entry, log_uuid: UUID) -> None:
        self.entry = entry
        self.together: Sequence[_Item] = ()
        self.draft = entry.draft
        self.result: Receipt | TrailsError | None = None
        try:
            self.draft = _ready(entry, log_uuid)
        except BadRequestError as error:
            self.result = error

    def mark(self, mark: Stamp | None) -> None:
        self.entry = msgspec.structs.replace(self.entry, mark=mark)
        self.draft = stamped([self.draft], mark)[0]

    @property
    def size(self) -> int:
        return len(self.draft.payload_text or "")


class _Post(Turn):
    """One caller's entries, each of which gets its result, unless none can have one."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[_Item]) -> None:
        super().__init__()
        self.items = items


class Poster:
    """Appends posted entries: the page on which the post flow can be read."""

    def __init__(
        self,
        pool: Pool,
        committer: Committer,
        standings: Standings,
        *,
        actor: Actor,
        redacting: Redacting,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._committer = committer
        self._standings = standings
        self._redacting = redacting
        self._actor = actor
        self._clock = clock
        self._turns: Turns[_Post] = Turns(_take, self._write_all)

    async def post(
        self, chain: Chain, entries: Sequence[Entry], *, whole: bool = False, keyed: Keyed | None = None
    ) -> list[Receipt | TrailsError]:
        """Appends all entries that can be accepted, at once; one result an entry, in their order.

        With ``whole`` they stand or fall together: when one is refused, none that is new is written. With
        ``keyed`` they are one request, which marks those that are sound; these stand or fall together.

        Raises:
            QuarantinedError: the chain does not verify.
            UnavailableError: the database is away or too busy; what was written is not known, post again.
        """
        self._turns.require_room()
        redactor = await self._redacting.of(chain.id.tenant_id)
        items = await self._items(redactor, entries, chain.id.log_uuid)
        sound = [item for item in items if item.result is None]
        if keyed is not None:
            marks = keyed.stamps([item.result is None for item in items])
            is_redacted = any(REDACTED in item.draft.payload for item in items)
            for item, mark in zip(sound, marks, strict=True):
                item.mark(sealed_stamp(redactor, mark, redacted=is_redacted))
        _put_together(items if whole else sound if keyed is not None else ())
        post = _Post(items)
        await self._turns.wait(chain, post)
        return list(_results(post.items))

    async def _items(self, redactor: Redactor, entries: Sequence[Entry], log_uuid: UUID) -> list[_Item]:
        """The entries without secrets; looking through much text lets the event loop work meanwhile."""

        def items() -> list[_Item]:
            return [_Item(_redacted(redactor, entry), log_uuid) for entry in entries]

        if sum(len(entry.draft.payload_text or "") for entry in entries) > QUICK_CHARS:
            return await asyncio.to_thread(items)
        return items()

    async def close(self) -> None:
        """Waits until all that was accepted is settled."""
        await self._turns.close()

    async def _write_all(self, chain: Chain, posts: Sequence[_Post]) -> None:
        keys = await self._standings.writable(chain.id.tenant_id)
        await self._actor.ready(chain, keys)
        await self._write(chain, keys, [item for post in posts for item in post.items])
        with suppress(TrailsError):  # what was posted is on record, whatever becomes of this
            await self._actor.take_snapshot(chain, keys)  # many records may have come at once

    async def _write(self, chain: Chain, keys: TenantKeys, items: Sequence[_Item]) -> None:
        """Gives each item its result.

        An append that the table refuses left nothing behind: what it said of keys and spans is looked up, and
        the rest is sealed again on what is then the head.
        """
        for attempt in range(MAX_ATTEMPTS):
            _refuse_together(items)
            waiting = [item for item in items if item.result is None]
            if not waiting:
                return
            try:
                await self._append(chain, keys, _apart(waiting))
            except DuplicateKeyError:
                await self._recall(chain, keys, waiting)
            except DuplicateSpanError:
                await self._find_spans(chain, waiting)
            except StaleChainError:
                await self._actor.read_on(chain, keys, attempt)
        raise outrun()

    async def _append(self, chain: Chain, keys: TenantKeys, items: Sequence[_Item]) -> None:
        key = await self._actor.signing_key(chain, keys)
        sealing = (items, chain.head, self._clock(), key)
        if key.remote:
            done = await _sealed_elsewhere(*sealing)
        elif sum(item.size for item in items) > QUICK_CHARS:
            done = await asyncio.to_thread(_sealed, *sealing)  # hashing lets the event loop work meanwhile
        else:
            done = _sealed(*sealing)
        if len(done) < len(items):
            return  # what was refused may take others with it: the rest is looked at again
        rows = [row_of(chain.id, record, key.public.key_id) for _, record in done]
        spans = [
            span for (item, _), row in zip(done, rows, strict=True) for span in _span_rows(item.entry, row)
        ]
        try:
            await self._committer.append(rows, spans)
        except MirrorError as error:
            raise chain.quarantine(error.message) from error
        for item, record in done:
            chain.advance(record, key.public)
            item.result = _receipt(chain, record)

    async def _recall(self, chain: Chain, keys: TenantKeys, items: Sequence[_Item]) -> None:
        """Answers items whose mark is on record with their first receipt, or as a conflict."""
        await catch_up(self._pool, chain, keys)
        marked = {item.entry.mark.key: item for item in items if item.entry.mark is not None}
        rows = await db.ledger.by_idempotency_keys(
            self._pool, chain.id.tenant_id, chain.id.log_uuid, list(marked)
        )
        records = {row.idempotency_key: verified_row(chain, keys, row) for row in rows}
        for item in items:
            if item.entry.mark is None or item.entry.mark.key not in records:
                continue
            item.result = _first_answer(chain, records[item.entry.mark.key], item.entry.mark)

    async def _find_spans(self, chain: Chain, items: Sequence[_Item]) -> None:
        """Refuses items of which the chain holds a span."""
        keys = {(key.trace_id, key.span_id) for item in items for key in item.entry.spans}
        rows = await db.ledger.span_rows(self._pool, chain.id.tenant_id, chain.id.log_uuid, list(keys))
        known = {SpanKey(row.trace_id, row.span_id) for row in rows}
        for item in items:
            if found := tuple(key for key in item.entry.spans if key in known):
                item.result = SpansOnRecordError(found)


def _redacted(redactor: Redactor, entry: Entry) -> Entry:
    draft = redacted_draft(redactor, entry.draft)
    if draft is entry.draft and entry.mark is None:
        return entry
    mark = sealed_stamp(redactor, entry.mark, redacted=draft is not entry.draft)
    return msgspec.structs.replace(entry, draft=draft, mark=mark)


def _ready(entry: Entry, log_uuid: UUID) -> Draft:
    """The draft as it can be sealed: with its stamp, its canonical text, and nothing that the table refuses.

    Under the id of its own chain stand the agent's records that name no session; nothing is posted there.

    Raises:
        BadRequestError: what is wrong with it.
    """
    draft = entry.draft
    if draft.kind not in _POSTED:
        raise ValueError(f"records of kind {draft.kind!r} are not posted")
    if MEMBER in draft.payload:
        raise BadRequestError(f"{MEMBER}: this member is the service's own")
    session = draft.payload.get("session_id")
    if session is not None and not is_uuid(session):
        raise BadRequestError("session_id: must be a UUID in its hyphenated form")
    if session is not None and UUID(session) == log_uuid:
        raise BadRequestError("session_id: this is the id of the agent's own chain; choose another")
    tree = draft.payload.get("trace_tree", [])
    if not isinstance(tree, list) or not all(isinstance(node, dict) for node in tree):
        raise BadRequestError("trace_tree: must be an array of objects")
    if draft.payload_text is None:
        draft = msgspec.structs.replace(draft, payload_text=canonical(draft.payload))
    return stamped([draft], entry.mark)[0]


def _sealed(
    items: Sequence[_Item], head: Head | None, at_us: int, key: Signer
) -> list[tuple[_Item, VerifiedRecord]]:
    """Seals the items one after the other; what has no sound text is told as the item's result."""
    sealed: list[tuple[_Item, VerifiedRecord]] = []
    for item in items:
        try:
            record = seal(item.draft, head, at_us, key)
        except InvalidJsonError as error:
            item.result = error
            continue
        head = record.head
        sealed.append((item, record))
    return sealed


async def _sealed_elsewhere(
    items: Sequence[_Item], head: Head | None, at_us: int, key: SigningKey | SourceSigner
) -> list[tuple[_Item, VerifiedRecord]]:
    """The same by a signer that may wait."""
    done: list[tuple[_Item, VerifiedRecord]] = []
    for item in items:
        try:
            [record] = await sealed([item.draft], head, at_us, key)
        except InvalidJsonError as error:
            item.result = error
            continue
        head = record.head
        done.append((item, record))
    return done


def _put_together(items: Sequence[_Item]) -> None:
    for item in items:
        item.together = items


def _take(queue: deque[_Post]) -> list[_Post]:
    """The posts that are sealed next: at least one that is still waited for, if there is one."""
    posts: list[_Post] = []
    entries = chars = 0
    while queue:
        post = queue[0]
        size = sum(item.size for item in post.items)
        if posts and (entries + len(post.items) > MAX_TOGETHER or chars + size > MAX_TOGETHER_CHARS):
            break
        queue.popleft()
        if post.begin():
            posts.append(post)
            entries += len(post.items)
            chars += size
    return posts


def _apart(items: Sequence[_Item]) -> list[_Item]:
    """Those of the items that share no mark and no span with an earlier one; the others' turn is the next.

    Items that stand together are chosen together.
    """
    seen: set[str | SpanKey] = set()
    chosen: list[_Item] = []
    for unit in _units(items):
        waiting = [item for item in unit if item.result is None]
        own: set[str | SpanKey] = {key for item in waiting for key in item.entry.spans}
        own.update(item.entry.mark.key for item in waiting if item.entry.mark is not None)
        if seen.isdisjoint(own):
            chosen += waiting
            seen |= own
    return chosen


def _refuse_together(items: Sequence[_Item]) -> None:
    """What stands with an item that is refused gets its refusal, too, unless it is on record already."""
    for unit in _units(items):
        refused = next((item.result for item in unit if isinstance(item.result, TrailsError)), None)
        for item in unit:
            if item.result is None:
                item.result = refused


def _units(items: Sequence[_Item]) -> Iterable[Sequence[_Item]]:
    """The items as they stand together, in their order."""
    return {id(item.together or item): item.together or (item,) for item in items}.values()


def _span_rows(entry: Entry, row: TrailRow) -> Iterator[SpanRow]:
    for key in dict.fromkeys(entry.spans):
        yield SpanRow(row.tenant_id, key.trace_id, key.span_id, row.log_uuid, row.seq)


def _receipt(chain: Chain, record: VerifiedRecord) -> Receipt:
    return Receipt(chain.id.agent_id, record.seq, record.hash, record.timestamp)


def _first_answer(chain: Chain, record: VerifiedRecord, mark: Stamp) -> Receipt | TrailsError:
    try:
        act_length(record, mark)
    except ChainError as error:
        raise chain.quarantine(str(error)) from error
    except ConflictError as error:
        return error
    return _receipt(chain, record)


def _results(items: Sequence[_Item]) -> Iterator[Receipt | TrailsError]:
    for item in items:
        if item.result is None:
            raise UnavailableError("the post was not settled; try again")
        yield item.result
