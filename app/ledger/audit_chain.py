"""One chain of an audit: its texts are verified, and every column is compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from app.chain.keys import PublicKey
from app.chain.record import GENESIS, KEY_ROTATED, VerifiedRecord
from app.chain.report import Report
from app.chain.trust import trusted_key
from app.chain.verify import ChainAudit
from app.errors import ChainError, MirrorError, SignatureError
from app.guard.kinds import POLICY
from app.ledger.chain import ChainId
from app.ledger.inspect import ChainInspector
from app.ledger.payload import same_payload
from db.ledger import ChainRow, TrailRow

Keys = Mapping[str, PublicKey]
"""Trusted keys by their hex."""

_NEEDED: Final = ("signed_text", "hash", "signature")


class ChainName(msgspec.Struct, frozen=True):
    """How a chain is called: tenant by slug (or id, when the table of tenants has no such row)."""

    tenant: str
    agent_id: str
    log_uuid: str


class AuditedRow(msgspec.Struct, frozen=True):
    """A row as it was read: ``trail`` is what the service reads of it."""

    id: int | None
    trail: TrailRow
    trace_data: str | None


class AuditedChain:
    """The rows of one chain; ``place`` is what the table says they belong to."""

    def __init__(self, name: ChainName, first: TrailRow) -> None:
        self.name = name
        self.place = (first.tenant_id, first.log_uuid)

    def push(self, row: AuditedRow) -> None:
        """Takes the next row."""
        raise NotImplementedError

    def report(self) -> Report:
        """What was found."""
        raise NotImplementedError


class UnregisteredRows(AuditedChain):
    """Rows that belong to no chain of the registry: that they are there is the fault."""

    def __init__(self, name: ChainName, first: TrailRow) -> None:
        super().__init__(name, first)
        self._rows = 0
        self._seq = first.seq

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
        first: TrailRow,
        *,
        follow_rotation: bool,
    ) -> None:
        super().__init__(name, first)
        chain_id = ChainId(entry.tenant_id, entry.agent_id, entry.log_uuid, entry.guarded)
        self._entry = entry
        self._keys = keys
        self._follow_rotation = follow_rotation
        self._inspector = ChainInspector(chain_id, trusted_key(first.signed_text, keys), checkpoints)
        self._audit = self._inspector.audit
        if keys is not None and not keys:
            self._audit.note(SignatureError("the tenant has no signing key that opens", seq=first.seq))

    def push(self, row: AuditedRow) -> None:
        """Verifies the row's text, then compares its columns with it."""
        missing = [name for name in _NEEDED if getattr(row.trail, name) is None]
        if missing:
            reason = f"columns are NULL: {', '.join(missing)}"
            self._audit.add_unreadable(MirrorError(reason, seq=row.trail.seq))
            return
        record = self._inspector.push(row.trail)
        if record is None:
            return
        try:
            self._compare(row, record)
        except ChainError as error:
            self._audit.doubt(error)

    def report(self) -> Report:
        """What was found in texts and columns."""
        return self._audit.report()

    def _compare(self, row: AuditedRow, record: VerifiedRecord) -> None:
        if record.seq == 1 and self._entry.guarded != (record.kind == POLICY):
            raise MirrorError("the registry's word on whether a guard decides is not the chain's", seq=1)
        if record.kind == GENESIS and self._entry.created_at != row.trail.created_at:
            raise MirrorError("the registry's created_at is not the time of the genesis record", seq=0)
        if row.id != int(record.hash[:16], 16) >> 1:
            raise MirrorError("id is not derived from the hash", seq=record.seq)
        if not same_payload(row.trace_data, record.payload):
            raise MirrorError("trace_data is not the payload of the signed text", seq=record.seq)
        if record.kind == KEY_ROTATED and self._keys is not None and not self._follow_rotation:
            self._check_rotation(record)

    def _check_rotation(self, record: VerifiedRecord) -> None:
        if self._keys is not None and record.payload.get("public_key") not in self._keys:
            raise SignatureError("the key that the record names is not one of the tenant's", seq=record.seq)
