"""Parts of one chain for people to look at: any page of it, each record proven as far as it can be by itself.

Of a record that is shown the text, the hash, the signature, every column and the link to the record before
it are verified; whether the whole chain holds is for a verification to say. A record that does not stand is
shown all the same, with what is wrong with it, since it is the one that a person wants to see; its chain is
quarantined, as wherever such a record is met.

Filters ask the columns. A page looks at a bounded number of places of the chain and says where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

import db.browse
import db.ledger
from app.chain.verify import verify_detached
from app.errors import ChainError, LinkError, NotFoundError, SignatureError
from app.ledger.mirror import check_mirror
from app.ledger.read import signed_of
from app.moment import from_microseconds
from db.browse import BrowsedRow, RecordsWanted

if TYPE_CHECKING:
    from app.chain.record import VerifiedRecord
    from app.ledger.chain import Chain, ChainId, Chains
    from app.ledger.keys.keystore import Keystore, TenantKeys
    from app.principal import Grant
    from db.ledger import TrailRow
    from db.pool import Pool

PAGE_RECORDS: Final = 100
"""Records in one page."""

PAGE_BYTES: Final = 2 * 1024 * 1024
"""Signed text in one page, more or less: a page ends early where records are large."""

WINDOW: Final = 20_000
"""Places of a chain that one page looks at, at most, when it has to search."""


class RecordQuery(msgspec.Struct, frozen=True):
    """Which page: the newest records below ``before``, or the oldest above ``after``; neither: the newest.

    Attributes:
        wanted: what the records' columns say.
        since_us: recorded at this time (µs) or later.
        until_us: recorded before this time (µs).
    """

    wanted: RecordsWanted = RecordsWanted()
    since_us: int | None = None
    until_us: int | None = None
    before: int | None = None
    after: int | None = None
    limit: int = PAGE_RECORDS


class ReadRecord(msgspec.Struct, frozen=True):
    """A record as it stands in the table: ``record`` when it stands, else ``fault`` says why it does not."""

    row: TrailRow
    record: VerifiedRecord | None
    fault: ChainError | None


class RecordPage(msgspec.Struct, frozen=True):
    """A page, newest first.

    Attributes:
        records: what was found.
        end: seq behind the last record that the table has of the chain; 0 when there is none.
        looked_at: the places that were looked at.
        older: the page below is what stands before this seq; None: nothing below can be wanted.
        newer: the page above is what stands after this seq; None: nothing above can be wanted.
    """

    records: tuple[ReadRecord, ...]
    end: int
    looked_at: range
    older: int | None
    newer: int | None


class TrailReader:
    """Reads pages and single records of a chain; behind ``Ledger``."""

    def __init__(self, pool: Pool, chains: Chains, keystore: Keystore, *, window: int = WINDOW) -> None:
        self._pool = pool
        self._chains = chains
        self._keystore = keystore
        self._window = window

    async def page(self, grant: Grant, query: RecordQuery) -> RecordPage:
        """One page of the grant's agent.

        Raises:
            NotFoundError: the tenant has no such agent.
            UnavailableError: the database is away.
        """
        chain = await self._chain(grant)
        end = await self._end(chain.id)
        bounds = await self._bounds(chain.id, query, end)
        if query.before is None and query.after is None and query.wanted.action_id is not None:
            query = msgspec.structs.replace(
                query, after=bounds.start - 1
            )  # an action is read from its request
        window, upwards = self._placed(query, bounds)
        rows = await db.browse.records(
            self._pool,
            chain.id.tenant_id,
            chain.id.log_uuid,
            query.wanted,
            window=window,
            limit=query.limit,
            most_bytes=PAGE_BYTES,
            descending=not upwards,
        )
        window = _looked_at(window, rows, query.limit, upwards=upwards)
        read = await self._judge(chain, rows)
        return RecordPage(
            records=tuple(reversed(read) if upwards else read),
            end=end,
            looked_at=window,
            older=window.start if bounds.start < window.start else None,
            newer=window.stop - 1 if window.stop < bounds.stop else None,
        )

    async def record(self, grant: Grant, seq: int) -> tuple[ReadRecord, int]:
        """One record, and the seq behind the chain's last one.

        Raises:
            NotFoundError: no such agent, or no such record.
            UnavailableError: the database is away.
        """
        chain = await self._chain(grant)
        rows = await db.browse.records(
            self._pool,
            chain.id.tenant_id,
            chain.id.log_uuid,
            RecordsWanted(),
            window=range(seq, seq + 1),
            limit=1,
            most_bytes=PAGE_BYTES,
            descending=False,
        )
        end = await self._end(chain.id)
        if not rows:
            last = f"the last one has seq {end - 1}" if end else "it has none"
            raise NotFoundError(f"the chain has no record with seq {seq}; {last}")
        return (await self._judge(chain, rows))[0], end

    async def length(self, grant: Grant) -> int:
        """How many records the table has of the grant's agent, as far as its last one says.

        Raises:
            NotFoundError: the tenant has no such agent.
            UnavailableError: the database is away.
        """
        return await self._end((await self._chain(grant)).id)

    async def _chain(self, grant: Grant) -> Chain:
        return await self._chains.get(grant.tenant_id, grant.agent_id or "")

    async def _end(self, chain_id: ChainId) -> int:
        head = await db.ledger.head(self._pool, chain_id.tenant_id, chain_id.log_uuid)
        return 0 if head is None else head[0] + 1

    async def _bounds(self, chain_id: ChainId, query: RecordQuery, end: int) -> range:
        """The places at which wanted records can stand, as far as indexes and times tell."""
        place = self._pool, chain_id.tenant_id, chain_id.log_uuid
        low, high = 0, end
        if query.since_us is not None:
            low = await db.browse.first_since(*place, from_microseconds(query.since_us), end)
        if query.until_us is not None:
            high = await db.browse.first_since(*place, from_microseconds(query.until_us), end)
        if query.wanted.action_id is not None:
            low = max(low, await db.browse.first_of_action(*place, query.wanted.action_id) or 0)
        if query.wanted.session_id is not None:
            span = await db.browse.span_of_session(*place, query.wanted.session_id)
            low, high = (low, low) if span is None else (max(low, span[0]), min(high, span[1] + 1))
        return range(low, max(low, high))

    def _placed(self, query: RecordQuery, bounds: range) -> tuple[range, bool]:
        """The window to look at, and whether it is read upwards."""
        if query.after is not None:
            start = min(max(bounds.start, query.after + 1), bounds.stop)
            return range(start, min(start + self._window, bounds.stop)), True
        stop = bounds.stop if query.before is None else max(min(query.before, bounds.stop), bounds.start)
        return range(max(stop - self._window, bounds.start), stop), False

    async def _judge(self, chain: Chain, rows: Sequence[BrowsedRow]) -> list[ReadRecord]:
        keys = await self._keystore.of(chain.id.tenant_id)
        if any(
            keys.public(one.row.key_id) is None for one in rows
        ):  # what is known may be older than the rows
            self._keystore.forget(chain.id.tenant_id)
            keys = await self._keystore.of(chain.id.tenant_id)
        read = await asyncio.to_thread(lambda: [_judged(chain.id, keys, one) for one in rows])
        fault = next((one.fault for one in read if one.fault is not None), None)
        if fault is not None and chain.fault is None:
            chain.quarantine(str(fault))
        return read


def _looked_at(window: range, rows: Sequence[BrowsedRow], limit: int, *, upwards: bool) -> range:
    """The part of the window that was looked at: a full page ends with its last record."""
    if not rows:
        return window
    whole = len(rows) < limit and sum(len(one.row.signed_text or "") for one in rows) * 4 < PAGE_BYTES
    if whole:
        return window
    last = rows[-1].row.seq
    return range(window.start, last + 1) if upwards else range(last, window.stop)


def _judged(chain_id: ChainId, keys: TenantKeys, one: BrowsedRow) -> ReadRecord:
    try:
        return ReadRecord(one.row, _proven(chain_id, keys, one), None)
    except ChainError as error:
        return ReadRecord(one.row, None, error)


def _proven(chain_id: ChainId, keys: TenantKeys, one: BrowsedRow) -> VerifiedRecord:
    """The record of a row, with its columns and its link.

    Raises:
        ChainError: says what does not hold.
    """
    row = one.row
    key = keys.public(row.key_id)
    if key is None:
        raise SignatureError("the row names a key that is not the tenant's", seq=row.seq)
    record = verify_detached(signed_of(row), key)
    check_mirror(chain_id, row, record, key)
    if record.seq and one.before_hash != record.prev_hash:
        what = "is missing" if one.before_hash is None else "has another hash than prev_hash says"
        raise LinkError(f"the record before it {what}", seq=record.seq)
    return record
