"""What is told with an export: before it, of each chain, and at its end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from app.ledger.export.wanted import Wanted, written

if TYPE_CHECKING:
    from app.chain.strict import JsonObject, JsonValue
    from db.exports import Chain, PublicKeyRow, Record

HEADS_TOLD: Final = 200
"""Chains whose heads a record of an export lists; of more it has one digest of all."""

EVIDENCE: Final = "JSON lines and bundles are the evidence; this is a copy for reading, which proves nothing"
"""What CSV and Parquet say of themselves."""

PARTIAL: Final = "a filtered export: no complete chain"
"""What an export says that leaves records of a chain out."""


class Told(msgspec.Struct, frozen=True):
    """Whose export it is, of what, and of which moment."""

    tenant_id: UUID
    slug: str | None
    taken_at: datetime
    wanted: Wanted
    keys: tuple[PublicKeyRow, ...]

    def to_json(self) -> JsonObject:
        """As a file tells it at its beginning and, with what came of it, at its end."""
        wanted = self.wanted
        note: JsonObject = {} if wanted.whole_chains or wanted.view is not None else {"note": PARTIAL}
        return {
            "tenant": self.slug,
            "tenant_id": str(self.tenant_id),
            "taken_at": written(self.taken_at),
            "filter": wanted.to_json(),
            "complete_chains": wanted.whole_chains,
            **note,
        }

    def keys_json(self) -> list[JsonValue]:
        """The tenant's public keys, oldest first."""
        return [
            {"key_id": row.key_id, "public_key": row.public_key, "created_at": written(row.created_at)}
            for row in self.keys
        ]


class ChainEnd(msgspec.Struct, frozen=True):
    """One chain as it was exported; without records ``first`` and ``head`` are None."""

    chain: Chain
    records: int
    first: int | None
    head: tuple[int, str] | None

    def to_json(self) -> JsonObject:
        """The same as JSON."""
        return {
            "agent_id": self.chain.agent_id,
            "log_uuid": str(self.chain.log_uuid),
            "records": self.records,
            "first_seq": self.first,
            "last_seq": None if self.head is None else self.head[0],
            "head_hash": None if self.head is None else self.head[1],
        }

    @property
    def line(self) -> str:
        """Its head as a line of a file of heads; empty without records."""
        if self.head is None:
            return ""
        return f"{self.head[0]}:{self.head[1]} {self.chain.log_uuid} {self.chain.agent_id}\n"


class Sums:
    """What was exported so far: rows, chains with their heads, bytes and their digest."""

    def __init__(self) -> None:
        self.rows = 0
        self.chains = 0
        self.heads: list[ChainEnd] = []
        """The first ``HEADS_TOLD`` chains."""

        self._heads = hashlib.sha256()
        self._bytes = hashlib.sha256()
        self.size = 0

    def took(self, data: bytes) -> bytes:
        """Counts what is part of the file, and gives it back."""
        self._bytes.update(data)
        self.size += len(data)
        return data

    def ended(self, end: ChainEnd) -> None:
        """Counts a chain that is whole."""
        self.chains += 1
        self._heads.update(end.line.encode())
        if len(self.heads) < HEADS_TOLD:
            self.heads.append(end)

    @property
    def sha256(self) -> str:
        """Digest of all bytes so far."""
        return self._bytes.copy().hexdigest()

    def to_json(self) -> JsonObject:
        """What a statement says of it."""
        return {"rows": self.rows, "chains": self.chains, "bytes": self.size, "sha256": self.sha256}

    def on_record(self) -> JsonObject:
        """What the record of the export says of it, with the heads of its chains."""
        heads: list[JsonValue] = [
            {"agent_id": end.chain.agent_id, "log_uuid": str(end.chain.log_uuid), "seq": seq, "hash": digest}
            for end in self.heads
            if end.head is not None
            for seq, digest in [end.head]
        ]
        listed: JsonObject = {"heads": heads} if self.chains <= HEADS_TOLD else {}
        return {**self.to_json(), **listed, "heads_sha256": self._heads.hexdigest()}


class Counting:
    """Counts the records of one chain while they are exported."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._records = 0
        self._first: int | None = None
        self._head: tuple[int, str] | None = None

    def took(self, records: Sequence[Record]) -> None:
        """Counts the next ones."""
        self._records += len(records)
        if self._first is None:
            self._first = records[0].seq
        self._head = records[-1].seq, records[-1].hash

    def end(self) -> ChainEnd:
        """The chain as it was exported."""
        return ChainEnd(self.chain, self._records, self._first, self._head)
