"""On record: which spans are stored already, from the index, and from the signed records that it names.

The index makes a second delivery visible and proves nothing: an entry is believed when the record that it
names verifies and holds the span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

import db.ledger
import db.spans
from app.chain.record import VerifiedRecord
from app.errors import NotFoundError, QuarantinedError
from app.guard.kinds import TRACE
from app.ledger.read import verified_row
from app.trace.span_key import SpanKey, span_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.ledger.chain import Chains
    from app.ledger.keystore import TenantKeys
    from db.ledger import TrailRow
    from db.pool import Pool
    from db.spans import Below

_WRONG = "the index of spans names record {seq} of chain {log_uuid} for span {span}, {why}"


class OnRecord(msgspec.Struct, frozen=True):
    """A verified record, and the agent in whose chain it stands."""

    agent_id: str
    record: VerifiedRecord


async def spans_on_record(
    pool: Pool, chains: Chains, keys: TenantKeys, tenant_id: UUID, spans: Sequence[SpanKey]
) -> dict[SpanKey, OnRecord]:
    """Those of ``spans`` that are on record, each with the record that holds it.

    Raises:
        QuarantinedError: a record that the index names is missing, does not verify or does not hold the span.
            The span's key is taken all the same, so it can neither be answered from nor stored.
    """
    entries = await db.ledger.span_rows(pool, tenant_id, [(key.trace_id, key.span_id) for key in spans])
    places = list(dict.fromkeys((entry.log_uuid, entry.seq) for entry in entries))
    found = {}
    for row in await db.ledger.rows_of(pool, tenant_id, places):
        proven = await _proven(chains, keys, row)
        found[row.log_uuid, row.seq] = (proven, _spans_of(proven))
    answer: dict[SpanKey, OnRecord] = {}
    for entry in entries:
        key = SpanKey(entry.trace_id, entry.span_id)
        held = found.get((entry.log_uuid, entry.seq))
        if held is None or key not in held[1]:
            why = "which is not there" if held is None else "which does not hold it"
            span = f"{key.trace_id.hex()}/{key.span_id.hex()}"
            raise QuarantinedError(_WRONG.format(seq=entry.seq, log_uuid=entry.log_uuid, span=span, why=why))
        answer[key] = held[0]
    return answer


async def calls_below(
    pool: Pool, chains: Chains, keys: TenantKeys, tenant_id: UUID, wanted: Below
) -> list[OnRecord]:
    """Trace records that hold a tool call right below one of some nodes.

    Raises:
        QuarantinedError: one of them does not verify.
    """
    return [await _proven(chains, keys, row) for row in await db.spans.calls_below(pool, tenant_id, wanted)]


async def _proven(chains: Chains, keys: TenantKeys, row: TrailRow) -> OnRecord:
    """The record of a row, verified by itself; its chain is the one that the registry knows of its agent."""
    try:
        chain = await chains.get(row.tenant_id, row.agent_id)
    except NotFoundError:
        raise QuarantinedError(f"record {row.seq} of chain {row.log_uuid} names an unknown agent") from None
    return OnRecord(chain.id.agent_id, verified_row(chain, keys, row))


def _spans_of(found: OnRecord) -> frozenset[SpanKey]:
    return span_keys(found.record.payload) if found.record.kind == TRACE else frozenset()
