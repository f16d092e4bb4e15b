"""What a node says in figures: pages and the SQL view read all metadata the same, however odd (case T13)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import asyncpg

from app.chain.record import Draft
from app.guard.kinds import TRACE
from app.ledger import Ledger
from app.ledger.post import Entry
from app.moment import to_microseconds
from app.principal import Permission
from app.trace.figures import figures_of
from db.pool import Pool
from tests.integration.http.posting import fragment, node, node_id
from tests.support.ledgers import MASTER_KEY, Caller

BEGAN = "2026-11-30T08:00:00.123456789+01:00"
NANOS = 1_796_000_000_123_456_789
TOKENS: tuple[Any, ...] = (
    7, 7.0, 7.5, -1, "7", True, None, [], {}, 2**63 - 1, 2**63, 10**40,
    {"input": 5, "output": 6}, {"prompt": 5}, {"completion": 6.0}, {"input": None, "prompt": 5},
    {"input_tokens": 1, "output_tokens": 2, "total_tokens": 9}, {"total": 4, "input": 9}, {"total": None},
    {"total": -4, "input": 9}, {"input": "5", "output": 6}, {"input": 2**63 - 1, "output": 1},
    {"prompt_tokens": 3, "completion_tokens": 4, "total": "x"},
)  # fmt: skip
TIMES: tuple[dict[str, Any], ...] = (
    {"timestamp": BEGAN}, {"timestamp": "today"}, {"timestamp": 5}, {"start_time_unix_nano": NANOS},
    {"timestamp": "x", "start_time_unix_nano": str(NANOS)}, {"start_time_unix_nano": 0},
    {"start_time_unix_nano": "-1"}, {"start_time_unix_nano": 10**22}, {"start_time_unix_nano": 1.5e18},
    {"start_time_unix_nano": NANOS, "end_time_unix_nano": NANOS + 5_000_000},
    {"start_time_unix_nano": NANOS, "end_time_unix_nano": NANOS - 5_000_000},
    {"timestamp": BEGAN, "duration_ms": 1.2345}, {"timestamp": BEGAN, "duration_ms": -1},
    {"timestamp": BEGAN, "duration_ms": 10**100}, {"timestamp": BEGAN, "duration_ms": "5"},
    {"timestamp": BEGAN, "duration_ms": 0}, {"timestamp": "9999-12-31T23:59:59Z", "duration_ms": 5_000},
)  # fmt: skip
OTHERS: tuple[dict[str, Any], ...] = (
    {"model": "m", "cost": 0.25}, {"model": None, "cost": None}, {"model": {"b": 1, "a": "x"}, "cost": "1"},
    {"model": 5, "cost": -2}, {"cost": 1e300}, {"cost": True}, {"cost": 10**100},
)  # fmt: skip


async def test_pages_and_the_view_read_the_same(pool: Pool, admin: asyncpg.Connection) -> None:
    said = [*({"tokens": tokens} for tokens in TOKENS), *TIMES, *OTHERS]
    ledger = await Ledger.open(pool, master_key=MASTER_KEY)
    caller = Caller(ledger, "mailer")
    await caller.observe()
    nodes = [node(number, metadata=metadata) for number, metadata in enumerate(said)]
    entry = Entry(Draft(kind=TRACE, payload=fragment(*nodes), actor="mailer"))
    [receipt] = await ledger.post(caller.may(Permission.POST), [entry])
    assert not isinstance(receipt, Exception), receipt
    await ledger.close()
    rows = {row["node_id"]: row for row in await admin.fetch("SELECT * FROM trails.trace_nodes")}
    assert len(rows) == len(said)
    for number, metadata in enumerate(said):
        row, figures = rows[node_id(number)], figures_of(metadata)
        began = row["started_at"]
        assert figures.started_us == (None if began is None else to_microseconds(began)), metadata
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            assert getattr(figures, name) == row[name], metadata
        cost = None if figures.cost is None else Decimal(repr(figures.cost))
        assert cost == row["cost"], metadata
        assert (figures.model is None) is (row["model"] is None)
        if isinstance(metadata.get("model"), str):
            assert figures.model == row["model"]
        if row["ended_at"] is not None and began is not None and row["ended_at"] >= began:
            assert figures.duration_us is not None
            assert abs(to_microseconds(row["ended_at"]) - to_microseconds(began) - figures.duration_us) <= 1
            assert not figures.odd_time


def test_what_cannot_be_meant_is_said_to_be_odd() -> None:
    odd = [{"duration_ms": -1}, {"duration_ms": 10**13}, TIMES[10]]
    assert [figures_of(metadata).odd_time for metadata in odd] == [True] * 3
    assert [figures_of(metadata).odd_time for metadata in TIMES[:4]] == [False] * 4
    for nothing in (None, 5, "x", [], [{}]):
        assert figures_of(nothing) == figures_of({})
