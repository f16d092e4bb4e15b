"""Inspection: verifies a whole chain as it stands in the table and names every fault once.

Unlike a rebuild, which stops at the first fault because nothing may be decided on such a chain, an
inspection goes on behind it, so that an auditor sees how far the damage reaches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import db.ledger
from app.chain.record import GENESIS
from app.chain.verify import ChainAudit
from app.errors import MirrorError, OrderError, SignatureError, TenantQuarantinedError
from app.ledger.mirror import check_mirror
from app.ledger.read import GONE, signed_of
from app.ledger.rebuild import CHUNK_ROWS

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from app.chain.record import VerifiedRecord
    from app.chain.report import Report
    from app.chain.strict import JsonObject
    from app.ledger.chain import Chain, ChainId
    from app.ledger.keystore import TenantKeys
    from app.ledger.origins import Origins
    from db.ledger import TrailRow
    from db.pool import Pool

COMPLETENESS = (
    "complete up to what this database knows; only a head kept elsewhere proves that no tail was cut"
)
"""What a verdict without an outside head says, since no reading of the table can say more."""


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
        self._id = chain_id
        self.audit = ChainAudit(trusted, checkpoints, pins=pins)

    def push(self, row: TrailRow) -> VerifiedRecord | None:
        """Verifies one row; what is wrong with it is noted, and the next one is judged on its own.

        Returns None for a row that does not stand.
        """
        key_before = self.audit.key
        record = self.audit.add(signed_of(row))
        if record is None:
            return None
        signed_by = self.audit.key if record.kind == GENESIS else key_before
        try:
            if signed_by is not None:
                check_mirror(self._id, row, record, signed_by)
        except MirrorError as error:
            self.audit.doubt(error)
            return None
        return record

    def push_all(self, rows: Sequence[TrailRow]) -> None:
        """Verifies a chunk of rows."""
        for row in rows:
            self.push(row)


async def inspect_chain(pool: Pool, chain: Chain, keys: TenantKeys, origins: Origins) -> JsonObject:
    """Verifies one chain from genesis to head; the answer of ``GET …/verify``."""
    known = chain.head
    trusted = await _genesis_key(pool, chain, keys)
    # A table that was set back and written on verifies on its own; what was verified here before must stand.
    inspector = ChainInspector(chain.id, trusted, {} if known is None else {known.seq: known.hash})
    chunks = db.ledger.each_chunk(pool, chain.id.tenant_id, chain.id.log_uuid, size=CHUNK_ROWS)
    async for rows in chunks:
        # A long chain must not keep the other requests of this process waiting.
        await asyncio.to_thread(inspector.push_all, rows)
    report = inspector.audit.report()
    problem = None
    if trusted is not None:
        with suppress(TenantQuarantinedError):  # then the chain itself is judged all the same
            problem = await origins.problem(chain.id, trusted, keys)
    if trusted is None:
        inspector.audit.note(SignatureError("no genesis record under a key of this tenant", seq=0))
    elif problem is not None:
        inspector.audit.note(SignatureError(problem, seq=0))
    elif known is not None and (report.head is None or report.head.seq < known.seq):
        inspector.audit.note(OrderError(GONE.format(seq=known.seq), seq=known.seq))
    return verdict_of(inspector.audit.report())


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


async def _genesis_key(pool: Pool, chain: Chain, keys: TenantKeys) -> PublicKey | None:
    """The tenant's key that the genesis row names; None when there is no such row or key."""
    first = await db.ledger.row_at(pool, chain.id.tenant_id, chain.id.log_uuid, 0)
    return None if first is None else keys.public(first.key_id)
