"""Signed rows for the database tests: honest ones, and lying ones that are signed all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec

import db.ledger
from app.chain.canonical import canonical
from app.chain.keys import SigningKey
from app.chain.link import seal
from app.chain.record import Draft, Head, VerifiedRecord, hash_text
from db.ledger import ChainRow, SigningKeyRow, TenantRow, TrailRow
from db.pool import Connection, Pool

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_US = 1_790_000_000_123_456
"""Time of the first record, in µs; the tests' clock goes on by one second a record."""

NOW = EPOCH + timedelta(microseconds=START_US)
KEY = SigningKey.from_raw(bytes(range(32)))


class Maker:
    """Makes the rows of one chain, one after the other."""

    def __init__(self, tenant_id: UUID, agent_id: str = "agent-1", log_uuid: UUID | None = None) -> None:
        self.tenant_id = tenant_id
        self.agent_id = agent_id
        self.log_uuid = log_uuid or uuid4()
        self.head: Head | None = None

    @property
    def chain(self) -> ChainRow:
        """The registry's row of this chain."""
        return ChainRow(self.tenant_id, self.agent_id, self.log_uuid, guarded=True, created_at=NOW)

    def genesis(self) -> TrailRow:
        """The first row."""
        payload = {
            "log_id": self.agent_id,
            "public_key": KEY.public.hex,
            "tenant": "default",
            "log_uuid": str(self.log_uuid),
        }
        return self.row("genesis", payload)

    def row(
        self,
        kind: str = "event",
        /,
        payload: dict[str, Any] | None = None,
        **changes: Any,
    ) -> TrailRow:
        """The next row; ``changes`` replaces columns afterwards."""
        at_us = START_US if self.head is None else self.head.timestamp_us + 1_000_000
        record = seal(Draft(kind, payload if payload is not None else {"n": 1}, "bot"), self.head, at_us, KEY)
        self.head = record.head
        return msgspec.structs.replace(self.mirror(record), **changes)

    def rows(self, count: int) -> list[TrailRow]:
        """The next ``count`` rows, beginning with genesis if the chain is empty."""
        first = [self.genesis()] if self.head is None else []
        return first + [self.row(payload={"n": number}) for number in range(count - len(first))]

    def mirror(self, record: VerifiedRecord) -> TrailRow:
        """The honest row of a record."""
        idempotency = record.payload.get("idempotency")
        return TrailRow(
            tenant_id=self.tenant_id,
            agent_id=self.agent_id,
            log_uuid=self.log_uuid,
            seq=record.seq,
            kind=record.kind,
            actor=record.actor,
            session_id=UUID(str(record.payload.get("session_id") or self.log_uuid)),
            created_at=EPOCH + timedelta(microseconds=record.timestamp_us),
            prev_hash=record.prev_hash,
            hash=record.hash,
            signature=record.signature,
            key_id=KEY.public.key_id,
            idempotency_key=str(idempotency["key"]) if isinstance(idempotency, dict) else None,
            signed_text=record.text,
        )


def resealed(row: TrailRow, **fields: Any) -> TrailRow:
    """``row`` with other fields in its signed text (not in its columns), hashed and signed again."""
    members = msgspec.json.decode(row.signed_text) | fields
    text = canonical(members)
    digest = hash_text(text)
    return msgspec.structs.replace(
        row, signed_text=text, hash=digest, signature=KEY.sign(bytes.fromhex(digest)).hex()
    )


async def register_tenant(pool: Pool, slug: str) -> UUID:
    """A new tenant with the tests' signing key."""
    tenant_id = uuid4()
    await db.ledger.add_tenant(pool, TenantRow(tenant_id, slug, slug.title(), NOW))
    key = SigningKeyRow(tenant_id, KEY.public.key_id, KEY.public.hex, b"sealed", NOW)
    await db.ledger.add_signing_key(pool, key)
    return tenant_id


async def started_chain(pool: Pool, tenant_id: UUID, agent_id: str = "agent-1", records: int = 1) -> Maker:
    """A registered chain that holds ``records`` records already."""
    maker = Maker(tenant_id, agent_id)
    await db.ledger.append(pool, maker.rows(records), chains=[maker.chain])
    return maker


async def count(connection: Connection, table: str = "agent_audit_trails") -> int:
    """The rows of a table that ``connection`` sees."""
    return int(await connection.fetchval(f"SELECT count(*) FROM trails.{table}"))
