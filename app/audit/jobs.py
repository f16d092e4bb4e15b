"""Several processes share an audit: each proves pieces of the table by itself, in one and the same snapshot.

The auditing process reads where rows stand, once and in order, and gives away piece by piece; it alone knows
what a chain came to. A worker reads the rows of its piece and proves that they are sound **if** the record
before them is the one that they name. The auditing process takes that for verified only where it has verified
everything up to just that record. Whatever is in doubt, for whatever reason, it reads and judges itself, as
if there were no workers: so findings are those of one process, and every row was looked at.

A worker holds one piece at a time (``rows.CHUNK_BYTES`` of text, or one row that is larger) and ends
with the process that it works for. One that dies ends the audit, which then could not be completed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Final

import asyncpg
import msgspec

from app.audit.chain import ChainName, Keys, ProvenRows, RegisteredChain
from app.audit.rows import AuditedRow, Spot, read_rows
from app.audit.session import connected, enter_tenant, reading
from app.audit.walk import Walk, reason_of
from app.chain.keys import PublicKey
from app.chain.record import Head
from app.errors import UnavailableError
from app.workers import DIED, worker_pool
from db.ledger import ChainRow
from db.pool import Connection

ROWS_ALONE: Final = 2_000
"""Rows that are not worth starting processes for."""

_AHEAD: Final = 2
"""Pieces under way for each worker: one that it proves, one that waits for it."""

_NOBODY: Final = ChainName("", "", "")


class Shared(msgspec.Struct, frozen=True):
    """What a worker needs to see what the audit sees: its snapshot, and its tenant if row security binds."""

    url: str
    snapshot: str
    slug: str | None

    def __repr__(self) -> str:
        return f"Shared({self.snapshot})"


class Segment(msgspec.Struct, frozen=True):
    """Rows of one registered chain, one behind the other, and what they are held against.

    ``begins`` says that they are the chain's first; if not, ``in_force`` is a key that may be in force there,
    besides those of ``keys``.
    """

    spots: tuple[Spot, ...]
    entry: ChainRow
    keys: Keys | None
    checkpoints: Mapping[int, str]
    follow_rotation: bool
    begins: bool
    in_force: PublicKey | None

    def before(self, first: AuditedRow) -> tuple[Head, PublicKey] | None:
        """The record that the first row says it follows, and the key that it says it is signed by."""
        row, at_hand = first.trail, [*filter(None, [self.in_force]), *(self.keys or {}).values()]
        if row is None or type(row.seq) is not int or row.seq < 1 or row.prev_hash is None:
            return None
        key = next((key for key in at_hand if key.key_id == row.key_id), None)
        return None if key is None else (Head(row.seq - 1, row.prev_hash, _LONG_AGO), key)


_LONG_AGO: Final = -(2**62)


def prove(segment: Segment, rows: Sequence[AuditedRow]) -> ProvenRows | None:
    """Whether rows are sound if the record before them is the one that they name; None if in any doubt."""
    chain = RegisteredChain(
        _NOBODY,
        segment.entry,
        segment.keys,
        segment.checkpoints,
        rows[0],
        follow_rotation=segment.follow_rotation,
    )
    if not segment.begins:
        before = segment.before(rows[0])
        if before is None:
            return None
        chain.suppose(*before, segment.checkpoints)
    first_us = None
    for row in rows:
        chain.push(row)
        if first_us is None:
            first_us = chain.reached_us
    return None if first_us is None else chain.proven(first_us)


class Crew:
    """Gives pieces to the workers, and takes what they proved in the order of the rows."""

    def __init__(self, connection: Connection, walk: Walk, executor: Executor, jobs: int) -> None:
        self._connection = connection
        self._walk = walk
        self._executor = executor
        self._most = _AHEAD * jobs
        self._under_way: deque[tuple[list[tuple[Spot, ...]], Future[_Answer] | None]] = deque()
        self._last: object = None

    async def take(self, piece: Sequence[Spot]) -> None:
        """The next rows.

        Raises:
            UnavailableError: a worker cannot go on, or is gone.
        """
        parts = [tuple(spots) for _, spots in groupby(piece, key=lambda spot: spot.place)]
        segments = [await self._segment(spots) for spots in parts]
        while len(self._under_way) >= self._most:
            await self._settle()
        self._under_way.append((parts, self._given(segments) if any(segments) else None))

    async def end(self) -> None:
        """There is no further row. Raises as ``take``."""
        while self._under_way:
            await self._settle()

    async def _segment(self, spots: tuple[Spot, ...]) -> Segment | None:
        """What a worker is told of rows of one chain; None for those that this process looks at itself."""
        place = spots[0].place
        begins, self._last = not self._walk.is_at(place) and place != self._last, place
        target = self._walk.target(place)
        if target is None:
            return None
        if not begins and not target.keys:  # only the chain itself says which key is in force
            while self._under_way and not self._walk.is_at(place):
                await self._settle()
        in_force = self._walk.key_at(place)
        if not begins and self._walk.is_at(place) and in_force is None:
            return None  # something was wrong with it before
        return Segment(
            spots=spots,
            entry=target.entry,
            keys=target.keys,
            checkpoints=target.checkpoints_of(spots),
            follow_rotation=target.follow_rotation,
            begins=begins,
            in_force=in_force,
        )

    def _given(self, segments: Sequence[Segment | None]) -> Future[_Answer]:
        try:
            return self._executor.submit(_prove, segments)
        except BrokenProcessPool:
            raise UnavailableError(DIED) from None

    async def _settle(self) -> None:
        """Takes the oldest piece: what was proven and follows, and the rest by a look of our own."""
        parts, future = self._under_way.popleft()
        answer: _Answer = [None] * len(parts) if future is None else await _answered(future)
        if isinstance(answer, str):
            raise UnavailableError(answer)
        for spots, proven in zip(parts, answer, strict=True):
            if proven is None or not self._walk.adopt(spots[0], proven):
                async for row in read_rows(self._connection, spots):
                    self._walk.take(row)
        self._walk.tell()


_Answer = list[ProvenRows | None] | str
"""What was proven of each part of a piece; or why a worker could not look."""


async def _answered(future: Future[_Answer]) -> _Answer:
    try:
        return await asyncio.wrap_future(future)
    except BrokenProcessPool:
        raise UnavailableError(DIED) from None


@asynccontextmanager
async def crew(connection: Connection, walk: Walk, shared: Shared, jobs: int) -> AsyncIterator[Crew]:
    """Workers as long as the block runs; they end with it, and with this process however it ends."""
    executor = worker_pool(jobs, _begin_work, shared)
    try:
        yield Crew(connection, walk, executor, jobs)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)  # a worker ends its piece first


async def shareable(url: str, connection: Connection, slug: str | None) -> str:
    """Why several processes cannot share a snapshot of this database; empty if they can."""
    try:
        async with (
            connection.transaction(isolation="repeatable_read", readonly=True),
            _sharing(Shared(url, await exported(connection), slug)),
        ):
            return ""
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        return reason_of(error)


async def exported(connection: Connection) -> str:
    """The name of the present transaction's snapshot, for others to take on. Errors are asyncpg's."""
    return str(await connection.fetchval("SELECT pg_catalog.pg_export_snapshot()"))


@asynccontextmanager
async def _sharing(shared: Shared) -> AsyncIterator[Connection]:
    """A connection of its own that sees what the audit sees."""
    async with (
        connected(shared.url) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await connection.execute("SET TRANSACTION SNAPSHOT '" + shared.snapshot.replace("'", "") + "'")
        await reading(connection)
        if shared.slug is not None:
            await enter_tenant(connection, shared.slug)
        yield connection


class _Worker:
    """A worker's own side: its connection stays open from the first piece on."""

    def __init__(self, shared: Shared) -> None:
        self._runner = asyncio.Runner()
        self._sharing = _sharing(shared)
        self._connection: Connection | None = None

    def prove(self, segments: Sequence[Segment | None]) -> list[ProvenRows | None]:
        return self._runner.run(self._prove(segments))

    async def _prove(self, segments: Sequence[Segment | None]) -> list[ProvenRows | None]:
        if self._connection is None:
            self._connection = await self._sharing.__aenter__()  # until the process ends
        spots = [spot for segment in segments if segment is not None for spot in segment.spots]
        rows = [row async for row in read_rows(self._connection, spots)]
        return list(_proven(segments, rows))


def _proven(segments: Sequence[Segment | None], rows: list[AuditedRow]) -> Iterator[ProvenRows | None]:
    rest = iter(rows)
    for segment in segments:
        if segment is None:
            yield None
            continue
        mine = [next(rest) for _ in segment.spots]
        try:
            yield prove(segment, mine)
        except Exception:  # noqa: BLE001  whoever looks at it next says what it is
            yield None


_worker: _Worker | None = None


def _begin_work(shared: Shared) -> None:
    global _worker  # noqa: PLW0603  a process works for one audit
    _worker = _Worker(shared)


def _prove(segments: Sequence[Segment | None]) -> _Answer:
    if _worker is None:
        return "it was never begun"
    try:
        return _worker.prove(segments)
    except Exception as error:  # noqa: BLE001  it travels to another process, and is a finding there
        return reason_of(error)
