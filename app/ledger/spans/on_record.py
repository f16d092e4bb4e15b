"""On record: which spans are stored already, from the index, and from the signed records that it names.

The index makes a second delivery visible and proves nothing: an entry is believed when the record that it
names verifies and holds the span.

A span of a few bytes may stand in a record of many megabytes, and one request can name thousands of them. So
records are read a few at a time, verified beside the event loop, and of each only what was asked for is kept.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import msgspec

import db.ledger
import db.spans
from app.errors import NotFoundError, QuarantinedError
from app.guard.kinds import TRACE
from app.ledger.post import Receipt
from app.ledger.read import verified_row
from app.ledger.rebuild import QUICK_CHARS
from app.trace.otlp.nesting import End, end_of
from app.trace.otlp.node import content_hash
from app.trace.span_key import SpanKey, keyed_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    from app.chain.record import VerifiedRecord
    from app.chain.strict import JsonObject
    from app.ledger.chain import Chain, Chains
    from app.ledger.keys.keystore import TenantKeys
    from db.ledger import SpanRow, TrailRow
    from db.pool import Pool
    from db.spans import Below, Sight

READ_BYTES: Final = 1024 * 1024
"""Signed text that is read at a time, by one read: one large record more at most."""

READS_AT_ONCE: Final = 2
"""Parts that are read, verified and held at the same moment, over all requests of the process."""

_WRONG: Final = "the index of spans names record {seq} of chain {log_uuid} for span {span}, {why}"

_Place = tuple[UUID, int]
_Found = TypeVar("_Found")


class Held(msgspec.Struct, frozen=True):
    """A span on record: the receipt of the record that holds it, and the hash of the span's content."""

    receipt: Receipt
    content: str | None


class Call(msgspec.Struct, frozen=True):
    """A tool call on record: whose it is, in which session, and the node as it stands there."""

    agent_id: str
    session_id: str
    node: JsonObject


class SpanReader:
    """Reads what is on record of spans; behind ``Ledger``, which takes the grant."""

    def __init__(self, pool: Pool, chains: Chains) -> None:
        self._pool = pool
        self._chains = chains
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    async def held(self, keys: TenantKeys, chain: Chain, spans: Collection[SpanKey]) -> dict[SpanKey, Held]:
        """Those of ``spans`` that a chain holds.

        Raises:
            QuarantinedError: a record that the index names is missing, does not verify or does not hold the
                span. The span is taken all the same, so it can neither be answered from nor stored.
        """
        wanted = _by_place(
            await db.ledger.span_rows(self._pool, keys.tenant_id, chain.id.log_uuid, _columns(spans))
        )

        def pick(row: TrailRow, record: VerifiedRecord) -> list[tuple[SpanKey, Held]]:
            receipt = Receipt(row.agent_id, record.seq, record.hash, record.timestamp)
            nodes = _nodes(record, wanted[row.log_uuid, row.seq])
            return [(key, Held(receipt, content_hash(node))) for key, node in nodes]

        found: dict[SpanKey, Held] = {}
        read: set[_Place] = set()
        async for places, picked in self._read(keys, sorted(wanted, key=_seq), pick):
            found.update(picked)
            read.update(places)
        for place, asked in wanted.items():
            if missing := asked - found.keys():
                raise _untrue(place, missing.pop(), is_there=place in read)
        return found

    async def ends(self, keys: TenantKeys, sight: Sight, spans: Collection[SpanKey]) -> dict[SpanKey, End]:
        """Those of ``spans`` that are on record within sight, as ends of calls; the chain's own come first.

        Raises:
            QuarantinedError: one of the records does not verify.
        """
        wanted = _by_place(await db.spans.ends(self._pool, keys.tenant_id, _columns(spans), sight))

        def pick(row: TrailRow, record: VerifiedRecord) -> list[tuple[SpanKey, End]]:
            nodes = _nodes(record, wanted[row.log_uuid, row.seq])
            return [(key, end_of(node)) for key, node in nodes]

        found: dict[SpanKey, End] = {}
        own_first = sorted(wanted, key=lambda place: (place[0] != sight.log_uuid, place[0].int, place[1]))
        async for _, picked in self._read(keys, own_first, pick):
            for key, end in picked:
                found.setdefault(key, end)
        return found

    async def calls_below(
        self, keys: TenantKeys, wanted: Below, sight: Sight, is_wanted: Callable[[JsonObject], bool]
    ) -> AsyncIterator[list[Call]]:
        """Tool calls right below one of some nodes, as spans told of them, as many as one part has.

        Raises:
            QuarantinedError: one of the records does not verify.
        """
        places = await db.spans.calls_below(self._pool, keys.tenant_id, wanted, sight)

        def pick(row: TrailRow, record: VerifiedRecord) -> list[Call]:
            session = record.payload.get("session_id")
            if record.kind != TRACE or not isinstance(session, str):
                return []
            nodes = keyed_nodes(record.payload)
            return [Call(row.agent_id, session, node) for _, node in nodes if is_wanted(node)]

        async for _, picked in self._read(keys, places, pick):
            yield picked

    async def _read(
        self,
        keys: TenantKeys,
        places: Sequence[_Place],
        pick: Callable[[TrailRow, VerifiedRecord], list[_Found]],
    ) -> AsyncIterator[tuple[list[_Place], list[_Found]]]:
        """The places that were read, and what was picked from their verified records, part by part."""
        parts = db.ledger.each_of(self._pool, keys.tenant_id, places, READ_BYTES)
        while True:
            async with self._turns:
                rows = await anext(parts, None)
                if rows is None:
                    return
                picked = await self._picked(keys, rows, pick)
                read = [(row.log_uuid, row.seq) for row in rows]
                del rows  # nothing of them is held while others have their turn
            yield read, picked

    async def _picked(
        self,
        keys: TenantKeys,
        rows: Sequence[TrailRow],
        pick: Callable[[TrailRow, VerifiedRecord], list[_Found]],
    ) -> list[_Found]:
        chains = {row.agent_id: await self._chain(row) for row in rows}

        def verified() -> list[_Found]:
            return [
                found for row in rows for found in pick(row, verified_row(chains[row.agent_id], keys, row))
            ]

        if sum(len(row.signed_text) for row in rows) > QUICK_CHARS:
            return await asyncio.to_thread(verified)
        return verified()

    async def _chain(self, row: TrailRow) -> Chain:
        """The chain that the registry knows of the agent that a row names."""
        try:
            return await self._chains.get(row.tenant_id, row.agent_id)
        except NotFoundError:
            raise QuarantinedError(
                f"record {row.seq} of chain {row.log_uuid} names an unknown agent"
            ) from None


def _columns(spans: Collection[SpanKey]) -> list[tuple[bytes, bytes]]:
    return [(key.trace_id, key.span_id) for key in spans]


def _by_place(entries: Sequence[SpanRow]) -> dict[_Place, set[SpanKey]]:
    wanted: dict[_Place, set[SpanKey]] = {}
    for entry in entries:
        wanted.setdefault((entry.log_uuid, entry.seq), set()).add(SpanKey(entry.trace_id, entry.span_id))
    return wanted


def _seq(place: _Place) -> int:
    return place[1]


def _nodes(record: VerifiedRecord, wanted: set[SpanKey]) -> Iterator[tuple[SpanKey, JsonObject]]:
    nodes = keyed_nodes(record.payload) if record.kind == TRACE else ()
    return ((key, node) for key, node in nodes if key in wanted)


def _untrue(place: _Place, span: SpanKey, *, is_there: bool) -> QuarantinedError:
    named = f"{span.trace_id.hex()}/{span.span_id.hex()}"
    why = "which does not hold it" if is_there else "which is not there"
    return QuarantinedError(_WRONG.format(seq=place[1], log_uuid=place[0], span=named, why=why))
