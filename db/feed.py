"""What the feed asks of the database: which records were committed between two moments.

A moment is a snapshot of PostgreSQL: which transactions had ended. A record belongs to it when the snapshot
shows the transaction that wrote its row, however late that was committed, and whatever the record's time or
place is. So what is found between two snapshots depends on no clock, and nothing is found twice or never.

Every function takes a connection inside ``db.pool.tenant_transaction``. Errors are those of
``db.errors.translate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from db.pool import Connection
from db.sql import statements

_SQL: Final = statements("feed")


class Moment(msgspec.Struct, frozen=True):
    """What is committed, and in which database: the server's identifier, its timeline, the database's oid."""

    snapshot: str
    system: int
    timeline: int
    database: int


class Unseen(msgspec.Struct, frozen=True):
    """Records of a chain that were not seen: from ``first`` up to ``head``, its newest one."""

    log_uuid: UUID
    first: int
    head: int


class Swept(msgspec.Struct, frozen=True):
    """What was found among some chains.

    Attributes:
        chains: those with unseen records, by their ids.
        upto: the last chain that was looked at; None when there was none.
        examined: how many were looked at.
    """

    chains: list[Unseen]
    upto: UUID | None
    examined: int


class FeedRow(msgspec.Struct, frozen=True):
    """A record as the table holds it; columns in the order of the statement.

    Attributes:
        signed_text: None when its kind is not wanted.
        size: bytes of it.
        xid: the transaction that wrote the row, 64 bits.
        shown: whether the snapshot that was asked for shows it.
    """

    log_uuid: UUID
    seq: int
    agent_id: str
    kind: str
    created_at: datetime
    hash: str
    signature: str
    signed_text: str | None
    size: int
    xid: int
    shown: bool


async def moment(connection: Connection) -> Moment:
    """What is committed now. What a later statement reads holds all of it."""
    return Moment(*await connection.fetchrow(_SQL["moment"]) or ())


async def changed(
    connection: Connection,
    tenant_id: UUID,
    *,
    after: UUID,
    limit: int,
    since: str | None,
    not_before: datetime | None,
    agents: Sequence[str] | None = None,
) -> Swept:
    """Which of the next ``limit`` chains behind ``after`` have records that were not seen.

    Args:
        connection: of the tenant.
        tenant_id: whose chains.
        after: a chain's id, in whose order they are looked at.
        limit: how many are looked at.
        since: what this snapshot shows was seen; None: nothing was.
        not_before: what is older counts as seen.
        agents: chains of these alone.
    """
    rows = await connection.fetch(
        _SQL["changed"], tenant_id, after, limit, since, not_before, None if agents is None else list(agents)
    )
    chains = [
        Unseen(row["log_uuid"], row["first"], row["head"]) for row in rows if row["log_uuid"] is not None
    ]
    return Swept(chains, rows[0]["upto"], rows[0]["examined"])


async def rows(
    connection: Connection,
    tenant_id: UUID,
    ranges: Sequence[tuple[UUID, int, int]],
    *,
    upto: str,
    most_bytes: int,
    kinds: Sequence[str] | None = None,
) -> list[FeedRow]:
    """The records of chains from one ``seq`` to another, in the order given; about ``most_bytes`` of text."""
    columns = [[each[number] for each in ranges] for number in range(3)]
    found = await connection.fetch(
        _SQL["rows"], tenant_id, *columns, most_bytes, None if kinds is None else list(kinds), upto
    )
    return [FeedRow(*row) for row in found]


async def newest_shown(connection: Connection, tenant_id: UUID, log_uuid: UUID, upto: str) -> int:
    """The ``seq`` of the newest record of a chain that a snapshot shows; -1 when it shows none."""
    seq = await connection.fetchval(_SQL["newest_shown"], tenant_id, log_uuid, upto)
    return -1 if seq is None else int(seq)
