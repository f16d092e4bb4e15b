"""Batches: the records between two snapshots, chain after chain, as pages that can be resumed anywhere.

Within a chain ``seq`` has no gaps and each record is committed after the one before it. So what a snapshot
shows of a chain is its beginning, up to some record, and the records between two snapshots are those from one
place of each chain to another. They are found from the chains' heads, by the primary key alone.

Order: of one chain by ``seq``; chains by their ids, so that a page costs what it holds and no sort; what is
committed later comes in a later batch. Between chains the order says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

import db.feed
import db.heads
import db.ledger
from app.errors import CursorGoneError
from app.ledger.feed.cursor import HASH_BYTES, Anchor, Cursor, Place, Position, Source
from app.ledger.feed.snapshot import Snapshot
from app.moment import from_microseconds
from db.feed import Unseen
from db.pool import tenant_transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from db.feed import FeedRow, Moment
    from db.pool import Connection, Pool

SLICE: Final = 2_000
"""Chains whose heads one statement reads: some ten milliseconds of the database's time."""

SLICES: Final = 25
"""Slices that one page looks at: the answer comes in time, whatever the number of chains."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Text of one page, and one record more at most."""

OLD: Final = 2**31
"""Transactions after which a snapshot may not be told from one to come: a row's transaction has 32 bits."""

_ROUND: Final = 2**32
_FIRST: Final = UUID(int=0)


class Wanted(msgspec.Struct, frozen=True):
    """Which records: of these kinds and these agents; None: of all."""

    kinds: tuple[str, ...] | None = None
    agents: tuple[str, ...] | None = None

    def takes(self, row: FeedRow) -> bool:
        """Whether a record is one of them."""
        return (self.kinds is None or row.kind in self.kinds) and (
            self.agents is None or row.agent_id in self.agents
        )


ALL: Final = Wanted()


class Page(msgspec.Struct, frozen=True):
    """A part of a batch.

    Attributes:
        rows: those that are wanted, with their text.
        next: where to go on.
        upto: the snapshot that the batch goes up to.
        complete: whether that was all of it.
        is_new: whether the batch began with this page: once it is complete, all that is committed was read.
        last: the last record that was read, wanted or not.
    """

    rows: list[FeedRow]
    next: Position
    upto: Snapshot
    complete: bool
    is_new: bool
    last: Anchor | None


class Batches:
    """Reads pages of a tenant's records."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def now(self, tenant_id: UUID) -> tuple[Source, Snapshot]:
        """What is committed at this moment, and in which database."""
        async with tenant_transaction(self._pool, tenant_id) as connection:
            moment = await db.feed.moment(connection)
        return _source(moment), Snapshot.parse(moment.snapshot)

    async def require(self, tenant_id: UUID, cursor: Cursor) -> None:
        """Refuses a cursor at which this database cannot go on.

        Raises:
            CursorGoneError: it was made from another database, or what it had read is not here.
        """
        anchor = cursor.anchor
        async with tenant_transaction(self._pool, tenant_id) as connection:
            _require(await db.feed.moment(connection), cursor.source, cursor.position)
            if anchor is None:
                return
            place = UUID(bytes=anchor.log_uuid), anchor.seq
            found = await db.heads.hashes_at(connection, tenant_id, [place])
        if not found.get(place, "").startswith(anchor.hash.hex()):
            raise CursorGoneError("the last record that was read is not in this database")

    async def page(
        self, tenant_id: UUID, source: Source, position: Position, *, limit: int, wanted: Wanted = ALL
    ) -> Page:
        """The next records, at most ``limit``; those that are not wanted count, too.

        Raises:
            CursorGoneError: this is not the database that ``source`` says.
            UnavailableError: the database is away.
        """
        async with tenant_transaction(self._pool, tenant_id) as connection:
            moment = await db.feed.moment(connection)
            _require(moment, source, position)
            now = Snapshot.parse(moment.snapshot)
            upto, place = position.upto or now, position.place
            reading = _Reading(connection, tenant_id, position, upto, is_round=now.xmax > _ROUND)
            if upto == position.since:
                return reading.page(None)
            return reading.page(await reading.read(place, limit, wanted))


class _Reading:
    """One page that is being read."""

    def __init__(
        self, connection: Connection, tenant_id: UUID, position: Position, upto: Snapshot, *, is_round: bool
    ) -> None:
        self._connection = connection
        self._tenant_id = tenant_id
        self._position = position
        self._upto = upto
        self._is_round = is_round
        self._rows: list[FeedRow] = []
        self._last: FeedRow | None = None
        self._room = 0
        self._bytes = PAGE_BYTES

    def page(self, place: Place | None) -> Page:
        """What was read; ``place`` is where the batch goes on, None at its end."""
        if place is None:
            following = Position(self._upto)
        else:
            following = msgspec.structs.replace(self._position, upto=self._upto, place=place)
        last = None if self._last is None else anchor_of(self._last)
        is_new = self._position.upto is None
        return Page(self._rows, following, self._upto, complete=place is None, is_new=is_new, last=last)

    async def read(self, place: Place | None, limit: int, wanted: Wanted) -> Place | None:
        """Reads ``limit`` records behind ``place``; returns where the batch goes on, None at its end."""
        self._room = limit
        after = _FIRST
        if place is not None:
            after = UUID(bytes=place.log_uuid)
            if place.seq is not None:
                rest = await self._rest(after, place.seq)
                if (stopped := await self._read_chains(rest, wanted)) is not None:
                    return stopped
        for _ in range(SLICES):
            swept = await self._sweep(after, wanted)
            if (stopped := await self._read_chains(swept.chains, wanted)) is not None:
                return stopped
            if swept.examined < SLICE or swept.upto is None:
                return None
            after = swept.upto
        return Place(after.bytes, None)

    async def _rest(self, log_uuid: UUID, seq: int) -> list[Unseen]:
        """What is left of a chain of which a part was read."""
        head = await db.ledger.head(self._connection, self._tenant_id, log_uuid)
        return [] if head is None or head[0] <= seq else [Unseen(log_uuid, seq + 1, head[0])]

    async def _sweep(self, after: UUID, wanted: Wanted) -> db.feed.Swept:
        position = self._position
        not_before = None if position.not_before_us is None else from_microseconds(position.not_before_us)
        return await db.feed.changed(
            self._connection,
            self._tenant_id,
            after=after,
            limit=SLICE,
            since=None if position.since is None else str(position.since),
            not_before=not_before,
            agents=wanted.agents,
        )

    async def _read_chains(self, chains: Sequence[Unseen], wanted: Wanted) -> Place | None:
        """Reads the chains' records; returns where it stopped, for want of room, before all were read."""
        waiting = list(reversed(chains))
        while waiting:
            ranges = self._fitting(waiting)
            if not ranges:
                return self._before(waiting[-1])
            found = await db.feed.rows(
                self._connection,
                self._tenant_id,
                ranges,
                upto=str(self._upto),
                most_bytes=self._bytes,
                kinds=wanted.kinds,
            )
            self._room -= len(found)
            self._bytes -= sum(row.size for row in found)
            stopped = await self._take(ranges, found, {each.log_uuid: each.head for each in chains})
            if stopped is not None:
                return stopped
        return None

    def _fitting(self, waiting: list[Unseen]) -> list[tuple[UUID, int, int]]:
        """The next chains whose records have room, as ranges; the last one may be cut."""
        ranges: list[tuple[UUID, int, int]] = []
        room = self._room if self._bytes > 0 else 0
        while waiting and room > 0:
            chain = waiting.pop()
            last = min(chain.head, chain.first + room - 1)
            ranges.append((chain.log_uuid, chain.first, last))
            room -= last - chain.first + 1
        return ranges

    def _before(self, chain: Unseen) -> Place | None:
        """The place before a chain of which nothing was read."""
        if self._last is not None:
            return Place(self._last.log_uuid.bytes, self._last.seq)
        # Nothing was read at all: the chain begins where the page did.
        return Place((chain.log_uuid.int - 1).to_bytes(16, "big"), None)

    async def _take(
        self, ranges: list[tuple[UUID, int, int]], found: list[FeedRow], heads: dict[UUID, int]
    ) -> Place | None:
        """Keeps what belongs to the batch; returns where it stopped when a chain was not read to its end."""
        is_cut = self._bytes <= 0
        by_chain: dict[UUID, list[FeedRow]] = {}
        for row in found:
            by_chain.setdefault(row.log_uuid, []).append(row)
        for log_uuid, _, last in ranges:
            rows = by_chain.get(log_uuid, [])
            if not rows and is_cut:
                return self._after_last()
            count = await self._count_shown(log_uuid, rows)
            for row in rows[:count]:
                self._last = row
                if row.signed_text is not None:
                    self._rows.append(row)
            if count < len(rows):
                continue  # what follows was committed after the batch
            if is_cut and found and rows and rows[-1] is found[-1]:
                return Place(log_uuid.bytes, rows[-1].seq)
            if last < heads[log_uuid]:
                return Place(log_uuid.bytes, last)
        return None

    def _after_last(self) -> Place | None:
        return None if self._last is None else Place(self._last.log_uuid.bytes, self._last.seq)

    async def _count_shown(self, log_uuid: UUID, rows: list[FeedRow]) -> int:
        """How many of a chain's next records the batch holds: up to the last that its snapshot shows."""
        count = next((number for number in range(len(rows), 0, -1) if rows[number - 1].shown), 0)
        if self._is_round and count < len(rows):
            upto = await db.feed.newest_shown(self._connection, self._tenant_id, log_uuid, str(self._upto))
            count = sum(row.seq <= upto for row in rows)
        return count


def anchor_of(row: FeedRow) -> Anchor:
    """The record as a cursor names it."""
    return Anchor(row.log_uuid.bytes, row.seq, bytes.fromhex(row.hash[: 2 * HASH_BYTES]))


def _source(moment: Moment) -> Source:
    return Source(moment.system, moment.timeline, moment.database)


def _require(moment: Moment, source: Source, position: Position) -> None:
    """Refuses snapshots that this database cannot read.

    Raises:
        CursorGoneError: says why.
    """
    if _source(moment) != source:
        raise CursorGoneError("it is of another database, or of this one before a restore or a failover")
    now = Snapshot.parse(moment.snapshot)
    for snapshot in (position.since, position.upto):
        if snapshot is None:
            continue
        if snapshot.xmax > now.xmax:
            raise CursorGoneError("it knows of transactions that this database has not had: it was set back")
        if now.xmax - snapshot.xmin >= OLD:
            raise CursorGoneError(f"more than {OLD} transactions have come since")
