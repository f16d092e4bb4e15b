"""Many guarded agents whose chains say what one agent's says: lived once over HTTP, sealed anew for each.

Each chain is genuine: its own log, hashes and signatures of the tenant's key, appended by the product's own
statement. Only living through it over HTTP ten thousand times is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import asyncpg
import msgspec

import db.ledger
from app.chain.canonical import canonical
from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import Draft, Head
from app.ledger.chain import ChainId
from app.ledger.keys.keystore import Keystore
from app.ledger.mirror import row_of
from app.moment import to_microseconds
from db.ledger import TrailRow
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.bench import agents, load
from tests.bench.stage import MASTER_KEY, OPERATOR_TOKEN, service
from tests.support.postgres import Database

POLICY = {
    "budget": 10**15,
    "scar_limit": 10,
    "tools": {"search": {"cost": 1}, "send_email": {"cost": 5, "requires_approval": True}},
}
PATTERN = "pattern"
_OF_ITS_OWN = "snapshot"
"""Records of this kind are true of one chain alone."""

_WRITERS = 2
_GROUP = 10
"""Chains of one statement."""


class Told(msgspec.Struct, frozen=True):
    """What one record says, whoever's it is."""

    kind: str
    payload: dict[str, Any]
    text: str


def fill(database: Database, names: Sequence[str], records: int) -> None:
    """Creates agents whose chains have so many records each: actions with outcomes, one that waits."""
    with service(database) as port:
        agents.create(port, [PATTERN, *names], POLICY)
        _live(port, records)
        told = _pattern(port)
    shares = [names[first::_WRITERS] for first in range(_WRITERS)]
    with ProcessPoolExecutor(_WRITERS, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(_copied, [database.app_url] * _WRITERS, [database.admin_url] * _WRITERS,
                          [told] * _WRITERS, shares):  # fmt: skip
            pass


def _live(port: int, records: int) -> None:
    """The pattern's life: an action is three records, and genesis, policy and what waits are four."""
    path = f"/v1/agents/{PATTERN}/actions"
    for number in range(1, (records - 4) // 3 + 1):
        ask = {"tool": "search", "input": {"q": "refund policy", "page": number}}
        load.one(port, load.post(path, json.dumps(ask).encode(), OPERATOR_TOKEN))
        report = load.post(f"{path}/act-{number}/outcome", b'{"status":"success"}', OPERATOR_TOKEN)
        load.one(port, report)
    wait = {"tool": "send_email", "input": {"to": "a@example.com", "text": "your refund is on its way"}}
    load.one(port, load.post(path, json.dumps(wait).encode(), OPERATOR_TOKEN))


def _pattern(port: int) -> list[Told]:
    """What the pattern's chain says behind genesis and policy."""
    answer = load.one(port, load.get(f"/v1/agents/{PATTERN}/log?after=1&limit=5000", OPERATOR_TOKEN))
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["records"]
    return [
        Told(record["kind"], record["payload"], canonical(record["payload"]))
        for record in found
        if record["kind"] != _OF_ITS_OWN
    ]


def _copied(app_url: str, admin_url: str, told: list[Told], names: Sequence[str]) -> None:
    asyncio.run(_copy(app_url, admin_url, told, names))


async def _copy(app_url: str, admin_url: str, told: list[Told], names: Sequence[str]) -> None:
    async with await create_pool(app_url, min_size=1, max_size=1) as pool:
        key = (await Keystore(pool, bytes.fromhex(MASTER_KEY)).of(DEFAULT_TENANT_ID)).newest
        if not isinstance(key, SigningKey):
            raise TypeError("the default tenant's key is in memory")
        chains = await _chains(admin_url, names)
        for first in range(0, len(chains), _GROUP):
            rows = [
                row for chain, head in chains[first : first + _GROUP] for row in _rows(chain, head, told, key)
            ]
            await db.ledger.append(pool, rows)


def _rows(chain: ChainId, head: Head, told: list[Told], key: SigningKey) -> Iterator[TrailRow]:
    drafts = [Draft(one.kind, one.payload, chain.agent_id, one.text, within_limits=True) for one in told]
    for record in seal_all(drafts, head, head.timestamp_us, key):
        yield row_of(chain, record, key.public.key_id)


async def _chains(admin_url: str, names: Sequence[str]) -> list[tuple[ChainId, Head]]:
    """The agents' chains and their heads, as they were created."""
    connection = await asyncpg.connect(admin_url)
    rows = await connection.fetch(
        "SELECT tenant_id, agent_id, log_uuid, seq, hash, created_at FROM trails.agent_audit_trails"
        " WHERE seq = 1 AND agent_id = ANY($1) ORDER BY agent_id",
        names,
    )
    await connection.close()
    return [
        (
            ChainId(row["tenant_id"], row["agent_id"], row["log_uuid"], guarded=True),
            Head(row["seq"], row["hash"], to_microseconds(row["created_at"])),
        )
        for row in rows
    ]
