"""What each guarantee costs: the table's row, one guarantee more at each step, and the work on one tree.

The rows explain the ratios of the others. PostgreSQL's part is CPU time of the session, for the statement of
the service on copies of the table, which begin with bare columns and get what the real one has piece by
piece; the service's part is what the functions of the pure core take on the same trees.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import asyncpg
import msgspec

import db.ledger
from app.chain.canonical import canonical_parsed
from app.chain.keys import SigningKey
from app.chain.link import Signer, seal_all
from app.chain.record import DOMAIN, Draft
from app.chain.strict import parse
from app.guard.bodies import Ask
from app.ledger import Ledger
from app.ledger.chain import ChainId
from app.ledger.mirror import registry_row, row_of
from app.trace.fragment import Fragment
from db.ledger import TrailRow
from db.pool import Pool, create_pool
from db.schema import DEFAULT_TENANT_ID
from db.sql import statements
from tests.bench import documents
from tests.bench.cpu import exactly
from tests.bench.form import Form
from tests.bench.rows import Kind, Row, Side
from tests.bench.stage import MASTER_KEY
from tests.support.postgres import Database

KEY = "parts"
STATEMENTS = (2, 15)
ROUNDS = (1, 3)
_TREES = 100
_ASKS = 64
"""Rows of one statement: trees as a batch has them, records of the guard as a grouped commit does."""

_START_US = 1_790_000_000_000_000
_REAL = "trails.agent_audit_trails"
_COPY = "parts.copy"

STEPS = (
    ("bare columns", ()),
    ("+ the mirror", ("mirror",)),
    ("+ CHECK of the hash", ("mirror", "hash")),
    ("+ all CHECKs", ("mirror", "checks")),
    ("+ all indexes", ("mirror", "checks", "indexes")),
)
"""What a copy of the table has; the last step is the table itself, with triggers and row security."""

Rows = list[list[TrailRow]]


def rows(database: Database, form: Form) -> list[Row]:
    """PostgreSQL's parts for trees and for the guard's records, then the service's."""
    return [*asyncio.run(_stored(database, form)), *_pure(form)]


async def _stored(database: Database, form: Form) -> list[Row]:
    found: list[Row] = []
    pool = await create_pool(database.app_url, min_size=1, max_size=2)
    ledger = await Ledger.open(pool, master_key=bytes.fromhex(MASTER_KEY))
    key = (await ledger._keystore.of(DEFAULT_TENANT_ID)).newest
    for name, make, size in (("tree", _trees, _TREES), ("guard", _asks, _ASKS)):
        taken: dict[str, list[float]] = {}
        for _ in range(form.pick(*ROUNDS)):
            count = form.pick(*STATEMENTS) * size
            chain, made = _sealed(make(count - 1), key)
            batches = [made[first : first + size] for first in range(0, count, size)]
            for step, cost in await _steps(database, pool, chain, batches):
                taken.setdefault(step, []).append(cost)
        bare = Side(tuple(taken[STEPS[0][0]]))
        found += [_row(f"{name} row: {step}", costs, bare) for step, costs in taken.items()]
    await ledger.close()
    await pool.close()
    return found


def _row(name: str, costs: Sequence[float], floor: Side, floor_name: str = STEPS[0][0]) -> Row:
    return Row(KEY, name, "us", Side(tuple(costs)), floor, floor_name, Kind.LIMIT)


async def _steps(database: Database, pool: Pool, chain: ChainId, batches: Rows) -> list[tuple[str, float]]:
    admin = await asyncpg.connect(database.admin_url)
    try:
        constraints = await admin.fetch(
            "SELECT conname, pg_get_constraintdef(oid) AS said FROM pg_constraint "
            f"WHERE conrelid = '{_REAL}'::regclass AND contype = 'c'"
        )
        checks = {row["conname"]: row["said"] for row in constraints}
        found = []
        for step, parts in STEPS:
            await _copy(admin, parts, checks)
            statement = statements("trail")["append"].replace(_REAL, _COPY)
            found.append((step, await _cost(batches, admin, statement)))
        await admin.execute("DROP SCHEMA parts CASCADE")
    finally:
        await admin.close()
    first, *rest = batches[0]
    await db.ledger.append(pool, [first], chains=[registry_row(chain, first)])
    real = [rest, *batches[1:]]
    async with pool.acquire() as connection:
        backend = connection.get_server_pid()
        before = exactly(backend)
        for batch in real:
            await db.ledger.append(connection, batch)
        found.append(("the table itself", _micros(exactly(backend) - before, real)))
    return found


async def _copy(admin: asyncpg.Connection, parts: Sequence[str], checks: dict[str, str]) -> None:
    generated = "INCLUDING GENERATED INCLUDING STORAGE" if "mirror" in parts else ""
    await admin.execute("DROP SCHEMA IF EXISTS parts CASCADE; CREATE SCHEMA parts")
    await admin.execute(f"CREATE TABLE {_COPY} (LIKE {_REAL} {generated})")
    if "mirror" not in parts:
        await admin.execute(f"ALTER TABLE {_COPY} ALTER trace_data DROP NOT NULL, ALTER id DROP NOT NULL")
    for name, said in checks.items():
        if "checks" in parts or ("hash" in parts and "sha256" in said):
            await admin.execute(f"ALTER TABLE {_COPY} ADD CONSTRAINT {name} {said}")
    await admin.execute(f"ALTER TABLE {_COPY} ADD PRIMARY KEY (tenant_id, log_uuid, seq)")
    if "indexes" in parts:
        defined = await admin.fetch(
            "SELECT pg_get_indexdef(indexrelid) AS said FROM pg_index "
            f"WHERE indrelid = '{_REAL}'::regclass AND NOT indisprimary"
        )
        for row in defined:
            await admin.execute(row["said"].replace(f" ON {_REAL}", f" ON {_COPY}"))


async def _cost(batches: Rows, admin: asyncpg.Connection, statement: str) -> float:
    columns = [
        [list(column) for column in zip(*map(msgspec.structs.astuple, batch), strict=True)]
        for batch in batches
    ]
    backend = admin.get_server_pid()
    before = exactly(backend)
    for each in columns:
        await admin.execute(statement, "", *each)
    return _micros(exactly(backend) - before, batches)


def _micros(seconds: float, batches: Rows) -> float:
    return seconds / sum(map(len, batches)) * 1e6


def _trees(count: int) -> list[Draft]:
    rng = random.Random(uuid4().int)  # noqa: S311  sessions that no run before had
    parsed = [parse(text.encode()).value for text in documents.trees(rng, count)]
    return [Draft("trace", tree, "operator") for tree in parsed]  # type: ignore[arg-type]  # objects


def _asks(count: int) -> list[Draft]:
    asked = {"action_id": "act-1", "tool": "search", "input": {"q": "refund policy", "top": 5}, "cost": 2}
    allowed = {"action_id": "act-1", "approved_by": None}
    drafts = Draft("action_requested", asked, "scout"), Draft("action_allowed", allowed, "guard")
    return [drafts[number % 2] for number in range(count)]


def _sealed(drafts: Sequence[Draft], key: Signer) -> tuple[ChainId, list[TrailRow]]:
    chain = ChainId(DEFAULT_TENANT_ID, f"parts-{uuid4().hex}", uuid4(), guarded=False)
    genesis = {
        "log_id": chain.agent_id,
        "public_key": key.public.hex,
        "tenant": str(chain.tenant_id),
        "log_uuid": str(chain.log_uuid),
    }
    records = seal_all([Draft("genesis", genesis, "operator"), *drafts], None, _START_US, key)
    return chain, [row_of(chain, record, key.public.key_id) for record in records]


def _pure(form: Form) -> Iterator[Row]:
    rng = random.Random(0)  # noqa: S311  as above
    raw = [text.encode() for text in documents.trees(rng, form.pick(20, 500))]
    key = SigningKey.from_raw(bytes(range(32)))
    parsed = [parse(each) for each in raw]
    texts = [canonical_parsed(each).encode() for each in parsed]
    ask = b'{"tool": "search", "input": {"q": "refund policy", "top": 5}, "cost": 2}'
    rounds = form.pick(*ROUNDS)

    def digests() -> list[bytes]:
        return [hashlib.sha256(DOMAIN + text).digest() for text in texts]

    hashes = digests()
    hashing = Side(tuple(_each(digests, len(raw)) for _ in range(rounds)))
    for name, work in (
        ("tree: strict parse", lambda: [parse(each) for each in raw]),
        ("tree: its nodes checked", lambda: [Fragment.parse(each.value) for each in parsed]),
        ("tree: canonical text", lambda: [canonical_parsed(each) for each in parsed]),
        ("record: signature", lambda: [key.sign(each) for each in hashes]),
        ("request: strict parse", lambda: [Ask.parse(parse(ask).value) for _ in raw]),
    ):
        costs = [_each(work, len(raw)) for _ in range(rounds)]
        yield _row(name, costs, hashing, "SHA-256 of a tree")


def _each(work: Callable[[], object], count: int) -> float:
    before = time.process_time()
    work()
    return (time.process_time() - before) / count * 1e6
