"""Rebuild: rows → verified (hash, link, signature, mirror) → folded → guard state.

The one way by which rows become state, for a chain opened the first time and for records that another
process appended a moment ago. What does not verify quarantines the chain; the other chains go on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import db.ledger
from app.chain.verify import Verifier
from app.errors import ChainError, KeyMaterialError, MirrorError, OrderError, QuarantinedError
from app.ledger.mirror import check_mirror
from app.ledger.read import GONE, signed_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from app.chain.keys import PublicKey
    from app.chain.record import VerifiedRecord
    from app.ledger.chain import Chain, ChainId
    from app.ledger.keys.keystore import TenantKeys
    from db.ledger import TrailRow
    from db.pool import Pool

CHUNK_ROWS = 500
"""Rows read at once, of bounded size: what rebuilding holds in memory, whatever the chain's age."""

QUICK_CHARS = 64 * 1024
"""Text that is verified at once; more is verified beside the event loop."""


async def catch_up(pool: Pool, chain: Chain, keys: TenantKeys) -> bool:
    """Reads, verifies and folds what was appended after the chain's head. True when there was something.

    Raises:
        QuarantinedError: the chain does not verify, now or since before.
        UnavailableError: the database is away.
    """
    chain.require_sound()
    moved = False
    while rows := await _rows_after(pool, chain):
        await _fold_rows(chain, keys, rows)
        moved = True
    if chain.head is None:
        raise chain.quarantine("the registry names this chain, but the table holds no record of it")
    return moved


async def _rows_after(pool: Pool, chain: Chain) -> list[TrailRow]:
    after = -1 if chain.head is None else chain.head.seq
    return await db.ledger.records(pool, chain.id.tenant_id, chain.id.log_uuid, after=after, limit=CHUNK_ROWS)


async def confirm_head(pool: Pool, chain: Chain) -> None:
    """Checks that the table still holds the head that this process verified.

    A database that was set back to an earlier state passes every check of its own; only a memory like
    this one can tell.

    Raises:
        QuarantinedError: the head's row is gone or another one stands in its place.
    """
    head = chain.head
    if head is None:
        return
    row = await db.ledger.row_at(pool, chain.id.tenant_id, chain.id.log_uuid, head.seq)
    if row is None or row.hash != head.hash:
        raise chain.quarantine(GONE.format(seq=head.seq))


async def look_again(pool: Pool, chain: Chain, keys: TenantKeys) -> None:
    """Brings up to date what was read before, and confirms that the table still holds it. For reads.

    While nobody else writes, one look at the newest record does both.

    Raises:
        QuarantinedError: the chain does not verify, or the table was set back behind what was read of it.
        UnavailableError: the database is away.
    """
    chain.require_sound()
    newest, head = await db.ledger.head(pool, chain.id.tenant_id, chain.id.log_uuid), chain.head
    if head is None or (newest is not None and newest[0] > head.seq):
        await catch_up(pool, chain, keys)
    elif newest != (head.seq, head.hash):
        raise chain.quarantine(GONE.format(seq=head.seq))


async def _fold_rows(chain: Chain, keys: TenantKeys, rows: list[TrailRow]) -> None:
    try:
        verifier = chain.verifier(_trusted_key(chain, keys, rows[0]))
        if sum(len(row.signed_text) for row in rows) > QUICK_CHARS:
            # Beside the event loop, and without touching the chain: whoever waits for this may go away.
            verified = await asyncio.to_thread(_verify_rows, chain.id, verifier, rows)
        else:
            verified = _verify_rows(chain.id, verifier, rows)
        for record, key in verified:
            chain.advance(record, key)
    except (ChainError, KeyMaterialError) as error:
        raise chain.quarantine(str(error)) from error


def _verify_rows(
    chain_id: ChainId, verifier: Verifier, rows: list[TrailRow]
) -> list[tuple[VerifiedRecord, PublicKey]]:
    """Each row verified, with the key in force behind it."""
    return [(verify_row(chain_id, verifier, row), _key_in_force(verifier)) for row in rows]


async def each_record(pool: Pool, chain_id: ChainId, keys: TenantKeys) -> AsyncIterator[VerifiedRecord]:
    """Every record of a chain, verified from the first one on, whatever is known of the chain here.

    Raises:
        QuarantinedError: the chain does not verify.
        UnavailableError: the database is away.
    """
    verifier: Verifier | None = None
    chunks = db.ledger.each_chunk(pool, chain_id.tenant_id, chain_id.log_uuid, size=CHUNK_ROWS)
    try:
        async for rows in chunks:
            verifier = verifier or Verifier(_genesis_key(keys, rows[0]))
            step = partial(verify_row, chain_id, verifier)
            # A long chain must not keep the requests of this process waiting.
            for record in await asyncio.to_thread(lambda step, rows: list(map(step, rows)), step, rows):
                yield record
    except (ChainError, KeyMaterialError) as error:
        raise QuarantinedError(str(error)) from error


def verify_row(chain_id: ChainId, verifier: Verifier, row: TrailRow) -> VerifiedRecord:
    """Verifies one row as the next record of its chain, and that no column says otherwise.

    Raises:
        ChainError: which check failed, and at which ``seq``.
    """
    key_before = verifier.key
    record = verifier.step(signed_of(row))
    check_mirror(chain_id, row, record, key_before or _key_in_force(verifier))
    return record


def _key_in_force(verifier: Verifier) -> PublicKey:
    """The key behind the last record that was verified: there is one as soon as there is a record."""
    if verifier.key is None:
        raise KeyMaterialError("no record was verified, so no key is in force")
    return verifier.key


def _trusted_key(chain: Chain, keys: TenantKeys, first: TrailRow) -> PublicKey | None:
    """The key that a chain's genesis record has to name: one that the master key opened."""
    return None if chain.head is not None else _genesis_key(keys, first)


def _genesis_key(keys: TenantKeys, first: TrailRow) -> PublicKey:
    if first.seq != 0:
        raise OrderError("the first record of the chain is missing", seq=0)
    key = keys.public(first.key_id)
    if key is None:
        raise MirrorError("the genesis record names a key that is not the tenant's", seq=0)
    return key
