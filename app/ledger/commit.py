"""Grouped commits: appends of many chains that wait at the same moment share one statement.

A commit costs one write to disk whatever it carries, so the committer takes all appends that wait and
sends them together. An append that another process made stale fails its whole group; each member is then
tried alone, so that one chain's conflict never costs another chain its answer. That is right only when the
group certainly was not written: after a lost answer all members are told that nobody knows, since the same
act appended again would be charged again (case P19).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

import asyncpg

import db.ledger
from app.errors import StaleChainError, UnavailableError
from app.ledger.meter import Meter
from db.errors import translate
from db.pool import ACQUIRE_SECONDS, give_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from db.ledger import SpanRow, TrailRow
    from db.pool import Pool

MAX_GROUP_ROWS = 512
"""Rows in one statement: enough to share the disk write, small enough to hold no lock for long."""

MAX_GROUP_SPANS = 8_192
"""Entries of the index of spans in one statement, unless one append alone has more."""

MAX_GROUP_CHARS = 16 * 1024 * 1024
"""Signed text in one statement, unless one append alone has more: what a statement holds in memory."""

WORTH_APPENDS = 32
WORTH_CHARS = 64 * 1024
PATIENCE_SECS = 0.005
"""While a statement is under way, the next one begins beside it when so many appends wait, when one with so
much text came, or after so long; else when the first has ended.

A statement for one or two appends costs PostgreSQL much more a row than one for twenty. With 64 agents at
once more than half of all statements were for fewer than nine as long as each idle writer began at once.
"""

MAX_WAITING = 20_000
"""Appends that may wait; more are refused at once, since they could only time out."""


class _Append:
    __slots__ = ("began", "chars", "done", "is_written", "rows", "spans")

    def __init__(self, rows: Sequence[TrailRow], spans: Sequence[SpanRow]) -> None:
        self.rows = rows
        self.spans = spans
        self.began = time.perf_counter()
        self.chars = sum(len(row.signed_text) for row in rows)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_written = False

    def settle(self, error: Exception | None) -> None:
        self.is_written = error is None
        if self.done.done():
            return  # its caller has gone away
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Writer:
    """One connection of its own: giving it back to the pool after each commit would cost a round trip."""

    __slots__ = ("_connection", "_keeps", "_pool")

    def __init__(self, pool: Pool, *, keeps: bool) -> None:
        self._pool = pool
        self._keeps = keeps
        self._connection: PoolConnectionProxy[Record] | None = None

    async def write(self, *group: _Append) -> Exception | None:
        """Commits a group; returns what went wrong, since a waiter must always be answered."""
        rows = [row for append in group for row in append.rows]
        spans = [span for append in group for span in append.spans]
        try:
            await db.ledger.append(await self._connected(), rows, spans=spans)
        except StaleChainError as error:
            return error  # a word of the server: the connection is sound
        except Exception as error:  # noqa: BLE001  it is raised again where the append was asked for
            await self.close()
            return error
        return None

    async def rest(self) -> None:
        """Nothing waits any more: a small pool gets its connection back for readers."""
        if not self._keeps:
            await self.close()

    async def close(self) -> None:
        """Gives the connection back, if there is one; a broken one is dropped by the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await give_back(self._pool, connection)

    async def _connected(self) -> PoolConnectionProxy[Record]:
        if self._connection is not None and _is_lost(self._connection):
            await self.close()  # the database went away while nothing was written
        if self._connection is None:
            with translate():
                self._connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        return self._connection


def _is_lost(connection: PoolConnectionProxy[Record]) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # the pool took it back when it broke


class Committer:
    """Writes appends through ``writers`` connections at once; ``append`` returns when it is on disk."""

    def __init__(self, pool: Pool, *, writers: int = 3, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._waiting: deque[_Append] = deque()
        keeps = pool.get_max_size() > writers
        self._writers = writers
        self._idle = [_Writer(pool, keeps=keeps) for _ in range(writers)]
        self._running: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._closed = False

    async def append(self, rows: Sequence[TrailRow], spans: Sequence[SpanRow] = ()) -> None:
        """Commits all of ``rows`` (one act or post of one chain) and the index of their spans, or nothing.

        Raises:
            StaleChainError: the chain moved on; read on and decide again.
            DuplicateKeyError: an idempotency key stands in the chain already.
            DuplicateSpanError: one of the spans is on record already.
            UnavailableError: the database did not confirm; whether it committed is not known.
        """
        if self._closed:
            raise UnavailableError("the service is stopping; try again")
        if len(self._waiting) >= MAX_WAITING:
            raise UnavailableError("too many requests wait for the database; try again")
        append = _Append(rows, spans)
        self._waiting.append(append)
        self._begin_or_wait(append)
        await append.done  # its own: a caller that goes away cancels nobody else's, and not what is written

    @property
    def waiting(self) -> int:
        """Appends that wait for their statement."""
        return len(self._waiting)

    async def close(self) -> None:
        """Waits until all that was accepted is settled, and gives the connections back."""
        self._closed = True
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        for writer in self._idle:
            await writer.close()

    def _begin_or_wait(self, append: _Append) -> None:
        """Whether what waits is worth a statement now, or joins others for a moment."""
        is_quiet = len(self._idle) == self._writers
        if is_quiet or len(self._waiting) >= WORTH_APPENDS or append.chars >= WORTH_CHARS:
            self._start()
        elif self._patience is None and self._idle:
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_SECS, self._start)

    def _start(self) -> None:
        self._be_patient_no_more()
        if self._waiting and self._idle:
            task = asyncio.create_task(self._drain(self._idle.pop()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _drain(self, writer: _Writer) -> None:
        try:
            while self._waiting:
                group = self._take()
                self._meter.groups.add(len(group))
                await _commit(writer, group)
                self._count(group)
            await writer.rest()
        finally:
            self._idle.append(writer)
            self._start()  # for what came in while the writer rested

    def _be_patient_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _count(self, group: list[_Append]) -> None:
        now = time.perf_counter()
        for append in group:
            if append.is_written:
                self._meter.appended(len(append.rows), now - append.began)

    def _take(self) -> list[_Append]:
        """The appends of the next statement: as many as keep it sane, at least one."""
        self._be_patient_no_more()
        group: list[_Append] = []
        rows = spans = chars = 0
        while self._waiting:
            append = self._waiting[0]
            rows, spans, chars = rows + len(append.rows), spans + len(append.spans), chars + append.chars
            is_full = rows > MAX_GROUP_ROWS or spans > MAX_GROUP_SPANS or chars > MAX_GROUP_CHARS
            if group and is_full:
                break
            group.append(self._waiting.popleft())
        return group


async def _commit(writer: _Writer, group: list[_Append]) -> None:
    """Writes a group at once; when it was refused, each member alone, so that it fails for its own reason."""
    error = await writer.write(*group)
    is_final = error is None or len(group) == 1 or not _surely_unwritten(error)
    for append in group:
        append.settle(error if is_final else await writer.write(append))


def _surely_unwritten(error: Exception) -> bool:
    """Whether the statement certainly left nothing behind, so that its parts may be written again.

    A lost connection or a time-out leaves it open; a lock that was not to be had is the server's own word.
    """
    if isinstance(error, StaleChainError) or not isinstance(error, UnavailableError):
        return True
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)
