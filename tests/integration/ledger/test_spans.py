"""Spans: each is recorded once in a chain, whoever posts it; the index alone is not believed."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from uuid import uuid4

import pytest

from app.chain.canonical import canonical
from app.errors import QuarantinedError, UnavailableError
from app.ledger import Ledger
from app.ledger.post import Receipt, SpansOnRecordError
from app.ledger.spans import on_record
from app.ledger.spans.on_record import SpanReader
from app.principal import Permission
from db.ledger import SpanRow
from tests.support.ledgers import (
    TABLE,
    Caller,
    Opener,
    Table,
    event,
    holding,
    next_rows,
    outcomes,
    posted,
    span,
    spans,
)
from tests.support.postgres import Database


async def index(table: Table) -> list[tuple[int, int]]:
    """What the index says: number of the span and seq of its record."""
    rows = await table.admin.fetch("SELECT span_id, seq FROM trails.spans ORDER BY span_id, seq")
    return [(int.from_bytes(row["span_id"]), row["seq"]) for row in rows]


def seq_of(answer: Any) -> Any:
    """The seq of a receipt; the numbers of the spans that stood in its way."""
    if isinstance(answer, SpansOnRecordError):
        return [int.from_bytes(key.span_id) for key in answer.known]
    return answer.seq if isinstance(answer, Receipt) else type(answer).__name__


async def test_spans_are_on_record_with_their_record(agent: Caller, twin: Caller, table: Table) -> None:
    other = Caller(agent.ledger, "other")
    await other.observe()
    [first] = await agent.post(spans(1, 2))
    [second] = await other.post(spans(3))
    for caller in (agent, twin):
        found = await caller.on_record(span(1), span(2), span(3), span(4), span(1, trace=2))
        assert {key: held.receipt for key, held in found.items()} == {span(1): first, span(2): first}
        content = {"trace_id": span(1).trace_id.hex(), "span_id": span(1).span_id.hex()}
        assert found[span(1)].content == hashlib.sha256(canonical(content).encode()).hexdigest()
    assert {key: held.receipt for key, held in (await other.on_record(span(1), span(3))).items()} == {
        span(3): second
    }
    assert await agent.on_record() == {}
    assert await index(table) == [(1, 2), (2, 2), (3, 1)]


async def test_a_span_on_record_refuses_its_entry_and_no_other(
    agent: Caller, twin: Caller, table: Table
) -> None:
    await agent.post(spans(1, 2))
    entries = (spans(3), spans(2, 4, 1), posted({"n": 1}), spans(4))
    assert [seq_of(answer) for answer in await twin.post(*entries)] == [3, [2, 1], 4, 5]
    assert await index(table) == [(1, 2), (2, 2), (3, 3), (4, 5)]


async def test_the_same_span_twice_in_one_post_counts_once(agent: Caller, table: Table) -> None:
    answers = await agent.post(spans(1, 1), spans(1, 2), spans(2))
    assert [seq_of(answer) for answer in answers] == [2, [1, 2], 3]
    assert await index(table) == [(1, 2), (2, 3)]


async def test_the_same_spans_at_two_processes_are_recorded_once_in_each_of_two_chains(
    agent: Caller, second_ledger: Ledger, table: Table
) -> None:
    other = Caller(agent.ledger, "other")
    await other.observe()
    senders = [agent, other, agent.at(second_ledger), other.at(second_ledger)]
    answers = await outcomes(
        *(senders[n % 4].post(spans(*(range(5) if n % 3 else range(4, -1, -1)))) for n in range(40))
    )
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    results = [result for answer in answers for result in answer]
    receipts = {result.agent_id: result for result in results if isinstance(result, Receipt)}
    assert sum(isinstance(result, Receipt) for result in results) == len(receipts) == 2
    assert all(
        sorted(seq_of(result)) == [0, 1, 2, 3, 4] for result in results if not isinstance(result, Receipt)
    )
    seqs = sorted(receipt.seq for receipt in receipts.values())
    assert await index(table) == [(number, seq) for number in range(5) for seq in seqs]
    for caller in (agent, other):
        found = await caller.on_record(*map(span, range(5)))
        assert [held.receipt for held in found.values()] == [receipts[caller.agent]] * 5


async def test_another_tenants_spans_are_its_own(agent: Caller) -> None:
    tenant = uuid4()
    await agent.ledger.create_tenant(tenant, "acme", "Acme")
    foreign = Caller(agent.ledger, "agent-1", tenant)
    await foreign.observe()
    await agent.post(spans(1))
    assert await foreign.on_record(span(1)) == {}
    [receipt] = await foreign.post(spans(1))
    assert (await foreign.on_record(span(1)))[span(1)].receipt == receipt


async def test_records_and_their_spans_are_there_whole_or_not_at_all(
    agent: Caller, database: Database, table: Table
) -> None:
    other = Caller(agent.ledger, "other")
    await other.observe()
    [row] = await next_rows(other, event())
    own = (await table.rows())[0]["log_uuid"]
    claimed = SpanRow(row.tenant_id, span(2).trace_id, span(2).span_id, own, row.seq)
    async with holding(database.admin_url, [row], [claimed]) as blocker:
        waiting = asyncio.create_task(agent.post(spans(1), spans(2, 3)))  # its records are inserted already
        await table.until_waiting(1)
        await table.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        with pytest.raises(UnavailableError):
            await waiting
        await blocker.execute("ROLLBACK")
    assert len(await table.rows()) == 2
    assert await index(table) == []
    assert [seq_of(answer) for answer in await agent.post(spans(1), spans(2, 3))] == [2, 3]


async def test_an_entry_that_no_record_bears_out_is_not_believed(agent: Caller, table: Table) -> None:
    await agent.post(spans(1), posted({"n": 1}))
    log_uuid = (await table.rows())[0]["log_uuid"]
    for number, seq in ((2, 2), (3, 3), (4, 99)):
        await table.admin.execute(
            "INSERT INTO trails.spans VALUES ($1, $2, $3, $4, $5)",
            agent.tenant,
            span(number).trace_id,
            span(number).span_id,
            log_uuid,
            seq,
        )
    for number, why in ((2, "does not hold it"), (3, "does not hold it"), (4, "is not there")):
        with pytest.raises(QuarantinedError, match=why):
            await agent.on_record(span(1), span(number))
        assert [seq_of(answer) for answer in await agent.post(spans(number))] == [[number]]
    assert list(await agent.on_record(span(1))) == [span(1)]


async def test_of_large_records_only_so_much_is_held_at_a_time(
    agent: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    at_work = most = 0
    picked = SpanReader._picked

    async def watched(self: SpanReader, keys: Any, rows: Any, pick: Any) -> Any:
        nonlocal at_work, most
        read.append(sum(len(row.signed_text) for row in rows))
        at_work += 1
        most = max(most, at_work)
        try:
            return await picked(self, keys, rows, pick)
        finally:
            at_work -= 1

    monkeypatch.setattr(on_record, "READ_BYTES", 200_000)
    monkeypatch.setattr(SpanReader, "_picked", watched)
    filling = "x" * 90_000
    receipts = [(await agent.post(spans(number, filling=filling)))[0] for number in range(12)]
    wanted = [span(number) for number in range(12)]
    answers = await outcomes(*(agent.on_record(*wanted) for _ in range(5)))
    assert [[answer[key].receipt for key in wanted] for answer in answers] == [receipts] * 5
    assert len(read) == 5 * 12 / 3
    assert max(read) < 300_000
    assert most == on_record.READS_AT_ONCE


async def test_a_record_that_does_not_verify_bears_nothing_out(
    agent: Caller, table: Table, restarted: Opener
) -> None:
    await agent.post(spans(1, kind="a"))
    await table.unlock()
    await table.admin.execute(
        f'UPDATE {TABLE} SET signed_text = replace(signed_text, \'"kind":"a"\', \'"kind":"b"\') WHERE seq = 2'
    )
    with pytest.raises(QuarantinedError):
        await agent.at(await restarted()).on_record(span(1))


async def test_an_observed_agent_begins_once_in_all_processes(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    callers = [Caller((ledger, second_ledger)[n % 2], "service") for n in range(10)]
    await asyncio.gather(*(caller.ledger.observed(caller.may(Permission.OBSERVE)) for caller in callers))
    assert await table.kinds("service") == ["genesis"]
    answers = await outcomes(*(caller.post(spans(n)) for n, caller in enumerate(callers)))
    assert sorted(answer[0].seq for answer in answers) == list(range(1, 11))
    assert (await callers[0].verify())["ok"] is True


async def test_an_agent_that_is_there_stays_what_it_is(agent: Caller, table: Table) -> None:
    await agent.ledger.observed(agent.may(Permission.OBSERVE))
    assert await table.kinds() == ["genesis", "policy"]
    assert (await agent.status())["guarded"] is True
