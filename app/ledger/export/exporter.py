"""The service's exports: few at a time, signed at their end, and each on record, however it ended.

No export leaves without a record of it: that it begins is on record before the first row is read, and that it
was whole before the end of the file is given away. One that breaks off is told as broken; what a killed
process had begun stands on record without an end. The records are those of the tenant's administration chain;
an export of that chain holds the record that it began, and never its own end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import db.exports
from app.chain.statement import signed_statement, statement_hash, statement_text
from app.errors import TooManyRequestsError, TrailsError
from app.ledger.export.run import Run, Seal
from app.ledger.export.told import Sums
from app.ledger.export.wanted import MEDIA_TYPES, Format, Wanted, file_name
from app.ledger.keys.sealing import signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.chain.strict import JsonObject
    from app.ledger.keys.keystore import Keystore
    from app.ledger.tenancy.administration import Administration
    from app.principal import Grant
    from db.pool import Pool

SHARE: Final = 4
"""One in so many connections may be an export's, one at least; of these a tenant has half, one at least."""

_BUSY: Final = "another export is under way, which has to end first; try again later"

_log: Final = logging.getLogger("trails.export")


class Exported:
    """An export under way, as whoever hands it on sees it.

    Attributes:
        file_name: a name for the file: letters, digits and ``. _ -``.
        media_type: of the file.
        is_partial: whether records of a chain are left out.
        pieces: its bytes; whoever gets the last of them has all of it.
        sums: what was exported so far.
        total: records to export, where that is known before.
    """

    def __init__(self, run: Run, pieces: AsyncIterator[bytes]) -> None:
        wanted = run.told.wanted
        self.file_name = file_name(run.told.slug or "tenant", wanted, run.told.taken_at)
        self.media_type = MEDIA_TYPES[wanted.format]
        self.is_partial = wanted.view is None and not wanted.whole_chains
        self.pieces = pieces
        self.sums = run.sums
        self.total = run.total


class Exporter:
    """Exports of the tenants of one process."""

    def __init__(self, pool: Pool, keystore: Keystore, administration: Administration) -> None:
        self._pool = pool
        self._keystore = keystore
        self._administration = administration
        self._running: Counter[UUID] = Counter()
        self.ended: Counter[tuple[Format, bool]] = Counter()
        """Exports that were begun and have ended, by their form and whether they were whole."""

        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits until what broke off is told."""
        await asyncio.gather(*self._telling, return_exceptions=True)

    @asynccontextmanager
    async def exporting(self, grant: Grant, wanted: Wanted) -> AsyncIterator[Exported]:
        """An export, whose pieces can be read while the block runs.

        Raises:
            BadRequestError: it cannot be had like this; says why.
            TooManyRequestsError: too many exports are under way.
            NotFoundError: the tenant has no such agent.
            TenantQuarantinedError: the administration chain does not verify, so that nothing can be told.
            UnavailableError: the database is away, or what signs; within the block: it went away.
        """
        wanted.check()
        with self._place(grant.tenant_id):
            await self._look(grant, wanted)
            telling = _Telling(self._administration, grant, wanted)
            await telling.begun()
            try:
                async with db.exports.snapshot(self._pool, grant.tenant_id) as connection:
                    slug = self._keystore.slug_of(grant.tenant_id)
                    run = await Run.begin(connection, grant.tenant_id, slug, wanted)
                    telling.sums = run.sums
                    yield Exported(run, run.pieces(self._seal(grant.tenant_id), telling.whole))
            finally:
                self.ended[wanted.format, telling.is_whole] += 1
                if not telling.is_whole:
                    await self._tell(telling)

    async def _look(self, grant: Grant, wanted: Wanted) -> None:
        """Refuses what is not there before anything is put on record."""
        async with db.exports.snapshot(self._pool, grant.tenant_id) as connection:
            await Run.begin(connection, grant.tenant_id, None, wanted)

    @contextmanager
    def _place(self, tenant_id: UUID) -> Iterator[None]:
        most = max(1, self._pool.get_max_size() // SHARE)
        if self._running.total() >= most or self._running[tenant_id] >= max(1, most // 2):
            raise TooManyRequestsError(_BUSY)
        self._running[tenant_id] += 1
        try:
            yield
        finally:
            self._running[tenant_id] -= 1
            self._running += Counter()  # those that have none are forgotten

    def _seal(self, tenant_id: UUID) -> Seal:
        async def seal(about: str, says: JsonObject) -> str:
            key = (await self._keystore.of(tenant_id)).newest
            text = statement_text(about, says, key.public.hex)
            return signed_statement(text, await signature(bytes.fromhex(statement_hash(text)), key))

        return seal

    async def _tell(self, telling: _Telling) -> None:
        """Tells that an export broke off; whoever is cancelled does not wait for it, and it is told."""
        task = asyncio.create_task(telling.broken())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        await asyncio.shield(task)


class _Telling:
    """What is put on record of one export."""

    def __init__(self, administration: Administration, grant: Grant, wanted: Wanted) -> None:
        self._administration = administration
        self._grant = grant
        self._what: JsonObject = {
            "export": os.urandom(8).hex(),
            "format": wanted.format.value,
            "filter": wanted.to_json(),
            "complete_chains": wanted.whole_chains,
            "key": grant.key,
        }
        if wanted.one_agent is not None:
            self._what["agent_id"] = wanted.one_agent
        self.sums: Sums | None = None
        self.is_whole = False

    async def begun(self) -> None:
        """Before anything is read."""
        await self._record({"act": "export_begun"})

    async def whole(self, sums: Sums) -> None:
        """Before the end is given away."""
        await self._record({"act": "exported", **sums.on_record()})
        self.is_whole = True

    async def broken(self) -> None:
        """After it broke off; if that cannot be told, the log says so."""
        rows = 0 if self.sums is None else self.sums.rows
        try:
            await self._record({"act": "export_broken", "rows": rows})
        except TrailsError as error:
            _log.warning("a broken export is not on record: %s", error.message)

    async def _record(self, payload: JsonObject) -> None:
        await self._administration.record(self._grant.tenant_id, self._grant.actor, {**payload, **self._what})
