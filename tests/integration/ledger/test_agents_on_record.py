"""Agents on record: no chain begins that the tenant's administration chain does not tell of."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

import db.ledger
from app.errors import (
    AgentExistsError,
    ConflictError,
    ForbiddenError,
    NameInUseError,
    TenantQuarantinedError,
    TrailsError,
)
from app.ledger import Ledger
from app.ledger.chain import ChainId
from app.ledger.mirror import registry_row, row_of
from app.ledger.spans.otlp import record_spans
from app.ledger.tenancy import filing
from app.ledger.tenancy.administration import NewKey
from app.principal import ADMINISTRATION, Grant, Permission, Principal, Role, grant
from app.trace.otlp.fragments import AgentSpans
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
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
    spans,
)
from tests.support.postgres import Database

WRITER = Principal(DEFAULT_TENANT_ID, Role.WRITER, "collector", key_id="00ff00ff00ff00ff")


def observing(*agents: str) -> list[Grant]:
    return [grant(WRITER, Permission.OBSERVE, agent) for agent in agents]


async def told(table: Table) -> list[Any]:
    """The agents that each record of the administration chain tells of, with its actor."""
    return [
        (record["actor"], record["payload"]["agents"])
        for record in await table.records(ADMINISTRATION)
        if record["payload"].get("act") == "agents_created"
    ]


async def named(table: Table) -> list[list[str]]:
    return [[agent["agent_id"] for agent in agents] for _, agents in await told(table)]


async def registered(table: Table) -> list[Any]:
    """The registry, but for the administration chain, as the records would tell of it."""
    rows = await table.admin.fetch(
        "SELECT agent_id, log_uuid::text, guarded FROM trails.agents WHERE agent_id <> $1 ORDER BY agent_id",
        ADMINISTRATION,
    )
    return [dict(row) for row in rows]


async def assert_all_is_told(table: Table) -> None:
    """Registry and administration chain name the same chains, each once, and each with its first records."""
    agents = [agent for _, agents in await told(table) for agent in agents]
    assert sorted(agents, key=lambda agent: agent["agent_id"]) == await registered(table)
    together = await table.admin.fetch(
        f"""SELECT g.agent_id FROM {TABLE} AS g WHERE g.kind = 'genesis' AND g.agent_id <> $1 AND NOT EXISTS (
               SELECT FROM {TABLE} AS a WHERE a.agent_id = $1 AND a.xmin::text = g.xmin::text
                  AND a.trace_data @> jsonb_build_object('act', 'agents_created', 'agents',
                          jsonb_build_array(jsonb_build_object('agent_id', g.agent_id))))""",
        ADMINISTRATION,
    )
    assert together == []  # each genesis record was written by the transaction that tells of it
    await table.folded(ADMINISTRATION)


async def test_an_agent_that_is_created_is_on_record_with_its_chain(ledger: Ledger, table: Table) -> None:
    await Caller(ledger, "guarded").create()
    await Caller(ledger, "seen").observe()
    first, second = await told(table)
    assert (first[0], second[0]) == ("operator", "operator")
    assert [(a["agent_id"], a["guarded"]) for a in first[1] + second[1]] == [
        ("guarded", True),
        ("seen", False),
    ]
    await assert_all_is_told(table)


async def test_new_agents_of_one_batch_share_one_record(ledger: Ledger, table: Table) -> None:
    await ledger.observed(*observing("b"))
    await ledger.observed(*observing("c", "a", "b", "d"))
    assert await named(table) == [["b"], ["c", "a", "d"]]
    assert {actor for actor, _ in await told(table)} == {"collector"}
    await assert_all_is_told(table)


async def test_a_long_list_is_told_by_several_records_of_one_transaction(
    ledger: Ledger, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filing, "MAX_CREATED", 20)
    await ledger.observed(*observing(*(f"agent-{number:02}" for number in range(45))))
    assert [len(names) for names in await named(table)] == [20, 20, 5]
    await assert_all_is_told(table)
    assert len(await table.admin.fetch(f"SELECT DISTINCT xmin::text FROM {TABLE} WHERE seq > 0")) == 1


async def test_posting_to_agents_that_exist_does_not_touch_the_administration_chain(
    agent: Caller, table: Table
) -> None:
    before = await table.rows(ADMINISTRATION)
    chain = await agent.ledger._chains.get(DEFAULT_TENANT_ID, ADMINISTRATION)
    async with chain.exclusively():  # whoever needed it would wait
        async with asyncio.timeout(5):
            await agent.ledger.observed(*observing(agent.agent))
            await agent.post(posted({"n": 1}), spans(1))
            await agent.ask()
            with pytest.raises(AgentExistsError):
                await agent.create()
    assert await table.rows(ADMINISTRATION) == before


async def test_callers_that_wait_at_the_same_moment_share_a_transaction(
    ledger: Ledger, database: Database, table: Table
) -> None:
    await Caller(ledger, "first").observe()
    queues = ledger.administration._filer._turns.queues
    administration = Caller(ledger, ADMINISTRATION)
    async with holding(database.admin_url, await next_rows(administration, event())) as blocker:
        waiting = [asyncio.create_task(Caller(ledger, "agent-0").create())]
        await table.until_waiting(1)
        waiting += [asyncio.create_task(Caller(ledger, f"agent-{n}").create()) for n in range(1, 20)]
        async with asyncio.timeout(20):
            while sum(map(len, queues.values())) < 19:
                await asyncio.sleep(0)
        await blocker.execute("ROLLBACK")
        await asyncio.gather(*waiting)
    assert len(await named(table)) == 21  # each caller's agent by a record of its own
    assert len(await table.admin.fetch(f"SELECT DISTINCT xmin::text FROM {TABLE}")) == 4
    await assert_all_is_told(table)


async def test_two_processes_that_create_at_once_tell_of_each_agent_once(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    ledgers = (ledger, second_ledger)
    answers = await outcomes(
        *(Caller(ledgers[n % 2], f"agent-{n // 2}").create() for n in range(40)),
        *(ledgers[n % 2].observed(*observing(*(f"seen-{n // 2 + i}" for i in range(5)))) for n in range(20)),
    )
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert [type(error) for error in refused] == [AgentExistsError] * 20
    assert len(await registered(table)) == 20 + 14
    await assert_all_is_told(table)


async def test_p19_a_repeated_creation_is_answered_as_the_first_and_told_once(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    callers = [Caller((ledger, second_ledger)[n % 2]) for n in range(6)]
    answers = await asyncio.gather(*(caller.create(key="once") for caller in callers))
    assert all(answer == answers[0] for answer in answers)
    assert await named(table) == [["agent-1"]]
    assert (await table.records())[0]["payload"]["idempotency"]["records"] == 2


async def test_an_agent_of_a_suspended_tenant_is_not_created(ledger: Ledger, table: Table) -> None:
    await ledger.administration.suspend_tenant(DEFAULT_TENANT_ID, "root", "late", suspended=True)
    answers = await outcomes(Caller(ledger, "a").create(), ledger.observed(*observing("b")))
    assert [type(answer) for answer in answers] == [ForbiddenError] * 2
    assert await registered(table) == []


async def tampered(table: Table) -> None:
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET signed_text = replace(signed_text, 'agent-1', 'agent-9') WHERE agent_id = $1",
        ADMINISTRATION,
    )


async def test_while_the_administration_chain_does_not_verify_no_agent_is_created(
    agent: Caller, table: Table, restarted: Opener
) -> None:
    await tampered(table)
    ledger = await restarted()
    before = await registered(table)
    answers = await outcomes(
        Caller(ledger, "new").create(),
        ledger.observed(*observing("agent-1", "new")),
        record_spans(ledger, WRITER, {"new": AgentSpans((), ())}, "00" * 32),
    )
    assert [type(answer) for answer in answers] == [TenantQuarantinedError] * 3
    assert await registered(table) == before
    await ledger.observed(*observing(agent.agent))


async def test_what_fails_for_one_caller_fails_for_no_other(ledger: Ledger, table: Table) -> None:
    sound = [asyncio.create_task(Caller(ledger, f"agent-{n}").create()) for n in range(3)]
    bad = asyncio.create_task(ledger.administration.record(DEFAULT_TENANT_ID, "x", {"text": "\ud800"}))
    await asyncio.gather(*sound)
    with pytest.raises(TrailsError):
        await bad
    assert len(await registered(table)) == 3
    await assert_all_is_told(table)


async def test_the_administration_chain_is_told_by_its_own_genesis(ledger: Ledger, table: Table) -> None:
    asking = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.ISSUE_KEY)
    await ledger.administration.issue_key(asking, NewKey(Role.WRITER, "ci"))
    [row] = await table.admin.fetch("SELECT agent_id, log_uuid::text FROM trails.agents")
    genesis = json.loads((await table.rows(ADMINISTRATION))[0]["signed_text"])["payload"]
    assert (genesis["log_id"], genesis["log_uuid"]) == (row["agent_id"], row["log_uuid"])
    assert genesis["covers"] == "agents"
    assert await told(table) == []


async def test_a_tenant_that_had_agents_before_its_administration_chain_is_not_said_to_be_covered(
    ledger: Ledger, pool: Pool, table: Table
) -> None:
    keys = await ledger._keystore.of(DEFAULT_TENANT_ID)
    old = filing.NewChain(ChainId(DEFAULT_TENANT_ID, "old", uuid4(), guarded=False))
    records = await filing.first_records(old, "operator", keys, ledger._clock())
    rows = [row_of(old.id, record, keys.newest.public.key_id) for record in records]
    await db.ledger.append(pool, rows, chains=[registry_row(old.id, rows[0])])
    await Caller(ledger, "new").create()
    assert await named(table) == [["new"]]
    assert "covers" not in (await table.records(ADMINISTRATION))[0]["payload"]


async def test_after_a_rotation_agents_are_still_told_of(
    ledger: Ledger, second_ledger: Ledger, table: Table
) -> None:
    await Caller(ledger, "before").create()
    await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "operator")
    second_ledger._keystore.settle_secs = 0.0
    second_ledger._keystore.forget(DEFAULT_TENANT_ID)
    await Caller(second_ledger, "after").create()
    assert "key_rotated" in await table.kinds(ADMINISTRATION)
    await assert_all_is_told(table)


async def key_called(ledger: Ledger, name: str, role: Role = Role.WRITER) -> str:
    asking = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.ISSUE_KEY)
    agent_id = "bot" if role is Role.AGENT else None
    return (await ledger.administration.issue_key(asking, NewKey(role, name, agent_id))).key.key_id


async def test_an_agent_is_not_called_as_a_key_in_use(agent: Caller, twin: Caller, table: Table) -> None:
    """Decided on what is on record when it begins, in whatever process the key was issued."""
    await Caller(agent.ledger, "bot").observe()
    key_id = await key_called(twin.ledger, "Stra\u00dfe")
    await key_called(twin.ledger, "own", Role.AGENT)
    for ledger in (agent.ledger, twin.ledger):
        with pytest.raises(NameInUseError, match="STRASSE"):
            await Caller(ledger, "STRASSE").create()
        with pytest.raises(NameInUseError) as caught:
            await ledger.observed(*observing("strasse", "Strasse", "x" + str(id(ledger))))
        assert sorted(caught.value.agent_ids) == ["Strasse", "strasse"]
    await Caller(agent.ledger, "own").observe()  # an agent's key acts as the agent
    asking = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.REVOKE_KEY)
    await twin.ledger.administration.revoke_key(asking, key_id)
    await Caller(agent.ledger, "strasse").create()
    assert len(await registered(table)) == 6
    await assert_all_is_told(table)


async def test_a_key_and_an_agent_that_begin_at_once_are_never_called_the_same(
    agent: Caller, twin: Caller, table: Table
) -> None:
    for number in range(8):
        name = f"n{number}"
        results = await outcomes(key_called(twin.ledger, name), Caller(agent.ledger, name).observe())
        [refused] = [result for result in results if isinstance(result, Exception)]
        assert isinstance(refused, ConflictError)
    await assert_all_is_told(table)
