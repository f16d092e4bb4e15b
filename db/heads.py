"""Heads of chains and hashes of records as the table has them: what heads kept elsewhere are compared with.

Errors are those of ``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from db.pool import Connection, Pool, for_tenant
from db.sql import statements

PAGE: Final = 1_000
"""Chains whose heads one statement reads: some 30 ms of the database's time."""

_SQL: Final = statements("heads")


class HeadRow(msgspec.Struct, frozen=True):
    """A chain of the registry with its newest record; without one ``seq`` and ``hash`` are None."""

    agent_id: str
    log_uuid: UUID
    seq: int | None
    hash: str | None


async def each_page(pool: Pool, tenant_id: UUID) -> AsyncIterator[list[HeadRow]]:
    """All chains of a tenant, by agent id, ``PAGE`` at a time, each page in a transaction of its own."""
    after = ""
    while True:
        async with for_tenant(pool, tenant_id) as connection:
            rows = [HeadRow(*row) for row in await connection.fetch(_SQL["heads"], tenant_id, after, PAGE)]
        if rows:
            yield rows
            after = rows[-1].agent_id
        if len(rows) < PAGE:
            return


async def hashes_at(
    source: Pool | Connection, tenant_id: UUID, places: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int], str]:
    """The hashes at these places (chain, ``seq``) of a tenant; places without a record are left out."""
    chains, seqs = [log_uuid for log_uuid, _ in places], [seq for _, seq in places]
    async with for_tenant(source, tenant_id) as connection:
        rows = await connection.fetch(_SQL["hashes_at"], tenant_id, chains, seqs)
    return {(row["log_uuid"], row["seq"]): row["hash"] for row in rows}
