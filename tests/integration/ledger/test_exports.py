"""The ledger's exports: how many at once, what they hold in memory, and what is told of them (T15)."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.errors import TooManyRequestsError, UnavailableError
from app.ledger import Ledger
from app.ledger.export.exporter import Exporter
from app.ledger.export.wanted import Format, Wanted
from app.ledger.tenancy.administration import NewTenant
from app.principal import ADMINISTRATION, Grant, Permission, Principal, Role, grant
from db.schema import DEFAULT_TENANT_ID
from tests.support.faults import rounds
from tests.support.ledgers import Caller, Table
from tests.support.long_chains import lengthen

MIB = 1024 * 1024
RECORDS = rounds(2_000, 20_000)
CHARS = 12_000
"""Of each record, after encoding: 32 MB in all, 320 in the long form."""

MOST = 24 * MIB
"""What an export may hold: a piece as it was read, as it is written, and a row group of Parquet."""


def auditor() -> Grant:
    return grant(Principal(DEFAULT_TENANT_ID, Role.AUDITOR, "auditor"), Permission.EXPORT)


async def acts(table: Table) -> list[dict[str, Any]]:
    """What is on record of exports."""
    payloads = [record["payload"] for record in await table.records(ADMINISTRATION)]
    return [payload for payload in payloads if payload.get("act", "").startswith("export")]


async def test_an_exports_memory_does_not_grow_with_what_it_exports(ledger: Ledger, agent: Caller) -> None:
    await lengthen(ledger, agent.agent, RECORDS, chars=CHARS)
    for form in Format:
        size = 0
        tracemalloc.start()
        try:
            async with ledger.export(auditor(), Wanted(format=form)) as exported:
                async for piece in exported.pieces:
                    size += len(piece)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert exported.sums.rows > RECORDS
        assert size > RECORDS * CHARS / 3, form
        assert peak < MOST, (form, peak)


async def test_exports_are_few_at_a_time_and_fewer_of_one_tenant(ledger: Ledger, agent: Caller) -> None:
    """Of eight connections two, and one a tenant; a place is free again as soon as an export ends."""
    del agent
    tenants = [DEFAULT_TENANT_ID]
    for slug in ("one", "two"):
        tenant_id = (await _tenant(ledger, slug)).tenant_id
        tenants.append(tenant_id)
        await Caller(ledger, "theirs", tenant_id).observe()
    first, second, third = (
        grant(Principal(tenant, Role.AUDITOR, "auditor"), Permission.EXPORT) for tenant in tenants
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(ledger.export(first, Wanted()))
        with pytest.raises(TooManyRequestsError):
            async with ledger.export(first, Wanted()):
                pass
        await stack.enter_async_context(ledger.export(second, Wanted()))
        with pytest.raises(TooManyRequestsError):
            async with ledger.export(third, Wanted()):
                pass
    async with ledger.export(third, Wanted()) as exported:
        assert b"".join([piece async for piece in exported.pieces]).count(b'"log_id":"theirs"') == 1


async def _read(ledger: Ledger, pieces: list[bytes]) -> None:
    async with ledger.export(auditor(), Wanted()) as exported:
        async for piece in exported.pieces:
            pieces.append(piece)  # noqa: PERF401  what came before an error counts


async def _tenant(ledger: Ledger, slug: str) -> Any:
    made, _ = await ledger.administration.create_tenant(NewTenant(slug, slug.title(), "Ada"), "root")
    return made


async def test_t15_an_export_that_nobody_reads_to_its_end_is_told_as_broken(
    ledger: Ledger, agent: Caller, table: Table
) -> None:
    del agent
    async with ledger.export(auditor(), Wanted()) as exported:
        del exported
    assert [act["act"] for act in await acts(table)] == ["export_begun", "export_broken"]


async def test_t15_an_export_whose_reader_is_cancelled_is_told_as_broken(
    ledger: Ledger, agent: Caller, table: Table
) -> None:
    del agent
    reading = asyncio.Event()

    async def read() -> None:
        async with ledger.export(auditor(), Wanted()):
            reading.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [act["act"] for act in await acts(table)] == ["export_begun", "export_broken"]
    async with ledger.export(auditor(), Wanted()):
        pass  # its place is free


async def test_t15_what_cannot_be_put_on_record_is_not_exported(
    ledger: Ledger, agent: Caller, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not begun without a record; and no end is given away without one."""
    del agent
    exporter: Exporter = ledger._exporter
    real, refused = exporter._administration.record, "exported"

    async def record(tenant_id: Any, actor: str, payload: Any) -> None:
        if payload["act"] == refused:
            raise UnavailableError("the database is away")
        await real(tenant_id, actor, payload)

    monkeypatch.setattr(exporter._administration, "record", record)
    pieces: list[bytes] = []
    with pytest.raises(UnavailableError):
        await _read(ledger, pieces)
    assert b'"trailer"' not in b"".join(pieces)
    assert [act["act"] for act in await acts(table)] == ["export_begun", "export_broken"]
    refused = "export_begun"
    pieces.clear()
    with pytest.raises(UnavailableError):
        await _read(ledger, pieces)
    assert pieces == []
    assert len(await acts(table)) == 2


async def test_another_tenants_records_are_in_no_export(ledger: Ledger, agent: Caller) -> None:
    """Neither in records nor in rows of views, whichever form; its agents are not there for anybody else."""
    await agent.ask("look", "of mine")
    theirs = Caller(ledger, "theirs", (await _tenant(ledger, "other")).tenant_id)
    await theirs.create()
    await theirs.ask("look", "of theirs")
    for wanted in (Wanted(), *(Wanted(view=view) for view in ("actions", "agents_status", "tool_calls"))):
        async with ledger.export(auditor(), wanted) as exported:
            data = b"".join([piece async for piece in exported.pieces])
        assert b"theirs" not in data, wanted
        assert str(theirs.tenant).encode() not in data
        assert wanted.view == "tool_calls" or agent.agent.encode() in data
