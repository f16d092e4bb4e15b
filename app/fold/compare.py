"""Comparing: each snapshot record of a chain against the fold of all records that stand before it.

A snapshot that is signed with the right key can be false all the same: whoever holds the key writes it. So
whoever reads a chain from its first record on, in a database or in a file, looks at each of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from app.chain.keys import PublicKey
from app.chain.record import SNAPSHOT, Head, VerifiedRecord
from app.errors import ChainError, FoldError, FormatError, UnknownKindError
from app.fold.fold import ChainId, Fold
from app.guard.kinds import EVENT, TRACE
from app.guard.snapshot import state_from_json, state_to_json

if TYPE_CHECKING:
    from app.chain.position import Position
    from app.chain.strict import JsonObject


class SnapshotCheck:
    """Compares the snapshots of one chain with the records before them; takes all of these, in order.

    What the guard would refuse, and a kind that this version does not know, is told at the next snapshot, for
    which nothing vouches then. A record that was left out, since it does not verify, ends the comparison.
    """

    __slots__ = ("_fold", "_lost")

    def __init__(self, chain_id: ChainId) -> None:
        self._fold = Fold(chain_id)
        self._lost: ChainError | None = None

    def push(self, record: VerifiedRecord, key: PublicKey) -> None:
        """Takes the next record that was verified; ``key`` is in force after it.

        Raises:
            FoldError: it is a snapshot that says something else than the records before it; once a chain.
            FormatError: it is a snapshot behind records that contradict each other; once a chain.
            UnknownKindError: it is a snapshot behind a record that cannot be folded; once a chain.
        """
        if self._lost is None:
            try:
                self._fold.advance(record, key)
            except ChainError as error:
                self._lost = error
        if record.kind == SNAPSHOT and isinstance(self._lost, _TELLING):
            fault, self._lost = self._lost, _TOLD
            raise fault

    @classmethod
    def resume(cls, chain_id: ChainId, fold: JsonObject | None, position: Position) -> SnapshotCheck:
        """The check that goes on where ``said`` said ``fold``.

        Raises:
            FieldError: that is malformed.
        """
        check = cls(chain_id)
        if fold is None:
            seq = position.head.seq
            check._lost = FoldError("what the records up to here come to could not be told", seq=seq)
            return check
        check._fold.state = state_from_json(fold, position.head)
        check._fold.key = PublicKey.load(position.key)
        check._fold.genesis_key = PublicKey.load(position.genesis_key)
        return check

    def said(self) -> JsonObject | None:
        """What the records so far come to for the guard; None when the comparison has ended.

        Raises:
            ValueError: they end in the middle of an act.
        """
        return None if self._lost is not None else state_to_json(self._fold.state)

    def after(self, gathered: Gathered, head: Head) -> SnapshotCheck:
        """The check that stands at ``head``, when all records up to there were gathered.

        Raises:
            FoldError, FormatError, UnknownKindError: as ``push`` does.
        """
        moved = SnapshotCheck(self._fold.id)
        moved._lost = self._lost
        for name in Fold.__slots__:
            setattr(moved._fold, name, getattr(self._fold, name))
        for record, key in gathered.records:
            if record.seq:
                moved._skip_to(Head(record.seq - 1, record.prev_hash, record.timestamp_us))
            moved.push(record, key)
        if gathered.rest is not None and moved._lost is None:
            moved._fold = gathered.rest  # the last one was their snapshot, and it is true
        moved._skip_to(head)
        return moved

    def gathered(self) -> Gathered | None:
        """All that was pushed, for whoever has seen nothing of the chain; None when the comparison ended."""
        return None if self._lost is not None else Gathered((), self._fold)

    def _skip_to(self, head: Head) -> None:
        if self._lost is None:
            self._fold.state = msgspec.structs.replace(self._fold.state, head=head)


class Gathered(msgspec.Struct, frozen=True):
    """What whoever has folded all records before these has to know of them.

    ``records`` are those that change something, up to their first snapshot, each with the key in force behind
    it; ``rest`` is what all come to if that one is true, None where they have none. Of records that a chain
    begins with ``rest`` says everything.
    """

    records: tuple[tuple[VerifiedRecord, PublicKey], ...]
    rest: Fold | None


class Gathering:
    """Takes records of which nobody here knows what stands before them, in order.

    From their first snapshot on they are folded as if it were true: who compares that one then need not see
    what follows it. So several processes fold one chain, and what they hand over is short.
    """

    __slots__ = ("_fold", "_records")

    def __init__(self, chain_id: ChainId) -> None:
        self._fold = Fold(chain_id)
        self._records: list[tuple[VerifiedRecord, PublicKey]] = []

    def push(self, record: VerifiedRecord, key: PublicKey) -> None:
        """Takes the next record that was verified; ``key`` is in force after it.

        Raises:
            ChainError: it contradicts those before it, or is a snapshot that says something else.
        """
        if self._fold.key is not None:
            self._fold.advance(record, key)
        elif record.kind not in CHANGES_NOTHING:
            self._records.append((record, key))
            if record.kind == SNAPSHOT:
                with suppress(FormatError):  # of another form, say: who knows what stands before it judges it
                    self._fold.begin_at(record, key)

    def done(self) -> Gathered:
        """What was gathered."""
        return Gathered(tuple(self._records), None if self._fold.key is None else self._fold)


CHANGES_NOTHING: Final = frozenset({TRACE, EVENT})
"""Kinds of records that a fold passes over but for its place; most records of most chains are of these."""

_TELLING: Final = (FormatError, FoldError, UnknownKindError)
"""Why records cannot be folded that verify: whoever has the key could write one to end the comparison."""

_TOLD: Final = ChainError("it was told what is wrong")
