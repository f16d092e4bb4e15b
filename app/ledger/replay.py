"""Replay: the first answer to an Idempotency-Key, read again from the records that it left.

Nothing is kept beside the chain: a decision stands in the act's own records, and a status is the fold of
all records up to the act's last one, so the answer is the same for ever, in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

import db.ledger
from app.chain.verify import Verifier
from app.errors import ChainError, ConflictError, FormatError
from app.guard.decide import Decision, decision_of, refusal_of
from app.guard.state import EMPTY, GuardState, evolve
from app.ledger.idempotency import act_length
from app.ledger.rebuild import CHUNK_ROWS, verify_row

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.ledger.chain import Chain
    from app.ledger.idempotency import Stamp
    from db.pool import Pool


class Done(msgspec.Struct, frozen=True):
    """What an act came to: its decision or refusal, and the state right after it."""

    state: GuardState
    decision: Decision | None = None
    refusal: ConflictError | None = None


async def recall(pool: Pool, chain: Chain, mark: Stamp) -> Done | None:
    """Finds the act that carried ``mark`` in this chain; None when there was none.

    Raises:
        IdempotencyConflictError: the key was used with another body.
        QuarantinedError: a record of the way there does not verify.
    """
    row = await db.ledger.by_idempotency(pool, chain.id.tenant_id, chain.id.log_uuid, mark.key)
    if row is None:
        return None
    try:
        state, records = await _fold_to(pool, chain, row.seq, mark)
        return Done(state, decision_of(records), refusal_of(records))
    except ChainError as error:
        raise chain.quarantine(str(error)) from error


async def _fold_to(
    pool: Pool, chain: Chain, first_seq: int, mark: Stamp
) -> tuple[GuardState, list[VerifiedRecord]]:
    """Folds the chain from its genesis to the end of the act that begins at ``first_seq``."""
    if chain.genesis_key is None:
        raise FormatError("the chain has no genesis record")
    verifier, state, act, after = Verifier(chain.genesis_key), EMPTY, [], -1
    last: int | None = None
    while rows := await db.ledger.records(
        pool, chain.id.tenant_id, chain.id.log_uuid, after=after, limit=CHUNK_ROWS
    ):
        for row in rows:
            record = verify_row(chain.id, verifier, row)
            state = evolve(state, record)
            if record.seq == first_seq:
                last = first_seq + act_length(record, mark) - 1
            if record.seq >= first_seq:
                act.append(record)
            if record.seq == last:
                return state, act
        after = rows[-1].seq
    raise FormatError("the act that this key names is cut off", seq=first_seq)
