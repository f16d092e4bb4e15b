"""Exports of a whole tenant, of a view, in part, and as a bundle: the files that the service serves.

Whoever has the service's own means (the master key, and a database role that reaches its own) exports as the
service does, with a signed end and on record. Who only reads gets the same file with an unsigned end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from app.audit.export import exporting
from app.cli.local import local_ledger, root_grant
from app.cli.on_record import not_on_record
from app.cli.output import Output, Show, Writing, output, progress
from app.errors import TrailsError
from app.ledger.export.told import Sums
from app.ledger.export.wanted import Wanted
from app.principal import Permission
from app.settings import Settings
from db.schema import DEFAULT_TENANT_SLUG


class Summary(msgspec.Struct, frozen=True):
    """What was exported; ``told`` says whether it is on record, and so whether its end is signed."""

    file: str
    wanted: Wanted
    sums: dict[str, Any]
    told: str
    on_record: bool

    @property
    def is_partial(self) -> bool:
        """Whether records of chains are left out."""
        return self.wanted.view is None and not self.wanted.whole_chains

    def to_json(self) -> str:
        """The summary as one line of JSON."""
        return json.dumps(
            {
                "file": self.file,
                "format": self.wanted.format.value,
                "filter": self.wanted.to_json(),
                "complete_chains": self.wanted.whole_chains,
                **self.sums,
                "signed": self.on_record,
                "on_record": self.on_record,
            }
        )


class _Source(msgspec.Struct, frozen=True):
    """Where the bytes come from."""

    pieces: AsyncIterator[bytes]
    sums: Sums
    total: int | None
    told: str
    on_record: bool


async def export_whole(
    settings: Settings, url: str, wanted: Wanted, tenant: str | None, to: Output
) -> Summary:
    """Writes an export.

    Raises:
        TrailsError: it cannot be had; says why.
        CommandError: the file is there, or cannot be written.
    """
    async with _source(settings, url, wanted, tenant) as source:
        with output(to) as file, progress(source.total, shown=to.shown) as show:
            await _write(file, source, show)
        return Summary(to.target, wanted, source.sums.on_record(), source.told, source.on_record)


async def _write(file: Writing, source: _Source, show: Show) -> None:
    async for piece in source.pieces:
        file.write(piece)
        show(source.sums.rows)


@asynccontextmanager
async def _source(settings: Settings, url: str, wanted: Wanted, tenant: str | None) -> AsyncIterator[_Source]:
    async with AsyncExitStack() as stack:
        try:
            ledger = await stack.enter_async_context(local_ledger(settings))
            tenant_id = await ledger.tenant_id(tenant or DEFAULT_TENANT_SLUG)
        except TrailsError as error:
            run = await stack.enter_async_context(exporting(url, wanted, tenant=tenant))
            yield _Source(run.pieces(), run.sums, run.total, not_on_record(error), on_record=False)
            return
        granted = root_grant(tenant_id, Permission.EXPORT)
        exported = await stack.enter_async_context(ledger.export(granted, wanted))
        told = "on record in the tenant's administration chain"
        yield _Source(exported.pieces, exported.sums, exported.total, told, on_record=True)
