"""Sessions at their limits, and between tenants: bounded work, each session once (case H33)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

import db.ledger
from app.chain.keys import SigningKey
from app.chain.link import seal
from app.chain.record import Draft, Head
from app.errors import AnswerTooLargeError, NotFoundError
from app.guard.kinds import TRACE
from app.ledger import Ledger
from app.ledger.chain import Chains
from app.ledger.keys.keystore import Keystore
from app.ledger.mirror import row_of
from app.ledger.post import Entry
from app.ledger.session_reading import Limits
from app.ledger.sessions import NodeCursor, SessionQuery, Sessions, read_beginning
from app.ledger.tenancy.origins import Origins
from app.principal import Permission
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from db.sessions import Wanted
from tests.integration.ledger.test_rotation import forged_chain, rotated, settled
from tests.support.ledgers import MASTER_KEY, TABLE, Caller, Opener, SetClock, Table

Open = Callable[..., Sessions]

SESSION = UUID(int=5)
SECOND_TENANT = UUID(int=77)


def node(number: int, parent: int | None = None, **members: Any) -> dict[str, Any]:
    made = {
        "node_id": str(UUID(int=1_000 + number)),
        "parent_id": None if parent is None else str(UUID(int=1_000 + parent)),
        "node_type": "TOOL_CALL",
        "name": f"n{number}",
        "inputs": {"n": number},
        "outputs": {"status": "success"},
    }
    return {**made, **members}


async def post(agent: Caller, *fragments: list[dict[str, Any]], session: UUID = SESSION) -> None:
    """Posts fragments of one session in one append."""
    await post_all(agent, [(session, nodes) for nodes in fragments])


async def post_all(agent: Caller, fragments: list[tuple[UUID, list[dict[str, Any]]]]) -> None:
    payloads: list[Any] = [
        {"session_id": str(session), "total_nodes": len(nodes), "trace_tree": [*nodes]}
        for session, nodes in fragments
    ]
    entries = [Entry(Draft(kind=TRACE, payload=payload, actor=agent.agent)) for payload in payloads]
    for receipt in await agent.ledger.post(agent.may(Permission.POST), entries):
        assert not isinstance(receipt, Exception), receipt


async def pages(sessions: Sessions, limit: int, **wanted: str) -> AsyncIterator[list[str]]:
    query = SessionQuery(limit, Wanted(**wanted))
    while True:
        page: Any = await sessions.page(DEFAULT_TENANT_ID, query)
        yield [entry["session_id"] for entry in page["sessions"]]
        if page["next"] is None:
            return
        query = SessionQuery(limit, Wanted(**wanted), after=read_beginning(page["next"]))


async def read(sessions: Sessions, **arguments: Any) -> Any:
    return json.loads(await sessions.read(DEFAULT_TENANT_ID, SESSION, **arguments))


@pytest.fixture
def opened(pool: Pool) -> Open:
    """Opens the sessions of the database with limits of one's own."""

    def opener(**limits: int) -> Sessions:
        chains = Chains(pool, capacity=10)
        return Sessions(pool, chains, Keystore(pool, MASTER_KEY), Origins(pool, chains), Limits(**limits))

    return opener


@pytest.fixture
async def many(agent: Caller, clock: SetClock) -> list[str]:
    """Seven sessions, newest first."""
    made = [uuid4() for _ in range(7)]
    for number, session in enumerate(made):
        clock.move(1)
        await post(agent, [node(number)], session=session)
    return [str(session) for session in reversed(made)]


async def test_a_session_larger_than_one_answer_says_how_to_read_it(agent: Caller, opened: Open) -> None:
    await post(agent, [node(number, inputs="x" * 100) for number in range(6)])
    for limits in ({"nodes": 5}, {"answer_bytes": 1_500}):
        with pytest.raises(AnswerTooLargeError, match=r"\?limit="):
            await read(opened(**limits))
    with pytest.raises(AnswerTooLargeError, match="trace_nodes"):
        await read(opened(sendings=5), limit=1)


async def test_a_page_ends_where_the_bytes_do_and_says_where_to_go_on(agent: Caller, opened: Open) -> None:
    await post(agent, [node(number, inputs="x" * 100) for number in range(6)])
    sessions = opened(answer_bytes=1_500)
    seen, after = [], None
    while True:
        page = await read(sessions, limit=6, after=after)
        assert 0 < len(page["nodes"]) < 6
        seen += [found["name"] for found in page["nodes"]]
        if page["next"] is None:
            break
        after = NodeCursor.parse(page["next"])
    assert seen == [f"n{number}" for number in range(6)]


async def test_one_node_larger_than_the_bytes_is_given_alone(agent: Caller, opened: Open) -> None:
    await post(agent, [node(1, inputs="x" * 1_000), node(2)])
    page = await read(opened(answer_bytes=500), limit=2)
    assert [found["name"] for found in page["nodes"]] == ["n1"]


async def test_contents_are_read_again_where_memory_does_not_hold_them(agent: Caller, opened: Open) -> None:
    # Parents in one record, children in others: pre-order goes back and forth between the records.
    await post(agent, [node(number) for number in range(4)])
    await post(agent, *([node(10 + number, number), node(20 + number, number)] for number in range(4)))
    whole = await read(opened())
    assert [found["name"] for found in whole["nodes"][:4]] == ["n0", "n10", "n20", "n1"]
    assert [found["inputs"]["n"] for found in whole["nodes"]] == [int(f["name"][1:]) for f in whole["nodes"]]
    for limits in ({"kept_chars": 0}, {"kept_chars": 0, "part_nodes": 3}, {"kept_chars": 0, "part_chars": 1}):
        assert await read(opened(**limits)) == whole


@pytest.mark.parametrize("looked_at", [1, 2, 3, 5, 100])
async def test_h33_pages_that_look_at_few_records_find_each_session_once(
    agent: Caller, many: list[str], opened: Open, looked_at: int
) -> None:
    await post(agent, *([node(50 + number)] for number in range(9)), session=UUID(many[3]))
    await post(agent, [node(1, outputs={"status": "failed"})], session=UUID(many[5]))
    sessions = opened(looked_at=looked_at)
    assert [session async for page in pages(sessions, 2) for session in page] == many
    assert [session async for page in pages(sessions, 2, status="failed") for session in page] == [many[5]]
    assert [session async for page in pages(sessions, 2, tool="n4") for session in page] == [many[2]]


@pytest.mark.parametrize("page_bytes", [1, 1_500, 4_000, 10**9])
async def test_h33_large_sessions_make_pages_short_and_cost_no_other_its_place(
    agent: Caller, many: list[str], opened: Open, page_bytes: int
) -> None:
    await post(
        agent, *([node(50 + number, inputs="x" * 1_000)] for number in range(4)), session=UUID(many[2])
    )
    await post(agent, [node(1, outputs={"status": "failed"})], session=UUID(many[5]))
    sessions = opened(page_bytes=page_bytes)
    walked = [page async for page in pages(sessions, 3)]
    assert [session for page in walked for session in page] == many
    assert max(map(len, walked)) == {1: 1, 10**9: 3}.get(page_bytes, max(map(len, walked)))
    failed = [session async for page in pages(sessions, 3, status="failed") for session in page]
    assert failed == [many[5]]


async def test_h33_sessions_of_one_moment_are_each_seen_once(agent: Caller, opened: Open) -> None:
    made = [uuid4() for _ in range(6)]
    await post_all(agent, [(session, [node(number)]) for number, session in enumerate(made)])
    seen = [session async for page in pages(opened(looked_at=1), 1) for session in page]
    assert seen == sorted(map(str, made), reverse=True)


async def test_h33_a_session_named_as_another_agents_chain_is_found(
    ledger: Ledger, agent: Caller, opened: Open
) -> None:
    # The other agent's own records bear the same session_id, at the same moment, and are no session.
    other = Caller(ledger, "other")
    chain = UUID(str((await other.create())["log_uuid"]))
    for _ in range(3):
        await other.ask("rm")
    await post(agent, [node(1)], session=chain)
    for _ in range(3):
        await other.ask("rm")
    for looked_at in (1, 2, 3):
        seen = [session async for page in pages(opened(looked_at=looked_at), 5) for session in page]
        assert seen == [str(chain)]
    assert [
        found["name"] for found in json.loads(await opened().read(DEFAULT_TENANT_ID, chain))["nodes"]
    ] == ["n1"]


async def test_h33_records_without_a_session_hide_none(
    agent: Caller, many: list[str], opened: Open, clock: SetClock
) -> None:
    clock.move(1)  # at one time the places are ordered by random ids
    for _ in range(5):
        await agent.ask("rm")
    found = [page async for page in pages(opened(looked_at=2), 10)]
    assert found[0] == [], "a page may be empty and still have a next"
    assert [session for page in found for session in page] == many


async def test_h33_another_tenants_place_and_sessions_are_of_no_use(
    ledger: Ledger, many: list[str], opened: Open
) -> None:
    await ledger.create_tenant(SECOND_TENANT, "second", "Second")
    other = Caller(ledger, "agent-1", SECOND_TENANT)
    await other.create()
    sessions = opened()
    page: Any = await sessions.page(DEFAULT_TENANT_ID, SessionQuery(2))
    asking = other.may(Permission.READ_SESSIONS)
    query = SessionQuery(50, after=read_beginning(page["next"]))
    assert await ledger.sessions(asking, query) == {"sessions": [], "next": None}
    for session in many:
        with pytest.raises(NotFoundError):
            await ledger.session(asking, UUID(session))
    # The same id in both tenants is two sessions.
    await post(other, [node(1, name="theirs")], session=UUID(many[0]))
    text = await ledger.session(asking, UUID(many[0]))
    assert [found["name"] for found in json.loads(text)["nodes"]] == ["theirs"]
    listed: Any = await ledger.sessions(asking, SessionQuery(50))
    assert [(entry["session_id"], entry["records"]) for entry in listed["sessions"]] == [(many[0], 1)]


# --- a retired key --------------------------------------------------------------------------------------


async def test_c24_what_a_retired_key_began_afterwards_is_told_and_left_out(
    agent: Caller, pool: Pool, restarted: Opener, table: Table
) -> None:
    """Each of its records verifies by itself; that it began too late, the records of administration tell."""
    await post(agent, [node(1)])
    await rotated(agent.ledger)
    await post(agent, [node(2, 1)])
    mole = await forged_chain(agent, pool, "mole")
    await forge(mole, pool, node(3, 1))
    for ledger in (agent.ledger, await settled(restarted), await settled(restarted)):
        caller = agent.at(ledger)
        for _ in range(2):
            session = json.loads(await ledger.session(caller.may(Permission.READ_SESSIONS), SESSION))
            assert [found["name"] for found in session["nodes"]] == ["n1", "n2"]
            assert session["agents"] == [agent.agent]
            [doubt] = session["unverified"]
            assert (doubt["agent_id"], doubt["seq"]) == ("mole", 1)
            assert "retired before any record told of this chain" in doubt["reason"]
    await table.unlock()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'mole' AND seq = 0")
    ledger = await settled(restarted)
    session = json.loads(await ledger.session(agent.at(ledger).may(Permission.READ_SESSIONS), SESSION))
    assert [found["name"] for found in session["nodes"]] == ["n1", "n2"]
    assert session["unverified"][0]["reason"] == "the first record of the chain is missing"


async def forge(mole: Caller, pool: Pool, sent: dict[str, Any]) -> None:
    """A record of the session behind the genesis record of a forged chain, by the first key of the tenant."""
    keys = await mole.ledger._keystore.of(DEFAULT_TENANT_ID)
    old = next(iter(keys.by_public_key.values()))
    assert isinstance(old, SigningKey)
    chain = await mole.ledger._chains.get(DEFAULT_TENANT_ID, mole.agent)
    found = await db.ledger.head(pool, DEFAULT_TENANT_ID, chain.id.log_uuid)
    assert found is not None
    payload: Any = {"session_id": str(SESSION), "total_nodes": 1, "trace_tree": [sent]}
    record = seal(Draft(TRACE, payload, "thief"), Head(*found, timestamp_us=0), 0, old)
    await db.ledger.append(pool, [row_of(chain.id, record, old.public.key_id)])
