"""Parts of a chain: verifying goes on behind one, and several may be proven at the same time.

A ``Position`` is behind records that were verified from the first one on. A ``Stretch`` is proven by itself:
its records follow one another and, if that stands at all, a record that it names. Who has verified all up to
just that record may take the stretch for verified without a look of their own; who has not, may not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.chain.record import Head


class Position(msgspec.Struct, frozen=True):
    """How far a chain was verified without a fault, and what has to be known to go on behind it.

    ``key`` is the one in force behind ``head``, ``genesis_key`` the chain's first one (both hex), ``genesis``
    the payload of the first record, ``unknown_kinds`` how many records are of kinds that are not known here.
    """

    head: Head
    key: str
    genesis_key: str
    genesis: dict[str, Any]
    unknown_kinds: int = 0


class Stretch(msgspec.Struct, frozen=True):
    """Records that were proven to follow one another, and to follow a certain record.

    ``after`` is that record, with the time of the stretch's first record, and ``signed_by`` (hex) the key in
    force behind it; both are None where a chain begins: only there ``genesis_key`` and ``genesis`` are known.
    ``key`` is in force behind ``head``, the last record. ``confirmed`` are the seqs of checkpoints it holds.
    """

    after: Head | None
    signed_by: str | None
    head: Head
    key: str
    records: int
    unknown_kinds: int
    confirmed: tuple[int, ...] = ()
    genesis_key: str | None = None
    genesis: dict[str, Any] | None = None

    def follows(self, position: Position) -> bool:
        """Whether the record at ``position`` is the one that these follow."""
        after, head = self.after, position.head
        return (
            after is not None
            and (after.seq, after.hash, self.signed_by) == (head.seq, head.hash, position.key)
            and head.timestamp_us <= after.timestamp_us
        )
