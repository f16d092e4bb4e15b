"""Keeps a file of the newest heads of all chains, on a schedule, and says when the table is behind it.

Of several processes one does the work of a round; the others read what it wrote. What is written are heads
of committed rows. A head gives way to a later one only when the table still holds it, so that a database that
was set back never overwrites what was seen before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import db.access
import db.heads
import db.ledger
from app import heads as files
from app.chain.record import Head
from app.errors import StartupError, TrailsError
from app.heads import Hashes, KeptHeads
from app.ledger.watch.seen import heads_of, problem_of

if TYPE_CHECKING:
    from uuid import UUID

    from app.ledger.meter import HeadsMeter
    from app.ledger.watch.seen import Seen
    from db.heads import HeadRow
    from db.pool import Pool

GONE: Final = "the chain was seen before and is not in the database"

STOP_SECS: Final = 10.0
"""How long the end of the service waits for a round that is under way."""

_FRESH: Final = 0.5
"""A file that is younger than this share of a round was written by another process in this round."""

_log: Final = logging.getLogger("trails.heads")


class Behind(msgspec.Struct, frozen=True):
    """A chain that has not what was seen of it.

    Attributes:
        name: as the file calls it.
        told: ``tenant/agent``, as far as it is known.
        problem: which record is missing.
        tenant_id: whose it is; None for a chain that the registry does not have.
        agent_id: which agent's.
        seen: what was seen of it.
        head: its newest record now; None when there is none.
    """

    name: str
    told: str
    problem: str
    tenant_id: UUID | None
    agent_id: str | None
    seen: Hashes
    head: tuple[int, str] | None

    def __str__(self) -> str:
        return f"{self.told or self.name}: {self.problem}"


class Compared(msgspec.Struct, frozen=True):
    """A file of heads brought up to date with the table, and the chains of which it was not."""

    kept: KeptHeads
    behind: tuple[Behind, ...]


async def compare(pool: Pool, kept: KeptHeads) -> Compared:
    """Puts the table's heads in the place of those that it still holds; all others stay as they are.

    Raises:
        UnavailableError: the database is away.
    """
    heads, told = dict(kept.heads), dict(kept.told)
    behind: list[Behind] = []
    known: set[str] = set()
    async for tenant_id, slug in _tenants(pool):
        async for rows in db.heads.each_page(pool, tenant_id):
            lost = await _behind(pool, kept, tenant_id, slug, rows)
            behind += lost.values()
            for row in rows:
                name, called = str(row.log_uuid), f"{slug}/{row.agent_id}"
                known |= {name, called, row.agent_id}
                if row.seq is not None and row.hash is not None and row.log_uuid not in lost:
                    heads[name], told[name] = {row.seq: row.hash}, called
    behind += [
        Behind(name, kept.told.get(name, ""), GONE, None, None, seen, None)
        for name, seen in kept.heads.items()
        if name not in known
    ]
    return Compared(KeptHeads(heads, told), tuple(behind))


async def _tenants(pool: Pool) -> AsyncIterator[tuple[UUID, str]]:
    after = ""
    while rows := await db.access.tenants(pool, after=after):
        for row in rows:
            yield row.tenant_id, row.slug
        after = rows[-1].slug


async def _behind(
    pool: Pool, kept: KeptHeads, tenant_id: UUID, slug: str, rows: list[HeadRow]
) -> dict[UUID, Behind]:
    """Those of the chains that have not what was seen of them."""
    seen = {row.log_uuid: heads_of(kept, slug, row.agent_id, row.log_uuid) for row in rows}
    held = {row.log_uuid: {row.seq: row.hash} for row in rows}
    places = [
        (row.log_uuid, seq)
        for row in rows
        for seq in seen[row.log_uuid]
        if row.seq is not None and seq < row.seq
    ]
    for (log_uuid, seq), digest in (
        (await db.heads.hashes_at(pool, tenant_id, places)).items() if places else ()
    ):
        held[log_uuid][seq] = digest
    lost = {}
    for row in rows:
        found = {seq: digest for seq, digest in held[row.log_uuid].items() if seq is not None and digest}
        problem = problem_of(seen[row.log_uuid], found)
        if problem is not None:
            head = None if row.seq is None or row.hash is None else (row.seq, row.hash)
            called = f"{slug}/{row.agent_id}"
            lost[row.log_uuid] = Behind(
                str(row.log_uuid), called, problem, tenant_id, row.agent_id, seen[row.log_uuid], head
            )
    return lost


class _Version(msgspec.Struct, frozen=True):
    """Which file it was that was read: ``written`` in seconds since 1970."""

    inode: int
    size: int
    written: float


def _version(path: Path) -> _Version | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return _Version(found.st_ino, found.st_size, found.st_mtime)


def unusable(path: Path, error: OSError | ValueError) -> StartupError:
    """The refusal of a file of heads that cannot be used."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return StartupError(f"TRAILS_HEADS_FILE {path}: {reason}")


class HeadsKeeper:
    """One process's part in keeping the file at ``path``, a round every ``secs`` seconds.

    The disk may be another machine's and stand still: only threads beside the event loop touch it.
    """

    def __init__(self, pool: Pool, seen: Seen, meter: HeadsMeter, path: Path, secs: float) -> None:
        self._pool = pool
        self._seen = seen
        self._meter = meter
        self._path = path
        self._secs = secs
        self._alarmed: frozenset[str] = frozenset()
        self._read: _Version | None = None
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """A first round, then one every so often as long as the block runs.

        Raises:
            StartupError: the file cannot be read or written; says why.
            UnavailableError: the database is away.
        """
        try:
            await self.round(first=True)
        except (OSError, ValueError) as error:
            raise unusable(self._path, error) from error
        task = asyncio.create_task(self._rounds())
        try:
            yield
        finally:
            self._stopping.set()
            await asyncio.wait([task], timeout=STOP_SECS)
            task.cancel()

    async def _rounds(self) -> None:
        while not await self._is_over():
            try:
                await self.round()
            except (OSError, ValueError, TrailsError) as error:
                self._meter.failures += 1
                _log.error("heads were not written to %s: %s", self._path, error)
            except Exception:  # noqa: BLE001  a defect must not end the keeping without a word
                self._meter.failures += 1
                _log.exception("heads were not written to %s, by a defect", self._path)

    async def _is_over(self) -> bool:
        """Waits for the next round, or for the end."""
        try:
            await asyncio.wait_for(self._stopping.wait(), self._secs)
        except TimeoutError:
            return False
        return True

    async def round(self, *, first: bool = False) -> None:
        """Writes the heads of now, unless another process has just done so; then takes up what stands there.

        Raises:
            OSError: the file cannot be read or written.
            ValueError: it is no file of heads.
            UnavailableError: the database is away.
        """
        lock = await asyncio.to_thread(files.take_lock, self._path)
        try:
            is_old = await asyncio.to_thread(self._take_up)
            if lock is not None and (first or is_old):
                compared = await compare(self._pool, self._seen.kept)
                await asyncio.to_thread(self._replace, compared.kept)
                self._tell(compared.behind)
            else:
                self._meter.behind = len(self._seen.refused)
        finally:
            if lock is not None:
                await asyncio.to_thread(os.close, lock)
        self._meter.at = time.time()
        await self._release()

    def _take_up(self) -> bool:
        """Reads the file, if it is not the one that was read last; whether it was written some time ago.

        One that is gone takes nothing with it that was seen. A time to come says that a clock was set back.
        """
        found = _version(self._path)
        if found is None:
            self._read = None
            return True
        if found != self._read:
            self._seen.kept, self._read = files.read(self._path), found
        return not 0 <= time.time() - found.written < _FRESH * self._secs

    def _replace(self, kept: KeptHeads) -> None:
        """Writes what is new; a file that says it already is only dated."""
        if self._read is not None and kept == self._seen.kept:
            self._path.touch()
        else:
            files.replace(self._path, kept)
        self._seen.kept, self._read = kept, _version(self._path)

    def _tell(self, behind: tuple[Behind, ...]) -> None:
        """An event for each chain that was not behind a moment ago, and for each that is so no more."""
        said = frozenset(map(str, behind))
        for line in sorted(said - self._alarmed):
            _log.error("heads: %s; bring a newer backup, or accept the loss: trails heads accept", line)
        for line in sorted(self._alarmed - said):
            _log.warning("heads: settled: %s", line)
        self._alarmed = said
        self._meter.behind = len(behind)

    async def _release(self) -> None:
        """Lets chains go on that were refused for a head which is accepted, or there again."""
        for log_uuid, (chain, reason) in list(self._seen.refused.items()):
            found = await db.ledger.head(self._pool, chain.id.tenant_id, log_uuid)
            head = None if found is None else Head(*found, timestamp_us=0)
            if await self._seen.problem(chain.id, head) is None:
                async with chain.exclusively():
                    del self._seen.refused[log_uuid]
                    if chain.fault == reason:
                        chain.release()
