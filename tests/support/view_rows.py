"""Rows for the tests of the SQL views: fragments by hand, records with any JSON, and what a view says."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

import db.ledger
from app.chain.link import seal
from app.chain.record import Draft, Head, hash_text
from db.ledger import TrailRow
from db.pool import Connection, Pool, tenant_transaction
from tests.support.rows import KEY, START_US, Maker

SESSION = UUID("5e551011-0000-4000-8000-000000000001")

_SESSION = re.compile(r'\{"session_id":"([0-9a-f-]+)"')

Json = dict[str, Any]


def node_id(name: str) -> str:
    """The UUID of the node called ``name`` in a test."""
    return str(uuid.uuid5(SESSION, name))


def node(name: str, parent: str | None = None, node_type: str = "TOOL_CALL", /, **members: Any) -> Json:
    """A node whose id and parent are named; ``status`` and ``metadata`` may be given among ``members``."""
    status = members.pop("status", None)
    outputs = {} if status is None else {"outputs": {"status": status}}
    return {
        "node_id": node_id(name),
        "parent_id": None if parent is None else node_id(parent),
        "node_type": node_type,
        "name": name,
        **outputs,
        **members,
    }


def fragment(*nodes: Json, session: UUID = SESSION) -> Json:
    """The payload of a ``trace`` record."""
    return {"session_id": str(session), "total_nodes": len(nodes), "trace_tree": list(nodes)}


def posted_row(
    maker: Maker, *nodes: Json, session: UUID = SESSION, kind: str = "trace", actor: str = "bot"
) -> TrailRow:
    """The next row of a chain with these nodes, posted by ``actor``."""
    at_us = START_US if maker.head is None else maker.head.timestamp_us + 1_000_000
    record = seal(Draft(kind, fragment(*nodes, session=session), actor), maker.head, at_us, KEY)
    maker.head = record.head
    return maker.mirror(record)


async def send(
    pool: Pool | Connection,
    maker: Maker,
    *nodes: Json,
    session: UUID = SESSION,
    kind: str = "trace",
    actor: str = "bot",
) -> TrailRow:
    """Appends one record with these nodes."""
    row = posted_row(maker, *nodes, session=session, kind=kind, actor=actor)
    await db.ledger.append(pool, [row])
    return row


def raw_row(maker: Maker, kind: str, payload: str) -> TrailRow:
    """The next row of a chain with a payload as it is written here: validly hashed, linked and signed.

    No record of the service could say most of it (numbers beyond every limit, say); the table takes it. A
    ``session_id`` is its first member.
    """
    assert maker.head is not None
    honest = maker.row(kind, {})
    text = honest.signed_text.replace('"payload":{}', f'"payload":{payload}')
    digest = hash_text(text)
    maker.head = Head(honest.seq, digest, START_US + honest.seq * 1_000_000)
    session = _SESSION.match(payload)
    return msgspec.structs.replace(
        honest,
        signed_text=text,
        hash=digest,
        signature=KEY.sign(bytes.fromhex(digest)).hex(),
        session_id=maker.log_uuid if session is None else UUID(session[1]),
    )


async def view(pool: Pool, tenant: UUID, name: str, where: str = "true", *arguments: Any) -> list[Json]:
    """Rows of one view as the service's role sees them for ``tenant``, in no order that counts."""
    async with tenant_transaction(pool, tenant) as connection:
        return [
            dict(row)
            for row in await connection.fetch(f"SELECT * FROM trails.{name} WHERE {where}", *arguments)
        ]


def by(rows: list[Json], *columns: str) -> dict[Any, Json]:
    """Rows by the value of a column (or by several); each value once."""
    keyed = {tuple(row[column] for column in columns): row for row in rows}
    assert len(keyed) == len(rows)
    return {key[0] if len(columns) == 1 else key: row for key, row in keyed.items()}


def names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names (of tools or nodes) in rows, sorted."""
    return sorted(row["tool"] if "tool" in row else row["name"] for row in rows)
