"""Replay: the first answer to an Idempotency-Key, read again from the records that it left.

Nothing is kept beside the chain: a decision stands in the act's own records, and a status is the fold of
all records up to the act's last one, so the answer is the same for ever, in every process.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

import db.ledger
from app.chain.verify import Verifier
from app.errors import ChainError, ConflictError, FormatError, LinkError
from app.guard.decide import Decision, decision_of, refusal_of
from app.guard.state import GuardState, evolve
from app.ledger.idempotency import act_length
from app.ledger.read import verified_row
from app.ledger.rebuild import CHUNK_ROWS, verify_row

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.ledger.chain import Chain
    from app.ledger.idempotency import Stamp
    from app.ledger.keys.keystore import TenantKeys
    from app.ledger.snapshots import Snapshots
    from db.ledger import TrailRow
    from db.pool import Pool


class Done(msgspec.Struct, frozen=True):
    """What an act came to: its decision or refusal, and the state right after it."""

    state: GuardState
    decision: Decision | None = None
    refusal: ConflictError | None = None


async def recall(
    pool: Pool, chain: Chain, keys: TenantKeys, mark: Stamp, snapshots: Snapshots
) -> Done | None:
    """Finds the act that carried ``mark`` in this chain; None when there was none.

    A decision is read from the act's own records. Only a status, which speaks of the whole chain, costs a
    fold from the snapshot before it on.

    Raises:
        IdempotencyConflictError: the key was used with another body.
        QuarantinedError: a record of the way there does not verify.
    """
    row = await db.ledger.by_idempotency(pool, chain.id.tenant_id, chain.id.log_uuid, mark.key)
    if row is None:
        return None
    try:
        records = await _records_of_act(pool, chain, keys, row, mark)
        decision, refusal = decision_of(records), refusal_of(records)
        if decision is not None or refusal is not None:
            return Done(chain.state, decision, refusal)
        return Done(await _state_at(pool, chain, keys, records[-1].seq, snapshots))
    except ChainError as error:
        raise chain.quarantine(str(error)) from error


async def _records_of_act(
    pool: Pool, chain: Chain, keys: TenantKeys, first: TrailRow, mark: Stamp
) -> list[VerifiedRecord]:
    """The act's records: the stamped one says how many there are, and they stand one after the other."""
    begin = verified_row(chain, keys, first)
    end = begin.seq + act_length(begin, mark)
    rows = await db.ledger.rows_at(pool, chain.id.tenant_id, chain.id.log_uuid, range(begin.seq + 1, end))
    records = [begin, *(verified_row(chain, keys, row) for row in rows)]
    if len(records) != end - begin.seq:
        raise FormatError("the act that this key names is cut off", seq=begin.seq)
    for before, record in pairwise(records):
        if record.prev_hash != before.hash:
            raise LinkError("prev_hash is not the predecessor's hash", seq=record.seq)
    return records


async def _state_at(
    pool: Pool, chain: Chain, keys: TenantKeys, last_seq: int, snapshots: Snapshots
) -> GuardState:
    """Folds the chain to ``last_seq``, which is on record."""
    fold = await snapshots.fold_before(chain.id, keys, last_seq)
    verifier = Verifier(chain.genesis_key)
    after = -1
    if fold.state.head is not None and fold.key is not None:
        verifier, after = Verifier.resume(fold.state.head, fold.key), fold.state.head.seq
    state = fold.state
    chunks = db.ledger.each_chunk(pool, chain.id.tenant_id, chain.id.log_uuid, after=after, size=CHUNK_ROWS)
    async for rows in chunks:
        for row in rows:
            state = evolve(state, verify_row(chain.id, verifier, row))
            if row.seq == last_seq:
                return state
    raise FormatError("the act that this key names is cut off", seq=last_seq)
