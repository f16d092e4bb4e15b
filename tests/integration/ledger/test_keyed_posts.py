"""A post of several documents under one key is one request: whole, once, or a conflict (case P21)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.chain.canonical import canonical
from app.chain.record import Draft
from app.errors import BadRequestError, IdempotencyConflictError, UnavailableError
from app.ledger.idempotency import Keyed, digest_of, refused, stamp
from app.ledger.post import Entry, Receipt
from tests.support.ledgers import Caller, Opener, Table, event, holding, next_rows, outcomes, posted
from tests.support.postgres import Database

KEY = "0001-retry"


def draft(data: Any, **members: Any) -> Draft:
    payload = {"type": "t", "data": data, **members}
    return Draft("event", payload, "operator", canonical(payload))


def keyed(*drafts: Draft | None, key: str = KEY) -> tuple[list[Entry], Keyed]:
    """A request of these documents; None is one that was refused before."""
    digests = [refused("0" * 64) if each is None else digest_of(str(each.payload_text)) for each in drafts]
    places = tuple(place for place, each in enumerate(drafts) if each is not None)
    return [Entry(each) for each in drafts if each is not None], Keyed("events", key, tuple(digests), places)


async def send(caller: Caller, *drafts: Draft | None, key: str = KEY, whole: bool = False) -> list[Any]:
    entries, request = keyed(*drafts, key=key)
    return await caller.post(*entries, keyed=request, whole=whole)


def test_one_document_is_stamped_as_by_every_other_route() -> None:
    one = draft(1)
    [mark] = keyed(one)[1].stamps([True])
    assert mark == stamp("events", KEY, str(one.payload_text))


def test_every_record_has_a_key_of_its_own_and_the_digest_of_the_whole() -> None:
    request = keyed(draft(1), None, draft(2), draft(3))[1]
    marks = request.stamps([True, True, True])
    assert len({mark.key for mark in marks}) == 3
    assert len({mark.request for mark in marks}) == 1
    fewer = request.stamps([True, False, True])
    assert [mark.key for mark in fewer] == [mark.key for mark in marks[:2]]
    assert fewer[0].request != marks[0].request


async def test_p21_a_repetition_gets_the_first_receipts_for_ever(
    agent: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    first = await send(agent, draft(1), None, draft(2), draft(3))
    assert [receipt.seq for receipt in first] == [2, 3, 4]
    await agent.post(posted({"n": 1}))
    for caller in (agent, twin, agent.at(await restarted())):
        assert await send(caller, draft(1), None, draft(2), draft(3)) == first
        for other in ([draft(1)], [draft(2)], [draft(1), draft(2), draft(3)], [None, draft(9)]):
            answers = await send(caller, *other)
            assert {type(answer) for answer in answers} == {IdempotencyConflictError}
    assert len(await table.rows()) == 6


async def test_p21_of_two_processes_at_once_one_request_is_stored_whole(
    agent: Caller, twin: Caller, table: Table
) -> None:
    requests = [[draft(n) for n in range(count)] for count in (1, 2, 3, 5)]
    answers = await outcomes(*(send((agent, twin)[n % 2], *requests[n // 2 % 4]) for n in range(40)))
    stored = [record["payload"]["data"] for record in (await table.records())[2:]]
    assert len(stored) in {1, 2, 3, 5}
    assert stored == [*range(len(stored))]
    told: dict[int, list[Any]] = {}
    for answer in answers:
        told.setdefault(len(answer), []).append(answer)
    for count, same in told.items():
        assert same == [same[0]] * 10 or count != len(stored)
        expected = Receipt if count == len(stored) else IdempotencyConflictError
        assert all(type(result) is expected for answer in same for result in answer), count
    assert (await agent.verify())["ok"] is True


async def test_p19_a_request_whose_answer_is_lost_is_there_whole_or_not_at_all(
    agent: Caller, database: Database, table: Table
) -> None:
    three = [draft(n) for n in range(3)]
    async with holding(database.admin_url, await next_rows(agent, event(), event(), event())) as blocker:
        waiting = asyncio.create_task(send(agent, *three))
        await table.until_waiting(1)
        await table.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        with pytest.raises(UnavailableError):
            await waiting
        await blocker.execute("ROLLBACK")
    assert len(await table.rows()) == 2
    for _ in range(2):
        assert [receipt.seq for receipt in await send(agent, *three)] == [2, 3, 4]


async def test_a_document_that_no_record_can_hold_is_refused_alone_and_the_rest_is_one_request(
    agent: Caller, table: Table
) -> None:
    documents = [draft(1, session_id="x"), draft(2), draft(3)]
    first = await send(agent, *documents)
    assert isinstance(first[0], BadRequestError)
    assert [receipt.seq for receipt in first[1:]] == [2, 3]
    again = await send(agent, *documents)
    assert [type(again[0]), *again[1:]] == [BadRequestError, *first[1:]]
    for other in ([draft(9)], documents[1:], documents[:2]):
        assert IdempotencyConflictError in {type(answer) for answer in await send(agent, *other)}
    assert [record["payload"]["data"] for record in (await table.records())[2:]] == [2, 3]


async def test_with_whole_a_document_that_is_refused_takes_all_with_it_and_the_key_stays_free(
    agent: Caller, table: Table
) -> None:
    answers = await send(agent, draft(1), draft(2, session_id="x"), whole=True)
    assert {type(answer) for answer in answers} == {BadRequestError}
    assert len(await table.rows()) == 2
    assert [receipt.seq for receipt in await send(agent, draft(3), whole=True)] == [2]
