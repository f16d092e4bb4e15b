"""Reading a chain by pages: each record once in a walk, whatever is looked for, and each one proven."""

from __future__ import annotations

from typing import Any

import pytest

from app.chain.record import Draft
from app.ledger import Ledger
from app.ledger.post import Entry, Receipt
from app.ledger.trail_reader import RecordPage, RecordQuery, TrailReader
from app.principal import Permission
from app.trace.event import Event
from db.browse import RecordsWanted
from tests.support.ledgers import Caller, SetClock, Table

LENGTH = 25


@pytest.fixture
async def long_agent(agent: Caller, clock: SetClock) -> Caller:
    """An agent with 27 records: genesis, policy, and events of two actors, some at the same moment."""
    for number in range(LENGTH):
        clock.move(number % 2)
        await post(agent, number, None if number % 5 else "ada")
    return agent


async def post(agent: Caller, number: int, key_of: str | None = None) -> None:
    grant = agent.may(Permission.POST, key_of=key_of)
    draft = Draft("event", Event("tick", number).payload, grant.actor)
    [receipt] = await agent.ledger.post(grant, [Entry(draft)])
    assert isinstance(receipt, Receipt)


def reader(ledger: Ledger, window: int) -> TrailReader:
    return TrailReader(ledger._pool, ledger._chains, ledger._keystore, window=window)


async def walk(caller: Caller, window: int, limit: int, *, up: bool, **asked: Any) -> list[int]:
    """All records of a walk from one end of the chain to the other, in its order."""
    found: list[int] = []
    query = RecordQuery(limit=limit, after=-1 if up else None, **asked)
    trail, grant = reader(caller.ledger, window), caller.may(Permission.READ_LOG)
    for _ in range(100):
        page: RecordPage = await trail.page(grant, query)
        assert all(one.fault is None for one in page.records)
        seqs = [one.row.seq for one in page.records]
        found += reversed(seqs) if up else seqs
        following = page.newer if up else page.older
        if following is None:
            return found
        query = RecordQuery(limit=limit, **{"after" if up else "before": following}, **asked)
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_h33_a_walk_meets_each_record_once(long_agent: Caller, window: int, limit: int) -> None:
    everything = list(range(LENGTH + 2))
    assert await walk(long_agent, window, limit, up=True) == everything
    assert await walk(long_agent, window, limit, up=False) == everything[::-1]
    wanted = RecordsWanted(actor="ada")
    of_ada = [2 + number for number in range(0, LENGTH, 5)]
    assert await walk(long_agent, window, limit, up=True, wanted=wanted) == of_ada
    assert await walk(long_agent, window, limit, up=False, wanted=wanted) == of_ada[::-1]


async def test_h33_records_that_come_meanwhile_disturb_no_walk_down(long_agent: Caller) -> None:
    trail, grant = reader(long_agent.ledger, 1000), long_agent.may(Permission.READ_LOG)
    page = await trail.page(grant, RecordQuery(limit=10))
    await post(long_agent, 99)
    rest = await trail.page(grant, RecordQuery(before=page.older))
    seqs = [one.row.seq for one in (*page.records, *rest.records)]
    assert seqs == list(range(LENGTH + 1, -1, -1))


@pytest.mark.parametrize("gap", [2, 13, 20])
async def test_times_are_found_by_halving_with_a_gap_and_without(
    long_agent: Caller, table: Table, gap: int
) -> None:
    rows = await table.rows()
    moment = rows[13]["created_at"]
    since_us = round(moment.timestamp() * 1_000_000)
    wanted = [row["seq"] for row in rows if row["created_at"] >= moment]
    assert await walk(long_agent, 1000, 100, up=True, since_us=since_us) == wanted
    assert await walk(long_agent, 1000, 100, up=True, until_us=since_us) == [
        row["seq"] for row in rows if row["created_at"] < moment
    ]
    assert await walk(long_agent, 1000, 100, up=True, since_us=2**52) == []
    await table.admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    cut = "DELETE FROM trails.agent_audit_trails WHERE agent_id = $1 AND seq = $2"
    await table.admin.execute(cut, "agent-1", gap)
    trail, grant = reader(long_agent.ledger, 1000), long_agent.may(Permission.READ_LOG)
    page = await trail.page(grant, RecordQuery(since_us=since_us))
    assert [one.row.seq for one in page.records][::-1] == [seq for seq in wanted if seq != gap]
