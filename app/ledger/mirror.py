"""The mirror: columns are for finding rows, the signed text is what counts, and the two must agree.

Verification trusts no column. This compares each one with the verified text, and with the registry what
only the genesis record says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from app.chain.record import GENESIS
from app.errors import MirrorError
from app.ledger.idempotency import key_of
from app.moment import from_microseconds
from db.ledger import ChainRow, TrailRow

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from app.chain.record import VerifiedRecord
    from app.ledger.chain import ChainId


def row_of(chain_id: ChainId, record: VerifiedRecord, key_id: str) -> TrailRow:
    """The row that a record has to have in the table."""
    return TrailRow(
        tenant_id=chain_id.tenant_id,
        agent_id=chain_id.agent_id,
        log_uuid=chain_id.log_uuid,
        seq=record.seq,
        kind=record.kind,
        actor=record.actor,
        session_id=_session_of(chain_id, record),
        created_at=from_microseconds(record.timestamp_us),
        prev_hash=record.prev_hash,
        hash=record.hash,
        signature=record.signature,
        key_id=key_id,
        idempotency_key=key_of(record),
        signed_text=record.text,
    )


def registry_row(chain_id: ChainId, genesis: TrailRow) -> ChainRow:
    """The registry's row of a chain that begins with ``genesis``."""
    return ChainRow(
        tenant_id=chain_id.tenant_id,
        agent_id=chain_id.agent_id,
        log_uuid=chain_id.log_uuid,
        guarded=chain_id.guarded,
        created_at=genesis.created_at,
    )


def check_mirror(chain_id: ChainId, row: TrailRow, record: VerifiedRecord, signed_by: PublicKey) -> None:
    """Compares every column of ``row`` with the verified record.

    Raises:
        MirrorError: names the columns that say something else.
    """
    expected = row_of(chain_id, record, signed_by.key_id)
    if row != expected:
        differing = [
            name for name in TrailRow.__struct_fields__ if getattr(row, name) != getattr(expected, name)
        ]
        raise MirrorError(f"columns differ from the signed text: {', '.join(differing)}", seq=record.seq)
    if record.kind == GENESIS:
        _check_genesis(chain_id, record)


def _check_genesis(chain_id: ChainId, record: VerifiedRecord) -> None:
    named = {
        "log_id": chain_id.agent_id,
        "tenant": str(chain_id.tenant_id),
        "log_uuid": str(chain_id.log_uuid),
    }
    for member, value in named.items():
        if record.payload.get(member) != value:
            raise MirrorError(f"genesis: {member} is not that of the registry", seq=record.seq)


def _session_of(chain_id: ChainId, record: VerifiedRecord) -> UUID:
    session = record.payload.get("session_id")
    if session is None:
        return chain_id.log_uuid
    try:
        return UUID(session) if isinstance(session, str) else chain_id.log_uuid
    except ValueError as error:
        raise MirrorError("session_id is no UUID", seq=record.seq) from error
