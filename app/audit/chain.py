"""One chain of an audit: its texts are verified, and every column is compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from app.audit.rows import AuditedRow
from app.chain.audit import ChainAudit, missing_record
from app.chain.keys import PublicKey
from app.chain.position import Position, Stretch
from app.chain.record import GENESIS, KEY_ROTATED, Head, SignedRecord, VerifiedRecord
from app.chain.report import Report
from app.chain.strict import JsonObject
from app.chain.trust import trusted_key
from app.errors import ChainError, FormatError, MirrorError, SignatureError
from app.fold.administration import AdministrationState
from app.fold.compare import Gathered, Gathering, SnapshotCheck
from app.guard.kinds import ACTION_REQUESTED, OUTCOME, POLICY
from app.guard.words import OutcomeStatus
from app.ledger.chain import ChainId
from app.ledger.idempotency import MEMBER
from app.ledger.watch.inspect import ChainInspector
from app.moment import from_microseconds
from app.principal import ADMINISTRATION
from db.ledger import ChainRow, TrailRow

Keys = Mapping[str, PublicKey]
"""Trusted keys by their hex."""

_SCARRING: Final = frozenset({OutcomeStatus.FAILURE.value, OutcomeStatus.HARMFUL.value})
_NEEDED: Final = ("signed_text", "hash", "signature")


class ProvenRows(msgspec.Struct, frozen=True):
    """Rows of one chain that were proven by themselves, texts and columns.

    ``act_end`` is the least seq at which all their acts can end, ``begun`` key (hex) and time of the genesis
    record, if that is among them; ``gathered`` is what snapshots sum up of them.
    """

    stretch: Stretch
    act_end: int
    begun: tuple[str, datetime] | None
    gathered: Gathered


class Reached(msgspec.Struct, frozen=True):
    """How far a chain was verified without a fault, texts and columns.

    ``begun`` is as in ``ProvenRows``, ``fold`` what the records come to, as a snapshot would say it (None:
    snapshots are not compared any more).
    """

    position: Position
    begun: tuple[str, datetime]
    fold: JsonObject | None


class ChainName(msgspec.Struct, frozen=True):
    """How a chain is called: tenant by slug (or id, when the table of tenants has no such row)."""

    tenant: str
    agent_id: str
    log_uuid: str


class AuditedChain:
    """The rows of one chain; ``place`` is what the table says they belong to."""

    def __init__(self, name: ChainName, first: AuditedRow) -> None:
        self.name = name
        self.place = (first.spot.tenant_id, first.spot.log_uuid)
        self.note = ""
        """What is said of the chain beside its faults."""

    def push(self, row: AuditedRow) -> None:
        """Takes the next row."""
        raise NotImplementedError

    def end(self) -> None:
        """Judges what only shows when there is no further row."""

    def report(self) -> Report:
        """What was found so far."""
        raise NotImplementedError


class UnregisteredRows(AuditedChain):
    """Rows that belong to no chain of the registry: that they are there is the fault."""

    def __init__(self, name: ChainName, first: AuditedRow) -> None:
        super().__init__(name, first)
        self._rows = 0
        self._seq = first.spot.seq

    def push(self, row: AuditedRow) -> None:  # noqa: ARG002  nothing in it can be believed
        """Counts the row."""
        self._rows += 1

    def report(self) -> Report:
        """One fault, whatever the rows say."""
        audit = ChainAudit()
        audit.note(MirrorError("these rows belong to no chain of the registry", seq=self._seq))
        return msgspec.structs.replace(audit.report(), checked=self._rows, faulty=self._rows)


class RegisteredChain(AuditedChain):
    """A chain of the registry: its texts are verified, and every column is compared with them."""

    def __init__(
        self,
        name: ChainName,
        entry: ChainRow,
        keys: Keys | None,
        checkpoints: Mapping[int, str],
        first: AuditedRow,
        *,
        follow_rotation: bool,
    ) -> None:
        super().__init__(name, first)
        chain_id = ChainId(entry.tenant_id, entry.agent_id, entry.log_uuid, entry.guarded)
        self.entry = entry
        self._keys = keys
        self._follow_rotation = follow_rotation
        text = None if first.trail is None else first.trail.signed_text
        # Whoever pins keys is told of another one.
        self._pins = tuple(keys.values()) if keys and follow_rotation else ()
        self._checkpoints = checkpoints
        self._inspector = ChainInspector(chain_id, trusted_key(text, keys), checkpoints, pins=self._pins)
        self._audit = self._inspector.audit
        self._rows = 0
        self._act_end = 0
        self._marked: Head | None = None
        self._gathering: Gathering | None = None
        self.begun: tuple[str, datetime] | None = None
        """Key (hex) and time of the genesis record, when that stands."""

        self.administration = AdministrationState() if entry.agent_id == ADMINISTRATION else None
        """What the records say, as far as they stand, when they are a tenant's administrative acts."""

        if keys is not None and not keys:
            self._audit.note(SignatureError("the tenant has no signing key that opens", seq=first.spot.seq))

    def suppose(self, after: Head, key: PublicKey, checkpoints: Mapping[int, str]) -> None:
        """Begins behind a record that is only supposed to stand: what follows is proven by itself."""
        self._take_over(ChainAudit.suppose(after, key, checkpoints))
        self._gathering = Gathering(self._inspector.chain_id)

    def go_on(self, reached: Reached, checkpoints: Mapping[int, str]) -> None:
        """Begins behind what was verified before, whose word is taken for it."""
        trusted = self._trusted(reached.position.genesis_key)
        self._take_over(ChainAudit.resume(reached.position, trusted, checkpoints, pins=self._pins))
        self._rows = reached.position.head.seq + 1
        self._marked = reached.position.head
        self.begun = reached.begun
        snapshots = SnapshotCheck.resume(self._inspector.chain_id, reached.fold, reached.position)
        self._inspector.snapshots = snapshots

    def _begin_with(self, genesis_key: str | None) -> None:
        """The first row was seen elsewhere, and names this key."""
        self._take_over(ChainAudit(self._trusted(genesis_key), self._checkpoints, pins=self._pins))

    def _trusted(self, genesis_key: str | None) -> PublicKey | None:
        """The key that a chain which begins with ``genesis_key`` is held against: as ``trusted_key``."""
        keys = self._keys or {}
        return keys.get(genesis_key or "") or next(iter(keys.values()), None)

    def _take_over(self, audit: ChainAudit) -> None:
        self._inspector.audit = self._audit = audit

    def proven(self, first_us: int) -> ProvenRows | None:
        """What was proven, ``first_us`` being the time of the first row; None when anything was wrong."""
        stretch, gathering = self._audit.stretch(first_us), self._gathering
        gathered = self._inspector.snapshots.gathered() if gathering is None else gathering.done()
        if stretch is None or gathered is None:
            return None
        return ProvenRows(stretch, self._act_end, self.begun, gathered)

    def adopt(self, proven: ProvenRows) -> bool:
        """Takes rows for verified that were proven elsewhere; False if they may not be the next ones."""
        if self.administration is not None or self._marked is not None:
            return False
        if not self._rows and not self._audit.report().fault_count:
            self._begin_with(proven.stretch.genesis_key)
        try:
            snapshots = self._inspector.snapshots.after(proven.gathered, proven.stretch.head)
        except ChainError:
            return False  # whoever reads the rows says which it is
        if not self._audit.adopt(proven.stretch):
            return False
        self._inspector.snapshots = snapshots
        self._rows += proven.stretch.records
        self._act_end = max(self._act_end, proven.act_end)
        self.begun = self.begun or proven.begun
        return True

    def reached(self) -> Reached | None:
        """Where verifying may go on; None in the middle of an act, behind a fault, or without a record.

        Chains of administration are always read from their beginning: tables are compared with all they say.
        """
        position = self._audit.position()
        if position is None or self.begun is None or self.administration is not None:
            return None
        if self._marked is not None or self._act_end > position.head.seq:
            return None
        try:
            return Reached(position, self.begun, self._inspector.snapshots.said())
        except ValueError:  # in the middle of an act
            return None

    @property
    def reached_us(self) -> int | None:
        """The time of the last record that was verified."""
        head = self._audit.head
        return None if head is None or not self._rows else head.timestamp_us

    @property
    def key(self) -> PublicKey | None:
        """The key in force behind what was taken so far, if nothing is wrong with it."""
        return None if self._audit.position() is None else self._audit.key

    def push(self, row: AuditedRow) -> None:
        """Verifies the row's text, then compares its columns with it."""
        if self._marked is not None and self._is_recalled(row):
            return
        self._rows += 1
        trail = row.trail
        if trail is None:
            reason = f"the row cannot be read: its {row.spot.size} bytes are more than any record has"
            self._audit.add_unreadable(FormatError(reason, seq=row.spot.seq))
            return
        missing = [name for name in _NEEDED if getattr(trail, name) is None]
        if missing:
            reason = f"columns are NULL: {', '.join(missing)}"
            self._audit.add_unreadable(MirrorError(reason, seq=trail.seq))
            return
        record = self._inspector.push(trail)
        if record is None:
            return
        self._act_end = max(self._act_end, last_of_act(record))
        try:
            self._compare(row, trail, record)
            self._fold(record)
            if self._gathering is not None and self._audit.key is not None:
                self._gathering.push(record, self._audit.key)
        except ChainError as error:
            self._audit.doubt(error)

    def _is_recalled(self, row: AuditedRow) -> bool:
        """Whether this is the record that was verified last, which must be there still."""
        marked, self._marked = self._marked, None
        if marked is None or row.spot.seq != marked.seq:
            self._audit.note(missing_record(None if marked is None else marked.seq))
            return False
        trail = row.trail
        self._audit.recall(SignedRecord("", "", "") if trail is None else signed_as_it_stands(trail))
        return True

    def end(self) -> None:
        """Names a chain that stops where none of its acts does: each is appended whole or not at all."""
        head = self._audit.report().head
        if self.entry.guarded and self._rows == 1 and head is not None and head.seq == 0:
            reason = "the registry says that a guard decides, but the chain ends before its policy"
            self._audit.note(MirrorError(reason, seq=1))
        elif head is not None and self._act_end > head.seq:
            self._audit.cut()
            self.note = f"ends in the middle of an act: seq {head.seq + 1} is missing"

    def doubt_tenant(self) -> None:
        """Says that the table of tenants does not hold this chain's tenant."""
        self._audit.note(MirrorError("its tenant has no row in the table of tenants", seq=0))

    def report(self) -> Report:
        """What was found in texts and columns."""
        return self._audit.report()

    def _compare(self, row: AuditedRow, trail: TrailRow, record: VerifiedRecord) -> None:
        if record.seq == 1 and self.entry.guarded != (record.kind == POLICY):
            raise MirrorError("the registry's word on whether a guard decides is not the chain's", seq=1)
        if record.kind == GENESIS and self.entry.created_at != trail.created_at:
            raise MirrorError("the registry's created_at is not the time of the genesis record", seq=0)
        if row.id != int(record.hash[:16], 16) >> 1:
            raise MirrorError("id is not derived from the hash", seq=record.seq)
        if row.mirrored is None:
            raise MirrorError("trace_data cannot be compared with the signed text", seq=record.seq)
        if not row.mirrored:
            raise MirrorError("trace_data is not the payload of the signed text", seq=record.seq)
        if record.kind == KEY_ROTATED and self._keys is not None and not self._follow_rotation:
            self._check_rotation(record)

    def _fold(self, record: VerifiedRecord) -> None:
        if record.kind == GENESIS and self._audit.key is not None:
            self.begun = self._audit.key.hex, from_microseconds(record.timestamp_us)
        if self.administration is not None:
            self.administration.add(record)

    def _check_rotation(self, record: VerifiedRecord) -> None:
        if self._keys is not None and record.payload.get("public_key") not in self._keys:
            raise SignatureError("the key that the record names is not one of the tenant's", seq=record.seq)


def signed_as_it_stands(row: TrailRow) -> SignedRecord:
    """What a row has for a record, whatever is NULL in it."""
    return SignedRecord(row.signed_text or "", row.hash or "", row.signature or "")


def last_of_act(record: VerifiedRecord) -> int:
    """The least seq at which an act that ``record`` belongs to can end, as far as the record itself says."""
    stamp = record.payload.get(MEMBER)
    records = stamp.get("records") if isinstance(stamp, dict) else None
    if type(records) is int and records > 1:
        return record.seq + records - 1
    asks = record.kind == ACTION_REQUESTED  # its decision follows
    scars = record.kind == OUTCOME and record.payload.get("status") in _SCARRING
    return record.seq + 1 if asks or scars else record.seq
