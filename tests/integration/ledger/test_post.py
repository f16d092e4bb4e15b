"""Posts: many senders of one chain, each entry with a result of its own, nothing twice and nothing half."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

import pytest

from app.chain.canonical import canonical
from app.chain.record import Draft
from app.errors import (
    BadRequestError,
    IdempotencyConflictError,
    NotFoundError,
    QuarantinedError,
    UnavailableError,
)
from app.ledger import Ledger, post, turns
from app.ledger.post import Entry, Receipt
from tests.support.ledgers import (
    TABLE,
    Caller,
    Opener,
    Table,
    event,
    holding,
    next_rows,
    one_writer,
    outcomes,
    posted,
)
from tests.support.postgres import Database

KEY = "0001-retry"


async def until_posted(ledger: Ledger, count: int) -> None:
    """Returns when ``count`` posts wait for the one that is being written."""
    async with asyncio.timeout(20):
        while sum(map(len, ledger._poster._turns.queues.values())) < count:
            await asyncio.sleep(0)


def seqs(answers: list[Any]) -> list[Any]:
    """The seq of each receipt; an error's class name in its place."""
    return [a.seq if isinstance(a, Receipt) else type(a).__name__ for a in answers]


async def transactions(table: Table, agent: str = "agent-1", *, after: int) -> list[int]:
    """How many records each transaction wrote, of those behind ``after``, in their order."""
    rows = await table.admin.fetch(
        f"SELECT count(*) AS n FROM {TABLE} WHERE agent_id = $1 AND seq > $2 GROUP BY xmin ORDER BY min(seq)",
        agent,
        after,
    )
    return [row["n"] for row in rows]


async def test_entries_become_records_in_their_order_by_one_append(agent: Caller, table: Table) -> None:
    payloads: list[Any] = [{"type": "note", "data": n} for n in (1.0, "é", None)]
    tree = {"session_id": str(UUID(int=7)), "total_nodes": 1, "trace_tree": [{"node_type": "OUTPUT"}]}
    drafts = [Draft("event", payload, "somebody") for payload in payloads]
    drafts.append(Draft("trace", tree, "somebody", canonical(tree)))
    answers = await agent.post(*map(Entry, drafts))
    assert seqs(answers) == [2, 3, 4, 5]
    records = (await table.records())[2:]
    assert [record["payload"] for record in records] == [*payloads, tree]
    assert [record["kind"] for record in records] == ["event", "event", "event", "trace"]
    assert {record["actor"] for record in records} == {"somebody"}
    rows = (await table.rows())[2:]
    for answer, record, row in zip(answers, records, rows, strict=True):
        assert answer.to_json() == {
            "agent_id": "agent-1",
            "seq": record["seq"],
            "hash": row["hash"],
            "timestamp": record["timestamp"],
        }
    assert rows[3]["session_id"] == UUID(int=7)
    assert await transactions(table, after=1) == [4]
    assert (await agent.verify())["ok"] is True


@pytest.mark.parametrize("spelled", [str, lambda log_uuid: str(log_uuid).upper()])
@pytest.mark.parametrize("kind", ["trace", "event"])
async def test_nothing_is_posted_under_the_id_of_the_agents_own_chain(
    agent: Caller, ledger: Ledger, table: Table, kind: str, spelled: Callable[[UUID], str]
) -> None:
    """The agent's records without a session stand there; under another agent's id anything may be posted."""
    own = (await table.rows())[0]["log_uuid"]
    other = Caller(ledger, "other")
    await other.create()
    payload: Any = {"session_id": spelled(own), "trace_tree": []}
    [refused] = await agent.post(Entry(Draft(kind, payload, "somebody")))
    assert isinstance(refused, BadRequestError)
    assert refused.message == "session_id: this is the id of the agent's own chain; choose another"
    assert seqs(await other.post(Entry(Draft(kind, payload, "somebody")))) == [2]
    assert len(await table.rows("agent-1")) == 2


async def test_nothing_to_post_is_nothing(agent: Caller, table: Table) -> None:
    assert await agent.post() == []
    assert len(await table.rows()) == 2


async def test_terminated_and_observed_agents_post_and_nobody_posts_for_an_agent_that_is_not_there(
    agent: Caller, table: Table
) -> None:
    await agent.terminate()
    assert seqs(await agent.post(posted({"n": 1}))) == [3]
    observed = Caller(agent.ledger, "seen")
    await observed.observe()
    assert seqs(await observed.post(posted({"n": 1}))) == [1]
    with pytest.raises(NotFoundError):
        await Caller(agent.ledger, "nobody").post(posted({"n": 1}))
    assert await table.kinds("seen") == ["genesis", "event"]
    assert (await agent.status())["alive"] is False


async def test_a_quarantined_chain_takes_nothing(agent: Caller, table: Table, restarted: Opener) -> None:
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET signed_text = replace(signed_text, '100', '900') WHERE seq = 1"
    )
    with pytest.raises(QuarantinedError):
        await agent.at(await restarted()).post(posted({"n": 1}))
    assert len(await table.rows()) == 2


async def test_posts_and_acts_of_two_processes_on_one_chain_all_find_their_place(
    agent: Caller, twin: Caller, table: Table
) -> None:
    posts = [(agent, twin)[n % 2].post(posted({"n": n}), posted({"n": -n})) for n in range(40)]
    acts = [(agent, twin)[n % 2].ask("look", n) for n in range(10)]
    answers = await outcomes(*posts, *acts)
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    receipts = [receipt for answer in answers[:40] for receipt in answer]
    rows = await table.rows()
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert Counter(r.hash for r in receipts) == Counter(row["hash"] for row in rows if row["kind"] == "event")
    assert len(rows) == 2 + 80 + 20
    for caller in (agent, twin):
        assert (await caller.verify())["ok"] is True


async def test_posts_that_wait_for_one_chain_go_together(
    agent: Caller, database: Database, table: Table
) -> None:
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": 0})))
        await table.until_waiting(1)
        others = [asyncio.create_task(agent.post(posted({"n": n}), posted({"m": n}))) for n in range(1, 11)]
        await until_posted(agent.ledger, 10)
        await blocker.execute("ROLLBACK")
        answers = [seqs(await task) for task in (first, *others)]
    assert answers == [[2], *([n, n + 1] for n in range(3, 23, 2))]
    assert await transactions(table, after=1) == [1, 20]


async def test_what_goes_together_is_bounded(
    agent: Caller, database: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "MAX_TOGETHER", 3)
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": 0})))
        await table.until_waiting(1)
        sizes = [2, 1, 1, 5, 1, 1]
        others = [asyncio.create_task(agent.post(*[posted({"n": n})] * n)) for n in sizes]
        await until_posted(agent.ledger, len(sizes))
        await blocker.execute("ROLLBACK")
        await asyncio.gather(first, *others)
    assert await transactions(table, after=1) == [1, 3, 1, 5, 2]


async def test_p21_the_same_key_and_body_is_the_first_receipt_for_ever(
    agent: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    [a, b] = await agent.post(posted({"n": "a"}, "key-a"), posted({"n": "b"}))
    mixed = [posted({"n": "a"}, "key-a"), posted({"n": "c"}, "key-c"), posted({"n": "other"}, "key-a")]
    [again, c, conflict] = await twin.post(*mixed)
    assert again == a
    assert c.seq == 4
    assert isinstance(conflict, IdempotencyConflictError)
    await agent.post(posted({"n": "d"}))
    for caller in (agent, twin, agent.at(await restarted())):
        assert seqs(await caller.post(*mixed)) == [2, 4, "IdempotencyConflictError"]
        assert (await caller.post(mixed[0]))[0] == a
    assert [record["payload"]["n"] for record in (await table.records())[2:]] == ["a", "b", "c", "d"]
    assert b.seq == 3
    assert (await agent.verify())["ok"] is True


async def test_p21_a_key_that_stands_twice_in_one_batch_counts_once(agent: Caller, table: Table) -> None:
    batch = [posted({"n": 1}, KEY), posted({"n": 1}), posted({"n": 1}, KEY), posted({"n": 2}, KEY)]
    assert seqs(await agent.post(*batch)) == [2, 3, 2, "IdempotencyConflictError"]
    assert len(await table.rows()) == 4


async def test_p21_fifty_at_once_in_two_processes_are_one_record(
    agent: Caller, twin: Caller, table: Table
) -> None:
    batch = [posted({"n": n}, f"{KEY}-{n}") for n in range(5)]
    answers = await outcomes(*((agent, twin)[n % 2].post(*batch) for n in range(50)))
    assert answers == [answers[0]] * 50
    assert sorted(seqs(answers[0])) == [2, 3, 4, 5, 6]
    assert len(await table.rows()) == 7


async def test_p21_an_act_and_a_post_are_not_mistaken_for_each_other(agent: Caller) -> None:
    await agent.ask("search", "x", key=KEY)
    assert seqs(await agent.post(posted({"n": 1}, KEY))) == [4]


async def test_a_stamp_is_signed_with_what_was_given_as_text(agent: Caller, table: Table) -> None:
    payload: Any = {"data": [1.5, 10**30], "é": 1, "idempotenc": 0, "idempotencz": 2, "type": "x"}
    await agent.post(posted(payload, KEY), Entry(Draft("event", payload, "a"), posted(payload, "other").mark))
    for row, record in zip((await table.rows())[2:], (await table.records())[2:], strict=True):
        assert row["signed_text"] == canonical(record)
        assert record["payload"].pop("idempotency").keys() == {"key", "records", "request"}
        assert record["payload"] == payload
    assert (await agent.verify())["ok"] is True


REFUSED: dict[str, Any] = {
    "a stamp of the sender's own": {"idempotency": None},
    "a session that is no UUID": {"session_id": "s1"},
    "a session in another spelling": {"session_id": "{00000000-0000-0000-0000-000000000007}"},
    "a trace tree that is no array": {"trace_tree": None},
    "a trace tree of something else": {"trace_tree": [{}, []]},
    "U+0000": {"text": "a\0b"},
    "a lone surrogate": {"text": "\ud800"},
    "no number": {"n": float("nan")},
    "a text that no verifier reads": {"text": "x" * (2 * 1024 * 1024)},
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_no_record_can_hold_is_refused_alone(agent: Caller, table: Table, kind: str) -> None:
    bad = Entry(Draft("event", REFUSED[kind], "a"))
    answers = await agent.post(posted({"n": 1}), bad, posted({"n": 2}))
    assert isinstance(answers[1], BadRequestError)
    assert (answers[0].seq, answers[2].seq) == (2, 3)
    assert [record["payload"] for record in (await table.records())[2:]] == [{"n": 1}, {"n": 2}]
    assert (await agent.verify())["ok"] is True


async def test_records_of_the_guard_are_not_posted(agent: Caller, table: Table) -> None:
    for kind in ("action_allowed", "terminated", "policy", "admin", "nonsense"):
        with pytest.raises(ValueError, match="not posted"):
            await agent.post(Entry(Draft(kind, {}, "a")))
    assert len(await table.rows()) == 2


async def test_a_post_that_the_database_refuses_does_not_fail_those_beside_it(
    agent: Caller, database: Database, table: Table
) -> None:
    await table.admin.execute(
        f"ALTER TABLE {TABLE} ADD CONSTRAINT t CHECK (signed_text NOT LIKE '%forbidden%') NOT VALID"
    )
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": "fine"})))
        await table.until_waiting(1)
        others = [
            asyncio.create_task(agent.post(posted({"n": word}), posted({"n": "beside it"})))
            for word in ("fine", "forbidden", "fine")
        ]
        await until_posted(agent.ledger, 3)
        await blocker.execute("ROLLBACK")
        answers = await outcomes(first, *others)
    assert [type(answer).__name__ for answer in answers] == ["list", "list", "CheckViolationError", "list"]
    assert [record["payload"]["n"] for record in (await table.records())[2:]] == [
        "fine",
        *("fine", "beside it") * 2,
    ]


async def test_an_append_whose_answer_is_lost_is_there_whole_or_not_at_all(
    agent: Caller, database: Database, table: Table
) -> None:
    batch = [posted({"n": n}, f"{KEY}-{n}") for n in range(3)]
    async with holding(database.admin_url, await next_rows(agent, event(), event(), event())) as blocker:
        waiting = asyncio.create_task(agent.post(*batch))
        await table.until_waiting(1)
        await table.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        with pytest.raises(UnavailableError):
            await waiting
        await blocker.execute("ROLLBACK")
    assert len(await table.rows()) == 2
    assert seqs(await agent.post(*batch)) == [2, 3, 4]
    assert seqs(await agent.post(*batch)) == [2, 3, 4]


async def test_a_post_whose_caller_went_away_before_its_turn_is_not_written(
    agent: Caller, database: Database, table: Table
) -> None:
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": 1})))
        await table.until_waiting(1)
        gone, stays = (asyncio.create_task(agent.post(posted({"n": n}))) for n in (2, 3))
        await until_posted(agent.ledger, 2)
        gone.cancel()
        await outcomes(gone)
        await blocker.execute("ROLLBACK")
        assert [seqs(await first), seqs(await stays)] == [[2], [3]]
    assert [record["payload"]["n"] for record in (await table.records())[2:]] == [1, 3]


async def test_a_post_whose_caller_goes_away_later_is_written_all_the_same(
    agent: Caller, database: Database, table: Table
) -> None:
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": 1})))
        await table.until_waiting(1)
        first.cancel()
        await outcomes(first)
        await blocker.execute("ROLLBACK")
        assert seqs(await agent.post(posted({"n": 2}))) == [3]
    assert (await agent.verify())["ok"] is True


async def test_nobody_waits_for_ever_and_what_was_told_to_be_late_is_not_written(
    agent: Caller, database: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        monkeypatch.setattr(turns, "LOCK_SECS", 0.2)
        first = asyncio.create_task(agent.post(posted({"n": 1})))
        await table.until_waiting(1)  # its turn has come: it is answered when it is known what became of it
        with pytest.raises(UnavailableError, match="wait for the database"):
            await agent.post(posted({"n": 2}))
        await blocker.execute("ROLLBACK")
        assert seqs(await first) == [2]
    assert seqs(await agent.post(posted({"n": 3}))) == [3]
    assert [record["payload"]["n"] for record in (await table.records())[2:]] == [1, 3]


async def test_posts_that_stand_together_are_refused_together_and_fail_no_others(
    agent: Caller, database: Database, table: Table
) -> None:
    await agent.post(posted({"n": 0}, KEY))
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        first = asyncio.create_task(agent.post(posted({"n": 1})))
        await table.until_waiting(1)
        whole = [
            asyncio.create_task(agent.post(posted({"n": n}, f"{KEY}-{n}"), posted({"n": n}, key), whole=True))
            for n, key in ((2, KEY), (3, "new"))
        ]
        alone = asyncio.create_task(agent.post(posted({"n": 4}), posted({"n": 5}, KEY)))
        await until_posted(agent.ledger, 3)
        await blocker.execute("ROLLBACK")
        answers = [seqs(await task) for task in (first, *whole, alone)]
    conflict = "IdempotencyConflictError"
    assert answers == [[3], [conflict, conflict], [4, 5], [6, conflict]]
    assert [record["payload"]["n"] for record in (await table.records())[2:]] == [0, 1, 3, 3, 4]
    assert seqs(await agent.post(posted({"n": 3}, f"{KEY}-3"), posted({"n": 3}, "new"), whole=True)) == [4, 5]


async def test_too_many_posts_are_refused_at_once(agent: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 2)
    answers = await outcomes(*(agent.post(posted({"n": n})) for n in range(3)))
    assert [type(answer).__name__ for answer in answers] == ["list", "list", "UnavailableError"]


async def test_closing_waits_for_what_was_accepted(
    agent: Caller, database: Database, table: Table, restarted: Opener
) -> None:
    elsewhere = agent.at(await restarted())
    async with holding(database.admin_url, await next_rows(agent, event())) as blocker:
        posts = [asyncio.create_task(elsewhere.post(posted({"n": 0})))]
        await table.until_waiting(1)
        posts.append(asyncio.create_task(elsewhere.post(posted({"n": 1}))))
        await until_posted(elsewhere.ledger, 1)
        closing = asyncio.create_task(elsewhere.ledger.close())
        await asyncio.sleep(0)
        await blocker.execute("ROLLBACK")
        await closing
    assert sorted(seqs([answer for task in posts for answer in await task])) == [2, 3]


async def test_many_chains_share_one_commit(ledger: Ledger, database: Database, table: Table) -> None:
    one_writer(ledger)
    callers = [Caller(ledger, f"agent-{number}") for number in range(4)]
    for caller in callers:
        await caller.observe()
    async with holding(database.admin_url, await next_rows(callers[0], event())) as blocker:
        tasks = [asyncio.create_task(callers[0].post(posted({"n": 0})))]
        await table.until_waiting(1)
        tasks += [asyncio.create_task(caller.post(posted({"n": 1}))) for caller in callers[1:]]
        async with asyncio.timeout(20):
            while len(ledger._committer._waiting) < 3:
                await asyncio.sleep(0)
        await blocker.execute("ROLLBACK")
        assert [seqs(await task) for task in tasks] == [[1]] * 4
    written = await table.admin.fetch(
        f"SELECT DISTINCT xmin::text FROM {TABLE} WHERE seq = 1 AND kind = 'event'"
    )
    assert len(written) == 2


async def test_a_status_says_how_the_nodes_of_its_actions_are_called(agent: Caller, table: Table) -> None:
    status = await agent.status()
    assert status["log_uuid"] == str((await table.rows())[0]["log_uuid"])
    await agent.ask("unheard-of")
    [node] = (await table.records())[3]["payload"]["trace_tree"]
    assert node["node_id"] == str(uuid5(UUID(str(status["log_uuid"])), "act-1"))
