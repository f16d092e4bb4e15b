"""Reading a session: all its records, verified one by one, and what a tree is made of.

A session holds parts of many chains, so each record is verified by itself (text, signature, columns). What
does not verify is told and left out. Memory is bounded: of each node only its place is kept, its contents are
read again for whoever shows it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.ledger
import db.sessions
from app.chain.record import hash_text
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse
from app.errors import AnswerTooLargeError, NotFoundError, QuarantinedError, TenantQuarantinedError
from app.ledger.read import verified_row
from app.moment import to_microseconds
from app.trace.tree import GUARD_KINDS, Source, sendings_of
from db.sessions import Place

if TYPE_CHECKING:
    from app.chain.keys import PublicKey
    from app.chain.strict import JsonObject, JsonValue
    from app.ledger.chain import Chain, Chains
    from app.ledger.keys.keystore import TenantKeys
    from app.ledger.tenancy.origins import Origins
    from app.trace.tree import Sending, TreeNode
    from db.ledger import TrailRow
    from db.pool import Pool

MAX_NODES: Final = 20_000
"""Nodes in one answer."""

MAX_UNVERIFIED: Final = 1_000
"""Records that do not verify that one answer lists."""


class Limits(msgspec.Struct, frozen=True):
    """What bounds the work and the memory of one answer."""

    nodes: int = MAX_NODES
    """Nodes in one answer."""

    answer_bytes: int = 32 * 1024 * 1024
    """Bytes of nodes in one answer."""

    sendings: int = 100_000
    """Nodes, each as often as it was sent, of a session that is assembled; about 60 MB while it is."""

    kept_chars: int = 8 * 1024 * 1024
    """Signed text whose contents are kept, so that small sessions are read once."""

    part_nodes: int = 500
    """Nodes whose contents are read at a time."""

    part_chars: int = 4 * 1024 * 1024
    """Signed text, more or less, in which these may stand."""

    looked_at: int = db.sessions.LOOKED_AT
    """Records that one page of sessions looks at."""

    page_bytes: int = 16 * 1024 * 1024
    """Signed text of the sessions that a page counts, or looks into for a filter; one alone may have more."""


LIMITS: Final = Limits()

FIRST: Final = Place(datetime(1, 1, 1, tzinfo=UTC), UUID(int=0), -1)
EVER: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
"""Before the first record of any session, and after the last."""

MARK_LENGTH: Final = 16
"""Hex digits of the mark that a walk over a session's nodes carries."""


class OriginOf:
    """Tells whether anything of a chain is believed: each of its records may verify, by a stolen key."""

    def __init__(self, pool: Pool, origins: Origins, keys: TenantKeys) -> None:
        self._pool = pool
        self._origins = origins
        self.keys = keys

    async def problem(self, chain: Chain) -> str | None:
        """Why the chain is not believed as a whole; None when it is.

        Raises:
            UnavailableError: the database is away.
        """
        if len(self.keys.by_public_key) == 1:
            return None  # no key was ever retired
        try:
            key = chain.genesis_key or await self._begun_with(chain)
            return None if key is None else await self._origins.problem(chain.id, key, self.keys)
        except TenantQuarantinedError as error:
            return error.message
        except QuarantinedError as error:
            return error.reason

    async def _begun_with(self, chain: Chain) -> PublicKey | None:
        first = await db.ledger.row_at(self._pool, chain.id.tenant_id, chain.id.log_uuid, 0)
        if first is None:
            raise chain.quarantine("the first record of the chain is missing")
        verified_row(chain, self.keys, first)
        return self.keys.public(first.key_id)


class Reading:
    """Reads all records of one session, verified, and keeps what a tree is made of."""

    def __init__(
        self, pool: Pool, chains: Chains, origin_of: OriginOf, session_id: UUID, limits: Limits
    ) -> None:
        self._pool = pool
        self._chains = chains
        self._origin_of = origin_of
        self._keys = origin_of.keys
        self._known: dict[str, Chain | None] = {}
        self._distrusted: dict[str, str] = {}
        self._kept: dict[tuple[UUID, int], JsonObject] = {}
        self._kept_chars = 0
        self._sizes: dict[tuple[UUID, int], int] = {}
        self._hash = hashlib.sha256()
        self.limits = limits
        self.session_id = session_id
        self.sendings: list[Sending] = []
        self.agents: set[str] = set()
        self.kinds: Counter[str] = Counter()
        self.records = 0
        self.unverified: list[JsonValue] = []
        self.unverified_records = 0
        self.first_us = 0
        self.upto_us = 0

    @property
    def mark(self) -> str:
        """Changes with the records that were read."""
        return self._hash.hexdigest()[:MARK_LENGTH]

    async def run(self, upto: datetime) -> None:
        """Reads the session up to a time.

        Raises:
            AnswerTooLargeError: it is too large to be assembled.
        """
        tenant_id, after = self._keys.tenant_id, FIRST
        while rows := await db.sessions.rows(self._pool, tenant_id, self.session_id, after=after, upto=upto):
            await self._take_rows(rows)
            if len(self.sendings) > self.limits.sendings:
                raise AnswerTooLargeError(
                    f"the session has more than {self.limits.sendings} sent nodes, which is more than is "
                    "assembled here; ask the SQL view trace_nodes or session_paths"
                )
            after = Place(rows[-1].created_at, rows[-1].log_uuid, rows[-1].seq)

    async def again(self, source: Source) -> Mapping[tuple[UUID, int], JsonObject] | None:
        """What ``contents`` would give of a record that was verified elsewhere, after verifying it here.

        None when it is not the same record any more, or does not verify now.
        """
        place = source.log_uuid, source.seq
        rows = await db.ledger.rows_of(self._pool, self._keys.tenant_id, [place])
        if [(row.hash, row.session_id) for row in rows] != [(source.hash, self.session_id)]:
            return None
        await self._take_rows(rows)
        return self._kept if place in self._kept else None

    def parts(self, nodes: Sequence[TreeNode]) -> Iterator[list[TreeNode]]:
        """The nodes in parts whose records are not too much text to be read at once."""
        part: list[TreeNode] = []
        places: set[tuple[UUID, int]] = set()
        size = 0
        for node in nodes:
            place = (node.shown.source.log_uuid, node.shown.source.seq)
            more = 0 if place in places else self._sizes[place]
            if part and (len(part) >= self.limits.part_nodes or size + more > self.limits.part_chars):
                yield part
                part, places, size, more = [], set(), 0, self._sizes[place]
            part.append(node)
            places.add(place)
            size += more
        if part:
            yield part

    async def contents(self, sources: Sequence[Source]) -> Mapping[tuple[UUID, int], JsonObject]:
        """The payloads of records that were verified here, by chain and ``seq``.

        Raises:
            QuarantinedError: one is not there any more as it was.
        """
        hashes = {(source.log_uuid, source.seq): source.hash for source in sources}
        if self._kept_chars > self.limits.kept_chars and not hashes.keys() <= self._kept.keys():
            self._kept, self._kept_chars = {}, 0
        missing = [place for place in hashes if place not in self._kept]
        for row in await db.ledger.rows_of(self._pool, self._keys.tenant_id, missing) if missing else ():
            if hash_text(row.signed_text) == hashes[row.log_uuid, row.seq]:
                self._keep(row, _payload(row.signed_text))
        for chain, seq in hashes:
            if (chain, seq) not in self._kept:
                raise QuarantinedError(f"record {seq} of chain {chain} is no longer what was verified")
        return self._kept

    async def _chain(self, agent_id: str) -> Chain | None:
        try:
            return await self._chains.get(self._keys.tenant_id, agent_id)
        except NotFoundError:
            return None

    async def _take_rows(self, rows: Sequence[TrailRow]) -> None:
        for agent_id in {row.agent_id for row in rows} - self._known.keys():
            chain = self._known[agent_id] = await self._chain(agent_id)
            problem = None if chain is None else await self._origin_of.problem(chain)
            if problem is not None:
                self._distrusted[agent_id] = problem
        await asyncio.to_thread(self._take_all, rows)

    def _take_all(self, rows: Sequence[TrailRow]) -> None:
        for row in rows:
            self._take(row)

    def _take(self, row: TrailRow) -> None:
        self.records += 1
        self._hash.update(row.hash.encode())
        self.upto_us = to_microseconds(row.created_at)
        self.first_us = self.first_us or self.upto_us
        chain = self._known[row.agent_id]
        if chain is None:
            self._doubt(row, "it names an agent that the registry does not know")
            return
        if row.agent_id in self._distrusted:
            self._doubt(row, self._distrusted[row.agent_id])
            return
        try:
            record = verified_row(chain, self._keys, row)
        except QuarantinedError as error:
            self._doubt(row, error.reason)
            return
        self.agents.add(row.agent_id)
        self.kinds[record.kind] += 1
        source = Source(
            log_uuid=row.log_uuid,
            agent_id=row.agent_id,
            seq=row.seq,
            hash=row.hash,
            recorded_us=record.timestamp_us,
            guarded=record.kind in GUARD_KINDS,
        )
        self.sendings += sendings_of(source, record.payload)
        self._sizes[row.log_uuid, row.seq] = len(row.signed_text)
        if self._kept_chars <= self.limits.kept_chars:
            self._keep(row, record.payload)

    def _keep(self, row: TrailRow, payload: JsonObject) -> None:
        self._kept[row.log_uuid, row.seq] = payload
        self._kept_chars += len(row.signed_text)

    def _doubt(self, row: TrailRow, reason: str) -> None:
        self.unverified_records += 1
        if len(self.unverified) < MAX_UNVERIFIED:
            found: JsonObject = {"agent_id": row.agent_id, "log_uuid": str(row.log_uuid), "seq": row.seq}
            self.unverified.append({**found, "reason": reason})


def _payload(text: str) -> JsonObject:
    record = parse(text.encode(), max_depth=RECORD_DEPTH, max_string=RECORD_STRING).value
    payload = record.get("payload") if isinstance(record, dict) else None
    return payload if isinstance(payload, dict) else {}
