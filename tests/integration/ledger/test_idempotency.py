"""Idempotency keys (case P21): the same key and body is the same act, for ever and in every process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from app.chain.canonical import canonical, canonical_parsed
from app.chain.strict import parse
from app.errors import IdempotencyConflictError
from app.ledger import Ledger
from app.ledger.idempotency import stamp
from tests.support.ledgers import Caller, Opener, Table, json_of, outcomes

Do = Callable[[Caller, str], Awaitable[Any]]
KEY = "0001-retry"


class Endpoint(msgspec.Struct, frozen=True):
    """An act that takes a key: what has to be there before it, the act itself, and the act's records."""

    act: Do
    records: int
    before: Do | None = None


async def _pending(caller: Caller, _: str) -> None:
    await caller.ask("email", {"to": "a"})


async def _allowed(caller: Caller, _: str) -> None:
    await caller.ask("search")


ENDPOINTS = {
    "allowed": Endpoint(lambda c, v: c.ask("search", v, key=KEY), 2),
    "denied": Endpoint(lambda c, v: c.ask("unheard-of", v, key=KEY), 3),
    "pending": Endpoint(lambda c, v: c.ask("email", v, key=KEY), 2),
    "joined": Endpoint(lambda c, v: c.ask("email", {"to": "a"}, key=KEY, thought_process=v), 1, _pending),
    "approve": Endpoint(lambda c, v: c.approve("act-1", v, key=KEY), 1, _pending),
    "reject": Endpoint(lambda c, v: c.reject("act-1", v, "moderate", key=KEY), 2, _pending),
    "report": Endpoint(lambda c, v: c.report("act-1", "failure", v, key=KEY), 2, _allowed),
    "scar": Endpoint(lambda c, v: c.scar("moderate", v, key=KEY), 1),
    "terminate": Endpoint(lambda c, v: c.terminate(v, key=KEY), 1),
}


async def ready(ledger: Ledger, name: str) -> Caller:
    """An agent of that name, ready for the endpoint."""
    agent = Caller(ledger, name)
    await agent.create()
    await agent.scar("minor", "earlier")
    before = ENDPOINTS[name].before
    if before is not None:
        await before(agent, "")
    return agent


async def test_p21_same_key_same_body_is_the_first_answer_for_ever(
    ledger: Ledger, second_ledger: Ledger, restarted: Opener, table: Table, subtests: pytest.Subtests
) -> None:
    for name, endpoint in ENDPOINTS.items():
        with subtests.test(endpoint=name):
            agent = await ready(ledger, name)
            before = len(await table.rows(name))
            first = json_of(await endpoint.act(agent, "a"))
            assert len(await table.rows(name)) == before + endpoint.records
            assert json_of(await endpoint.act(agent, "a")) == first
            # What happens afterwards changes nothing in the first answer.
            await agent.scar("moderate", "later")
            await agent.ask("search")
            after = len(await table.rows(name))
            for caller in (agent, agent.at(second_ledger), agent.at(await restarted())):
                assert json_of(await endpoint.act(caller, "a")) == first
            assert len(await table.rows(name)) == after


async def test_p21_same_key_other_body_is_a_conflict(
    ledger: Ledger, second_ledger: Ledger, restarted: Opener, table: Table, subtests: pytest.Subtests
) -> None:
    for name, endpoint in ENDPOINTS.items():
        with subtests.test(endpoint=name):
            agent = await ready(ledger, name)
            await endpoint.act(agent, "a")
            after = len(await table.rows(name))
            for caller in (agent, agent.at(second_ledger), agent.at(await restarted())):
                with pytest.raises(IdempotencyConflictError):
                    await endpoint.act(caller, "b")
            assert len(await table.rows(name)) == after


async def test_p21_fifty_at_once_are_one_act(
    ledger: Ledger, second_ledger: Ledger, table: Table, subtests: pytest.Subtests
) -> None:
    for name, endpoint in ENDPOINTS.items():
        with subtests.test(endpoint=name):
            agent = await ready(ledger, name)
            twin = agent.at(second_ledger)
            before = len(await table.rows(name))
            answers = await outcomes(*(endpoint.act((agent, twin)[n % 2], "a") for n in range(50)))
            assert [json_of(answer) for answer in answers] == [json_of(answers[0])] * 50
            assert len(await table.rows(name)) == before + endpoint.records


async def test_p21_creating_an_agent_again_is_the_first_answer(
    ledger: Ledger, second_ledger: Ledger, restarted: Opener, table: Table
) -> None:
    answers = await outcomes(*(Caller((ledger, second_ledger)[n % 2]).create(key=KEY) for n in range(20)))
    assert answers == [answers[0]] * 20
    await Caller(ledger).ask("search")
    assert await Caller(await restarted()).create(key=KEY) == answers[0]
    with pytest.raises(IdempotencyConflictError):
        await Caller(second_ledger).create(key=KEY, budget=7)
    assert await table.kinds() == ["genesis", "policy", "action_requested", "action_allowed"]


async def test_p21_a_first_answer_outlives_what_it_brought_about(agent: Caller, twin: Caller) -> None:
    spender = Caller(agent.ledger, "spender")
    await spender.create(budget=2)
    allowed = json_of(await spender.ask("search", key=KEY))
    assert (await spender.status())["termination_reason"] == "budget exhausted"
    assert json_of(await spender.at(twin.ledger).ask("search", key=KEY)) == allowed


async def test_p21_a_rate_limited_answer_keeps_its_retry_after(ledger: Ledger, second_ledger: Ledger) -> None:
    await Caller(ledger).create(rate_limit={"max_actions": 1, "window_secs": 60})
    await Caller(ledger).ask("look")
    first = json_of(await Caller(ledger).ask("look", key=KEY))
    assert first["retry_after_secs"] == 60
    assert json_of(await Caller(second_ledger).ask("look", key=KEY)) == first


def test_p21_reordered_json_is_the_same_body() -> None:
    texts = [b'{"tool":"t","input":{"a":1,"b":2.50}}', b' {"input": {"b": 2.5, "a": 1}, "tool": "t"}']
    marks = [stamp("actions", KEY, canonical_parsed(parse(text))) for text in texts]
    assert marks[0] == marks[1]
    assert marks[0] != stamp("actions", KEY, canonical({"tool": "t", "input": {"a": 1, "b": 2}}))


async def test_p21_a_key_counts_within_tenant_agent_and_endpoint(agent: Caller, table: Table) -> None:
    tenant = uuid4()
    await agent.ledger.create_tenant(tenant, "acme", "Acme")
    other, foreign = Caller(agent.ledger, "agent-2"), Caller(agent.ledger, "agent-1", tenant)
    await other.create()
    await foreign.create()
    for caller in (agent, other, foreign):
        assert json_of(await caller.ask("search", caller.agent, key=KEY))["remaining"] == 98
    await agent.scar("minor", key=KEY)
    await agent.report("act-1", key=KEY)
    rows = [*await table.rows(), *await table.rows("agent-2"), *await table.rows("agent-1", tenant)]
    assert len([row for row in rows if row["idempotency_key"] is not None]) == 5
