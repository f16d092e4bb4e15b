"""Snapshots: records from which a long chain is opened, so that only what follows them is verified then.

A snapshot is believed that the tenant's newest key has signed, in this chain. One that a retired key signed
is not: whoever stole that key could have put in it whatever they liked, so the whole chain is read then, and
a new snapshot follows the rotation. What came before a snapshot is verified by ``trails verify`` and by the
service as it goes round all chains; both compare each snapshot with the fold of all records before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import db.ledger
from app.chain.verify import verify_detached
from app.errors import ChainError
from app.fold.fold import Fold
from app.ledger.mirror import check_mirror
from app.ledger.read import signed_of

if TYPE_CHECKING:
    from app.chain.record import Draft
    from app.ledger.chain import Chain, ChainId
    from app.ledger.keys.keystore import TenantKeys
    from db.ledger import TrailRow
    from db.pool import Pool

MAX_SEQ: Final = 2**63 - 1

EVERY: Final = 200
"""Records between two snapshots by default: as many as are verified in some 20 ms."""

MAX_CHARS: Final = 2 * 1024 * 1024
"""No snapshot is written that would be longer."""

CHARS_A_RECORD: Final = 1_024
"""A long snapshot comes less often: it is so many times shorter than the records before it are many."""


class Snapshots:
    """Where chains are opened, and when the next snapshot is due.

    Args:
        every: least records between two; 0: none are written, and none are believed.
    """

    def __init__(self, pool: Pool, *, every: int = EVERY) -> None:
        self._pool = pool
        self._every = every

    async def begin(self, chain: Chain, keys: TenantKeys) -> bool:
        """Puts a chain of which nothing was read at its newest snapshot. False when none is to be believed.

        Raises:
            UnavailableError: the database is away.
        """
        return chain.head is None and await self._begin(chain, keys, MAX_SEQ)

    async def fold_before(self, chain_id: ChainId, keys: TenantKeys, seq: int) -> Fold:
        """A fold that stands at the newest snapshot before ``seq``, or where the chain begins."""
        fold = Fold(chain_id)
        await self._begin(fold, keys, seq - 1)
        return fold

    def due(self, chain: Chain, keys: TenantKeys) -> Draft | None:
        """The snapshot that is to be appended now, between two acts; None when it is not time yet."""
        if chain.head is None or not self._every or chain.key != keys.newest.public:
            return None
        since = chain.head.seq - max(chain.snapshot_seq, 0)
        if since < max(self._every, chain.snapshot_size // CHARS_A_RECORD):
            return None
        return chain.snapshot()

    async def _begin(self, fold: Fold, keys: TenantKeys, upto: int) -> bool:
        if not self._every:
            return False
        row = await db.ledger.newest_snapshot(self._pool, fold.id.tenant_id, fold.id.log_uuid, upto=upto)
        return row is not None and _begin_at(fold, keys, row)


def _begin_at(fold: Fold, keys: TenantKeys, row: TrailRow) -> bool:
    """Begins at the snapshot in ``row``, if it is to be believed.

    Why one is not needs no word here: a reader of the whole chain finds out what is wrong with it.
    """
    newest = keys.newest.public
    try:
        record = verify_detached(signed_of(row), newest)
        check_mirror(fold.id, row, record, newest)
        fold.begin_at(record, newest)
    except ChainError:
        return False
    return True
