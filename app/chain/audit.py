"""Audit of a chain: all its records are verified, and what is wrong with it is told, each fault once.

``ChainAudit`` drives a ``Verifier`` over the chain, goes on after a fault and blames no later record for it.
It may begin behind a position that was verified before, take over what was proven elsewhere, and be such a
proof itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from app.chain.keys import PublicKey
from app.chain.position import Position, Stretch
from app.chain.reading import readable
from app.chain.record import KEY_ROTATED, KNOWN_KINDS, Head, SignedRecord, VerifiedRecord, hash_text
from app.chain.report import MAX_FAULTS, Fault, OtherKey, PutInForce, Report
from app.chain.verify import Verifier, verify_detached
from app.errors import ChainError, ForkError, OrderError

_MAX_GAPS = 1000
"""Gaps that are remembered, to know a record that comes out of place from a fork."""


def missing_record(seq: int | None) -> OrderError:
    """The fault of a chain without the record that its mark names."""
    return OrderError(f"the record that the mark names, seq {seq}, is not there", seq=seq)


def verify_chain(
    records: Iterable[SignedRecord],
    trusted: PublicKey | None = None,
    checkpoints: Mapping[int, str] | None = None,
) -> Report:
    """Verifies a whole chain from its genesis record, in memory that does not grow with its length.

    Args:
        records: the records in the chain's order, untrusted.
        trusted: the key that was pinned; without it the signer is only self-declared.
        checkpoints: hashes by seq that were kept elsewhere.
    """
    audit = ChainAudit(trusted, checkpoints, pins=() if trusted is None else (trusted,))
    for signed in records:
        audit.add(signed)
    return audit.report()


class ChainAudit:
    """Collects what is wrong with one chain, fed record by record (``report`` may be asked at any time).

    That a chain does not begin with ``trusted`` is a fault; with ``pins``, keys that a person chose, it is
    told as what it is, a chain of another key.
    """

    def __init__(
        self,
        trusted: PublicKey | None = None,
        checkpoints: Mapping[int, str] | None = None,
        *,
        pins: Iterable[PublicKey] = (),
    ) -> None:
        self._pins = tuple(pins)
        self._put_in_force: PutInForce | None = None
        self._verifier = Verifier(trusted, must_begin=not self._pins)
        self._checkpoints = dict(checkpoints or {})
        self._faults: list[Fault] = []
        self._last: Fault | None = None
        self._fault_count = 0
        self._line = 0
        self._checked = 0
        self._faulty = 0
        self._unknown_kinds = 0
        self._anchored_to: int | None = None
        self._confirmed: list[int] = []
        self._supposed: tuple[Head, str] | None = None
        self._gaps: list[range] = []
        self._cut = False

    def add(self, signed: SignedRecord) -> VerifiedRecord | None:
        """Verifies the next record; None when it was refused (the report says why)."""
        self._line += 1
        self._checked += 1
        signed_by = self._verifier.key
        try:
            record = self._verifier.step(signed)
        except ChainError as error:
            self._refuse(signed, error)
            self._verifier.resync(signed)
            return None
        self._unknown_kinds += record.kind not in KNOWN_KINDS
        if self._pins and signed_by is not None:
            self._watch_pins(record, signed_by)
        if self._checkpoints:
            self._compare(record.seq, record.hash)
        return record

    def add_unreadable(self, error: ChainError) -> None:
        """Counts a line that is not even a record, and goes on behind it."""
        self._line += 1
        self._checked += 1
        self._faulty += 1
        self._blame(error)
        self._verifier.resync(SignedRecord("", "", ""))

    @property
    def key(self) -> PublicKey | None:
        """The key in force behind what was added so far."""
        return self._verifier.key

    @property
    def head(self) -> Head | None:
        """The last verified position."""
        return self._verifier.head

    @classmethod
    def resume(
        cls,
        position: Position,
        trusted: PublicKey | None = None,
        checkpoints: Mapping[int, str] | None = None,
        *,
        pins: Iterable[PublicKey] = (),
    ) -> ChainAudit:
        """An audit that goes on behind ``position``, whose word is taken for what comes before."""
        audit = cls(trusted, checkpoints, pins=pins)
        audit._place(position.head, PublicKey.load(position.key))
        audit._verifier.genesis_key = PublicKey.load(position.genesis_key)
        audit._verifier.genesis = position.genesis
        audit._unknown_kinds = position.unknown_kinds
        return audit

    @classmethod
    def suppose(cls, after: Head, key: PublicKey, checkpoints: Mapping[int, str] | None = None) -> ChainAudit:
        """An audit of what follows a record that is only supposed to stand: it proves a ``stretch``."""
        audit = cls(None, checkpoints)
        audit._place(after, key)
        audit._supposed = after, key.hex
        return audit

    def position(self) -> Position | None:
        """Where verifying may go on; None when anything was wrong so far, or nothing was verified."""
        verifier = self._verifier
        head, key, genesis_key = verifier.head, verifier.key, verifier.genesis_key
        if self._fault_count or self._cut or self._other_key() is not None:
            return None
        if head is None or key is None or genesis_key is None or verifier.genesis is None:
            return None
        return Position(head, key.hex, genesis_key.hex, verifier.genesis, self._unknown_kinds)

    def stretch(self, first_us: int) -> Stretch | None:
        """What was proven, ``first_us`` being the time of the first record; None when anything was wrong."""
        verifier = self._verifier
        head, key, supposed = verifier.head, verifier.key, self._supposed
        if self._fault_count or self._cut or not self._checked or head is None or key is None:
            return None
        return Stretch(
            after=None if supposed is None else replace(supposed[0], timestamp_us=first_us),
            signed_by=None if supposed is None else supposed[1],
            head=head,
            key=key.hex,
            records=self._checked,
            unknown_kinds=self._unknown_kinds,
            confirmed=tuple(self._confirmed),
            genesis_key=None if verifier.genesis_key is None else verifier.genesis_key.hex,
            genesis=verifier.genesis,
        )

    def adopt(self, stretch: Stretch) -> bool:
        """Takes proven records for verified where they are the next ones; False if that is not certain."""
        position = self.position()
        if position is None:
            if self._line or self._fault_count or not self._begins(stretch):
                return False
        elif not stretch.follows(position):
            return False
        verifier = self._verifier
        if verifier.genesis_key is None and stretch.genesis_key is not None:
            verifier.genesis_key, verifier.genesis = PublicKey.load(stretch.genesis_key), stretch.genesis
        self._place(stretch.head, PublicKey.load(stretch.key))
        self._checked += stretch.records
        self._unknown_kinds += stretch.unknown_kinds
        for seq in stretch.confirmed:
            self._confirm(seq)
        return True

    def _begins(self, stretch: Stretch) -> bool:
        """Whether a chain that begins so begins with the key that it has to begin with."""
        if stretch.after is not None or stretch.genesis_key is None:
            return False
        if self._pins:
            return any(pin.hex == stretch.genesis_key for pin in self._pins)
        return self._verifier.trusted is None or self._verifier.trusted.hex == stretch.genesis_key

    def _place(self, head: Head, key: PublicKey) -> None:
        """Goes on behind ``head``, where ``key`` is in force."""
        self._verifier.go_on(head, key)
        self._line = head.seq + 1

    def recall(self, signed: SignedRecord) -> bool:
        """Looks whether the record at the position that this goes on from is still there; if not, says so."""
        head = self._verifier.head
        if head is None:
            return False
        self._checked += 1
        if signed.hash == head.hash == hash_text(signed.text):
            self._compare(head.seq, head.hash)
            return True
        self.doubt(ForkError(f"the mark has hash {head.hash[:16]}… at this seq", seq=head.seq))
        return False

    def doubt(self, error: ChainError) -> None:
        """Adds a fault of the record that was just added and that lies outside its text, in its row."""
        self._faulty += 1
        self._blame(error)

    def note(self, error: ChainError) -> None:
        """Adds a fault of the whole input, such as altered line endings, at the line that comes next."""
        self._line += 1
        self._last = None  # a fault of its own, never the continuation of another
        self._blame(error)
        self._last = None
        self._line -= 1

    def cut(self) -> None:
        """Says that the input ends in the middle of a record."""
        self._cut = True

    def report(self) -> Report:
        """What was found so far."""
        verifier = self._verifier
        trusted = verifier.trusted is not None and verifier.genesis_key == verifier.trusted
        return Report(
            checked=self._checked,
            faulty=self._faulty,
            fault_count=self._fault_count,
            first_faults=tuple(self._faults),
            head=verifier.head,
            genesis_key=verifier.genesis_key,
            key=verifier.key,
            genesis=verifier.genesis,
            signer_trusted=trusted,
            unknown_kinds=self._unknown_kinds,
            missing_checkpoints=tuple(sorted(self._checkpoints)),
            anchored_to=self._anchored_to,
            cut=self._cut,
            other_key=self._other_key(),
        )

    def _watch_pins(self, record: VerifiedRecord, signed_by: PublicKey) -> None:
        """Notes the first pinned key that a rotation put in force, and what it signed since."""
        later, key = self._put_in_force, self._verifier.key
        if later is not None:
            if signed_by == later.key:
                self._put_in_force = replace(later, records=later.records + 1)
        elif record.kind == KEY_ROTATED and key is not None and key in self._pins:
            self._put_in_force = PutInForce(key, record.seq, signed_by)

    def _other_key(self) -> OtherKey | None:
        begun = self._verifier.genesis_key
        if not self._pins or begun is None or begun in self._pins:
            return None
        return OtherKey(begun, self._pins, self._put_in_force)

    def _refuse(self, signed: SignedRecord, error: ChainError) -> None:
        self._faulty += 1
        if isinstance(error, OrderError) and len(self._gaps) < _MAX_GAPS:
            self._remember_gap(signed, error)
        if isinstance(error, ForkError) and any(error.seq in gap for gap in self._gaps):
            # The gap was blamed already; the record that fills it late is, if sound, the same fault.
            late = self._own_fault(signed)
            if late is not None:
                self._blame(late)
            return
        self._blame(error)

    def _remember_gap(self, signed: SignedRecord, error: OrderError) -> None:
        fields = readable(signed.text)
        if fields is not None and error.seq is not None and fields.seq > error.seq:
            self._gaps.append(range(error.seq, fields.seq))

    def _own_fault(self, signed: SignedRecord) -> ChainError | None:
        """What is wrong with a record apart from its place."""
        key = self._verifier.key
        try:
            if key is not None:
                verify_detached(signed, key)
        except ChainError as error:
            return error
        return None

    def _compare(self, seq: int, hash_hex: str) -> None:
        """Holds a verified record against the checkpoint of its seq, if that is one of them."""
        expected = self._checkpoints.get(seq)
        if expected is None:
            return
        if expected == hash_hex:
            self._confirm(seq)
            return
        del self._checkpoints[seq]
        self._faulty += 1
        self._blame(ForkError(f"a checkpoint has hash {expected[:16]}… at this seq", seq=seq))

    def _confirm(self, seq: int) -> None:
        """The checkpoint at ``seq`` names the record that stands there."""
        self._checkpoints.pop(seq, None)
        self._confirmed.append(seq)
        self._anchored_to = seq

    def _blame(self, error: ChainError) -> None:
        last = self._last
        if last is not None and last.fault == error.fault and self._line == last.line + last.records:
            self._last = Fault(last.seq, last.line, last.fault, last.reason, last.records + 1)
            if self._faults[-1] is last:
                self._faults[-1] = self._last
            return
        self._fault_count += 1
        self._last = Fault(error.seq, self._line, error.fault, error.reason)
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(self._last)
