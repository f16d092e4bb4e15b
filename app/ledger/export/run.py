"""One export: what is read in one snapshot becomes the bytes of one file, piece by piece.

It needs a connection whose transaction sees the tenant, and nothing else of the service: the command line
exports by it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import db.exports
from app.chain.statement import statement_text
from app.errors import NotFoundError
from app.ledger.export.bundle import Bundle
from app.ledger.export.parquet import Parquet
from app.ledger.export.tables import BareCsv, Csv
from app.ledger.export.told import Counting, Sums, Told
from app.ledger.export.wanted import VIEWS, Format, Wanted
from app.ledger.export.writers import BareLines, Columns, Lines, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.chain.strict import JsonObject
    from db.exports import Chain
    from db.pool import Connection

JOINED_BYTES: Final = 64 * 1024
"""Pieces are put together until they are so long."""

_WITH_TRAILER: Final[Mapping[Format, type[Writer]]] = {
    Format.JSONL: Lines,
    Format.CSV: Csv,
    Format.PARQUET: Parquet,
    Format.BUNDLE: Bundle,
}
_WITHOUT: Final[Mapping[Format, type[Writer]]] = {Format.JSONL: BareLines, Format.CSV: BareCsv}

Seal = Callable[[str, "JsonObject"], Awaitable[str]]
"""Makes a statement, signed if it can be, of what it is about and what it says."""

Ending = Callable[[Sums], Awaitable[None]]
"""Is called when all was read, before the end of the file is given away."""


async def unsigned(about: str, says: JsonObject) -> str:
    """A statement by nobody: where the tenant's key is out of reach."""
    return statement_text(about, says, None)


async def nothing(_sums: Sums) -> None:
    """Nobody is told of the end."""


class Run:
    """An export that is under way.

    Attributes:
        told: whose, of what, of which moment.
        sums: what was exported so far.
        chains: those to export; None for rows of a view.
        total: records to export, where that is known before.
    """

    def __init__(
        self, connection: Connection, told: Told, chains: list[Chain] | None, writer: Writer
    ) -> None:
        self.told = told
        self.sums = Sums()
        self.chains = chains
        whole = chains is not None and told.wanted.whole_chains
        self.total = sum(chain.length for chain in chains or ()) if whole else None
        self._connection = connection
        self._writer = writer

    @classmethod
    async def begin(cls, connection: Connection, tenant_id: UUID, slug: str | None, wanted: Wanted) -> Run:
        """Looks what there is to export. ``slug`` is what the tenant is called, if that is known.

        Raises:
            NotFoundError: the tenant has no such agent.
            BadRequestError: the form cannot be written here.
            UnavailableError: the database is away.
        """
        told = Told(
            tenant_id=tenant_id,
            slug=slug,
            taken_at=await db.exports.taken_at(connection),
            wanted=wanted,
            keys=tuple(await db.exports.public_keys(connection, tenant_id)),
        )
        chains = await db.exports.chains(connection, tenant_id, wanted.agents)
        missing = set(wanted.agents or ()) - {chain.agent_id for chain in chains}
        if missing:
            raise NotFoundError(f"agent {min(missing)} not found" if wanted.view else "agent not found")
        columns: Columns = db.exports.RECORD_COLUMNS
        if wanted.view is not None:
            columns = await db.exports.columns(connection, wanted.view)
        form = _WITH_TRAILER[wanted.format]
        if not wanted.trailer:
            form = _WITHOUT.get(wanted.format, form)
        return cls(connection, told, None if wanted.view else chains, form(told, columns))

    async def pieces(self, seal: Seal = unsigned, ending: Ending = nothing) -> AsyncIterator[bytes]:
        """The file's bytes, in pieces of about a MiB; none is empty. Whoever gets the last one has it whole.

        Raises:
            UnavailableError: the database, or what signs, went away: what was given so far is no whole file.
        """
        waiting = b""
        async for piece in self._content():
            waiting += self.sums.took(piece)
            if len(waiting) >= JOINED_BYTES:
                yield waiting
                waiting = b""
        last = await self._end(seal, ending)
        if waiting or last:
            yield waiting + last

    async def _content(self) -> AsyncIterator[bytes]:
        """All but the end."""
        writer = self._writer
        yield writer.begin()
        if self.chains is None:
            async for piece in self._view():
                yield piece
        for chain in self.chains or ():
            async for piece in self._chain(chain):
                yield piece
        if writer.has_statement:
            yield await asyncio.to_thread(writer.close)

    async def _end(self, seal: Seal, ending: Ending) -> bytes:
        """What makes the file whole: its statement, or of a file without one what was held back."""
        writer = self._writer
        if not writer.has_statement:
            last = self.sums.took(writer.close())
            await ending(self.sums)
            return last
        statement = await seal(writer.about, writer.says(self.sums))
        await ending(self.sums)
        return await asyncio.to_thread(writer.end, statement)

    async def _view(self) -> AsyncIterator[bytes]:
        wanted = self.told.wanted
        view = VIEWS[wanted.view or ""]
        found = db.exports.rows(self._connection, self.told.tenant_id, view, wanted.agents, wanted.between)
        async for rows in found:
            self.sums.rows += len(rows)
            yield await asyncio.to_thread(self._writer.rows, rows)

    async def _chain(self, chain: Chain) -> AsyncIterator[bytes]:
        count = Counting(chain)
        yield self._writer.begin_chain(chain)
        found = db.exports.records(
            self._connection, self.told.tenant_id, chain, self.told.wanted.between, after=(-1, "")
        )
        async for records in found:
            count.took(records)
            self.sums.rows += len(records)
            # Beside the event loop: packing takes a while, and others are served by it.
            yield await asyncio.to_thread(self._writer.records, records)
        end = count.end()
        self.sums.ended(end)
        yield self._writer.end_chain(end)
