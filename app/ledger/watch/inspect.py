"""Inspection: verifies a whole chain as it stands in the table and names every fault once.

Unlike a rebuild, which stops at the first fault because nothing may be decided on such a chain, an
inspection goes on behind it, so that an auditor sees how far the damage reaches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

import db.ledger
from app.chain.audit import ChainAudit
from app.chain.record import GENESIS
from app.errors import ChainError, MirrorError, OrderError, SignatureError, TenantQuarantinedError
from app.fold.compare import SnapshotCheck
from app.ledger.mirror import check_mirror
from app.ledger.read import GONE, signed_of
from app.ledger.rebuild import CHUNK_ROWS
from app.ledger.watch.seen import MISSING, NOTHING_SEEN

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from app.chain.record import Head, VerifiedRecord
    from app.chain.report import Report
    from app.chain.strict import JsonObject
    from app.ledger.chain import Chain, ChainId
    from app.ledger.keys.keystore import Keystore
    from app.ledger.tenancy.origins import Origins
    from db.ledger import TrailRow
    from db.pool import Pool

COMPLETENESS = (
    "complete up to what this database knows; only a head kept elsewhere proves that no tail was cut"
)
"""What a verdict without an outside head says, since no reading of the table can say more."""

NOT_REGISTERED: Final = "the registry, which this chain was known from, does not hold it so any more"
"""Why a chain is quarantined whose row of the registry was taken away or changed under a running server."""

_MOST_BYTES_A_CHAR: Final = 4


class ChainInspector:
    """Takes the rows of one chain in order of ``seq``: the record as evidence, the columns as claims."""

    def __init__(
        self,
        chain_id: ChainId,
        trusted: PublicKey | None,
        checkpoints: Mapping[int, str] | None = None,
        *,
        pins: Iterable[PublicKey] = (),
    ) -> None:
        self.chain_id = self._id = chain_id
        self.snapshots = SnapshotCheck(chain_id)
        self.audit = ChainAudit(trusted, checkpoints, pins=pins)

    def push(self, row: TrailRow) -> VerifiedRecord | None:
        """Verifies one row; what is wrong with it is noted, and the next one is judged on its own.

        Returns None for a row that does not stand.
        """
        key_before = self.audit.key
        try:
            signed = signed_of(row)
        except MirrorError as error:
            self.audit.add_unreadable(error)
            return None
        record = self.audit.add(signed)
        if record is None:
            return None
        signed_by = self.audit.key if record.kind == GENESIS else key_before
        try:
            if signed_by is not None:
                check_mirror(self._id, row, record, signed_by)
            if self.audit.key is not None:
                self.snapshots.push(record, self.audit.key)
        except ChainError as error:
            self.audit.doubt(error)
            return None
        return record

    def push_all(self, rows: Sequence[TrailRow]) -> None:
        """Verifies a chunk of rows."""
        for row in rows:
            self.push(row)


class Inspection:
    """One verification of a whole chain, from genesis to head, in slices: nothing is held between them.

    A slice that fails because the database is away changes nothing and may be asked for again. Writers may go
    on meanwhile: rows are only ever added behind those that a slice has seen.

    Args:
        pool: where the table is.
        chain_id: which chain.
        keystore: whose keys it may begin with.
        origins: judges chains that begin with a retired key.
        known: the last record that this process verified of the chain, asked anew with each slice. A table
            that was set back and written on verifies on its own; what was verified here before must stand.
        seen: hashes by seq of records that were seen before, here or elsewhere, which must stand too.
    """

    def __init__(
        self,
        pool: Pool,
        chain_id: ChainId,
        keystore: Keystore,
        origins: Origins,
        known: Callable[[], Head | None],
        *,
        seen: Mapping[int, str] = NOTHING_SEEN,
    ) -> None:
        self.id = chain_id
        self._seen = seen
        self.over = False
        """Whether the end was reached and all was judged."""

        self._pool = pool
        self._keystore = keystore
        self._origins = origins
        self._known = known
        self._after = -1
        self._trusted: PublicKey | None = None
        self._inspector: ChainInspector | None = None

    async def advance(self, limit: int = CHUNK_ROWS, most_bytes: int | None = None) -> Slice:
        """Verifies the next records: at most ``limit``, and about ``most_bytes`` of text (UTF-8).

        Raises:
            UnavailableError: the database is away.
            KeyMaterialError: a stored key of the tenant does not open.
            NotFoundError: the tenant has no key at all.
        """
        known, most_bytes = self._known(), most_bytes or db.ledger.CHUNK_BYTES
        tenant_id, log_uuid = self.id.tenant_id, self.id.log_uuid
        rows = await db.ledger.records(
            self._pool, tenant_id, log_uuid, after=self._after, limit=limit, most_bytes=most_bytes
        )
        inspector = self._inspector = self._inspector or await self._begin(rows, known)
        if rows:
            # A long chain must not keep the other requests of this process waiting.
            await asyncio.to_thread(inspector.push_all, rows)
            self._after = rows[-1].seq
        chars = sum(len(row.signed_text) for row in rows)
        if len(rows) < limit and _MOST_BYTES_A_CHAR * chars < most_bytes:  # nothing but the end cut it short
            await self._end(inspector, known)
        return Slice(len(rows), chars)

    @property
    def report(self) -> Report:
        """What was found so far."""
        return (ChainAudit() if self._inspector is None else self._inspector.audit).report()

    def doubt(self, error: ChainError) -> None:
        """Adds a fault of the whole chain, after its end was reached."""
        if self._inspector is not None:
            self._inspector.audit.note(error)

    async def _begin(self, rows: Sequence[TrailRow], known: Head | None) -> ChainInspector:
        """The inspector, with the tenant's key that the genesis row names, if there is such a row and key."""
        if rows and rows[0].seq == 0:
            keys = await self._keystore.of(self.id.tenant_id)
            self._trusted = keys.public(rows[0].key_id)
            if self._trusted is None:  # what is known of the keys may be older than the row
                self._keystore.forget(self.id.tenant_id)
                self._trusted = (await self._keystore.of(self.id.tenant_id)).public(rows[0].key_id)
        checkpoints = self._seen if known is None else {**self._seen, known.seq: known.hash}
        return ChainInspector(self.id, self._trusted, checkpoints)

    async def _end(self, inspector: ChainInspector, known: Head | None) -> None:
        """Judges what only shows when there is no further row."""
        problem = None
        if self._trusted is not None:
            with suppress(TenantQuarantinedError):  # then the chain itself is judged all the same
                keys = await self._keystore.of(self.id.tenant_id)
                problem = await self._origins.problem(self.id, self._trusted, keys)
        head = inspector.audit.report().head
        if self._trusted is None:
            inspector.audit.note(SignatureError("no genesis record under a key of this tenant", seq=0))
        elif problem is not None:
            inspector.audit.note(SignatureError(problem, seq=0))
        elif known is not None and (head is None or head.seq < known.seq):
            inspector.audit.note(OrderError(GONE.format(seq=known.seq), seq=known.seq))
        elif self._seen and (head is None or head.seq < max(self._seen)):
            inspector.audit.note(OrderError(MISSING.format(seq=max(self._seen)), seq=max(self._seen)))
        self.over = True


class Slice(msgspec.Struct, frozen=True):
    """How much was verified at once: records, and characters of their texts."""

    records: int
    chars: int


async def inspect_chain(
    pool: Pool,
    chain: Chain,
    keystore: Keystore,
    origins: Origins,
    *,
    seen: Mapping[int, str] = NOTHING_SEEN,
    progress: Callable[[int], None] | None = None,
) -> JsonObject:
    """Verifies one chain from genesis to head; the answer of ``GET …/verify``.

    ``progress`` hears how many records are done, after each slice.
    """
    inspection = Inspection(pool, chain.id, keystore, origins, lambda: chain.head, seen=seen)
    while not inspection.over:
        await inspection.advance()
        if progress is not None:
            progress(inspection.report.checked)
    row = await db.ledger.chain(pool, chain.id.tenant_id, chain.id.agent_id)
    if row is None or (row.log_uuid, row.guarded) != (chain.id.log_uuid, chain.id.guarded):
        inspection.doubt(MirrorError(NOT_REGISTERED, seq=0))
    return verdict_of(inspection.report)


def verdict_of(report: Report) -> JsonObject:
    """A report as the API answers it: Lineage's members first, then all of ours."""
    answer: JsonObject = {"ok": not report.fault_count, "records": report.checked}
    if report.fault_count:
        first = report.first_faults[0]
        answer["failure"] = {"line": first.line, "seq": first.seq, "reason": first.reason}
    else:
        answer["completeness"] = COMPLETENESS
    return {**report.to_json(), **answer}


def first_failure(verdict: JsonObject) -> str:
    """Where and why a chain does not verify, as a sentence."""
    failure = verdict.get("failure")
    if not isinstance(failure, dict):
        return "the chain does not verify"
    return f"seq {failure['seq']}: {failure['reason']}"
