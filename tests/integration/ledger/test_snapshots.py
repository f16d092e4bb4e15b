"""Snapshots: a long chain is opened at the last one; a reader of the whole chain compares each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import asyncpg
import msgspec
import pytest

import db.ledger
from app.chain.keys import SigningKey
from app.chain.link import seal
from app.chain.record import SNAPSHOT, Draft
from app.errors import QuarantinedError
from app.guard.state import GuardState
from app.ledger import Ledger, snapshots
from app.ledger.mirror import row_of
from app.ledger.tenancy.administration import NewKey
from app.principal import ADMINISTRATION, Permission, Principal, Role, grant
from app.redaction import RuleList
from db.pool import Pool, create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import (
    MASTER_KEY,
    TABLE,
    Caller,
    Json,
    SetClock,
    Table,
    json_of,
    next_rows,
    outcomes,
    posted,
)
from tests.support.postgres import Database

EVERY = 10

Cold = Callable[..., Awaitable[Ledger]]


@pytest.fixture
async def ledger(pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """A ledger that takes a snapshot every ten records."""
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock, snapshot_every=EVERY)
    yield opened
    await opened.close()


@pytest.fixture
async def cold(ledger: Ledger, database: Database, clock: SetClock) -> AsyncIterator[Cold]:
    """Opens a ledger that remembers nothing; ``every`` is its setting."""
    del ledger
    opened: list[tuple[Pool, Ledger]] = []

    async def opener(every: int = EVERY) -> Ledger:
        pool = await create_pool(database.app_url, max_size=4)
        new = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock, snapshot_every=every)
        new._keystore.settle_secs = 0.0  # it goes by the newest key, however new that is
        new._keystore.forget(DEFAULT_TENANT_ID)
        opened.append((pool, new))
        return new

    yield opener
    for pool, one in opened:
        await one.close()
        await pool.close()


async def places(table: Table, agent: str = "agent-1") -> list[int]:
    """Where the snapshots of an agent's chain stand."""
    return [record["seq"] for record in await table.records(agent) if record["kind"] == SNAPSHOT]


async def state_at(caller: Caller, ledger: Ledger) -> GuardState:
    chain = await ledger._chain(caller.may(Permission.READ_STATUS))
    return await ledger._actor.refresh(chain)


async def edited(table: Table, seq: int, agent: str = "agent-1") -> None:
    """Somebody with all rights changes what stands at ``seq``."""
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET signed_text = replace(signed_text, '\"actor\":', '\"actor\" :')"
        " WHERE agent_id = $1 AND seq = $2",
        agent,
        seq,
    )


async def busy(agent: Caller, rounds: int) -> None:
    """Asks of all sorts: allowed, held, denied, with outcomes and scars."""
    for number in range(rounds):
        asked = json_of(await agent.ask("look", number))
        await agent.report(asked["action_id"], "failure" if number % 4 == 0 else "success")
        if number % 3 == 0:
            await agent.ask("email", {"to": number})
        if number % 5 == 0:
            await agent.ask("unheard-of")


async def test_one_stands_behind_so_many_records_and_between_acts(agent: Caller, table: Table) -> None:
    await busy(agent, 12)
    records = await table.records()
    found = await places(table)
    assert len(found) >= 3
    for before, after in pairwise([0, *found]):
        assert EVERY <= after - before <= EVERY + 4
    for seq in found:
        assert records[seq]["actor"] == "guard"
        assert records[seq - 1]["kind"] != "action_requested"
    assert (await agent.verify())["ok"] is True


async def test_posts_and_observed_agents_have_them_too(ledger: Ledger, table: Table, cold: Cold) -> None:
    watched = Caller(ledger, "watched")
    await watched.observe()
    for number in range(3):
        await watched.post(*[posted({"type": "x", "data": [number, i]}) for i in range(15)])
    assert await places(table, "watched") == [16, 32, 48]
    again = watched.at(await cold())
    assert (await again.status())["head"]["seq"] == 48
    assert (await again.verify())["ok"] is True


async def test_g15_a_process_that_begins_at_one_knows_what_the_rows_say(
    agent: Caller, cold: Cold, table: Table
) -> None:
    await busy(agent, 20)
    await agent.terminate("enough")
    by_rows = await table.folded()
    for every in (EVERY, 0):
        other = await cold(every)
        assert await state_at(agent, other) == by_rows
        assert await agent.at(other).status() == await agent.status()
        assert await agent.at(other).pending() == await agent.pending()


async def test_only_what_follows_it_is_read(agent: Caller, cold: Cold, table: Table) -> None:
    """A record before it that was meddled with shows to whoever reads the whole chain."""
    await busy(agent, 8)
    await edited(table, 3)
    last = (await places(table))[-1]
    assert last > 3
    other = await cold()
    assert (await agent.at(other).status())["alive"] is True
    with pytest.raises(QuarantinedError, match="seq 3"):
        await agent.at(await cold(0)).status()
    verdict = await agent.at(other).verify()
    assert verdict["failure"]["seq"] == 3
    with pytest.raises(QuarantinedError):
        await agent.at(other).status()


async def test_what_follows_it_is_verified(agent: Caller, cold: Cold, table: Table) -> None:
    await busy(agent, 8)
    await agent.ask("look")
    after = (await places(table))[-1] + 1
    await edited(table, after)
    with pytest.raises(QuarantinedError, match=f"seq {after}"):
        await agent.at(await cold()).status()


async def test_answers_that_are_asked_for_again_stay_the_same(agent: Caller, cold: Cold) -> None:
    first: dict[str, Any] = {}
    for number in range(12):
        key = f"k{number}"
        first[key] = json_of(await agent.ask("look", number, key=key))
        first[f"o{number}"] = await agent.report(first[key]["action_id"], "failure", key=f"o{number}")
    for ledger in (agent.ledger, await cold(), await cold(0)):
        same = agent.at(ledger)
        for number in range(12):
            assert json_of(await same.ask("look", number, key=f"k{number}")) == first[f"k{number}"]
            action_id = first[f"k{number}"]["action_id"]
            assert await same.report(action_id, "failure", key=f"o{number}") == first[f"o{number}"]


async def forged(agent: Caller, pool: Pool, key: SigningKey, change: Callable[[Json], Json]) -> None:
    """Somebody who has ``key``, and may write into the table, appends a snapshot of their own making."""
    chain = await agent.ledger._chain(agent.may(Permission.READ_STATUS))
    await agent.ledger._actor.refresh(chain)
    draft = chain.snapshot()
    payload = change(msgspec.json.decode(msgspec.json.encode(draft.payload)))
    record = seal(Draft(SNAPSHOT, payload, draft.actor), chain.head, agent.ledger._clock(), key)
    await db.ledger.append(pool, [row_of(chain.id, record, key.public.key_id)])


def refunded(payload: Json) -> Json:
    return {**payload, "state": {**payload["state"], "allowed": 0}}


async def keys_of(ledger: Ledger) -> list[SigningKey]:
    """The tenant's keys, oldest first."""
    ledger._keystore.forget(DEFAULT_TENANT_ID)
    keys = (await ledger._keystore.of(DEFAULT_TENANT_ID)).by_public_key.values()
    return [key for key in keys if isinstance(key, SigningKey)]


async def test_one_that_is_not_the_fold_is_a_fault_of_the_chain(
    agent: Caller, cold: Cold, pool: Pool
) -> None:
    """Even if the right key has signed it: what refunds a budget contradicts the records before it."""
    await agent.ask("search")
    [key] = await keys_of(agent.ledger)
    await forged(agent, pool, key, refunded)
    with pytest.raises(QuarantinedError, match="not the fold of the records before it"):
        await agent.ask("search")
    verdict = await agent.at(await cold()).verify()
    assert verdict["ok"] is False
    assert verdict["failure"]["reason"] == "the snapshot is not the fold of the records before it"
    with pytest.raises(QuarantinedError, match="not the fold"):
        await agent.at(await cold(0)).status()


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: {**payload, "genesis_key": "11" * 32},
        lambda payload: {**payload, "genesis_key": 7},
        lambda payload: {**payload, "agent_id": "agent-2"},
        lambda payload: {**payload, "state": None},
        lambda payload: {name: value for name, value in payload.items() if name != "state"},
        lambda payload: {**payload, "state": {**payload["state"], "allowed": True}},
    ],
)
async def test_whatever_else_it_says_wrong_is_one_too(
    agent: Caller, cold: Cold, pool: Pool, change: Callable[[Json], Json]
) -> None:
    await agent.ask("search")
    [key] = await keys_of(agent.ledger)
    await forged(agent, pool, key, change)
    with pytest.raises(QuarantinedError, match="snapshot"):
        await agent.ask("search")
    assert (await agent.at(await cold()).verify())["ok"] is False


async def test_one_of_a_later_form_is_passed_over(agent: Caller, cold: Cold, pool: Pool) -> None:
    await busy(agent, 3)
    [key] = await keys_of(agent.ledger)
    await forged(agent, pool, key, lambda _: {"form": 2, "whatever": "it says"})
    assert (await agent.verify())["ok"] is True
    assert await state_at(agent, await cold()) == await state_at(agent, agent.ledger)


async def test_c24_one_that_a_retired_key_signed_is_not_begun_at(
    agent: Caller, cold: Cold, pool: Pool, table: Table
) -> None:
    """Whoever stole that key could have refunded the budget in it."""
    await busy(agent, 4)
    await agent.ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    retired, _ = await keys_of(agent.ledger)
    await forged(agent, pool, retired, refunded)
    assert (await table.kinds())[-1] == SNAPSHOT
    other = await cold()
    with pytest.raises(QuarantinedError):
        await agent.at(other).status()
    assert (await agent.at(other).verify())["ok"] is False


async def test_c24_a_new_one_follows_a_rotation(agent: Caller, cold: Cold, table: Table) -> None:
    while not await places(table):
        await agent.ask("look")  # the last one is just behind a snapshot
    agent.ledger._keystore.settle_secs = 0.0
    await agent.ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    await agent.ask("look")
    kinds = await table.kinds()
    rotation = kinds.index("key_rotated")
    assert kinds[rotation + 1] == SNAPSHOT
    await edited(table, 3)
    assert (await agent.at(await cold()).status())["alive"] is True  # it was begun at the new one


async def test_one_of_another_chain_is_not_begun_at(
    agent: Caller, cold: Cold, table: Table, ledger: Ledger
) -> None:
    """Somebody with all rights copies a snapshot of a richer agent behind the last record of a poor one."""
    rich = Caller(ledger, "rich")
    await rich.create(budget=1_000_000)
    await busy(rich, 3)
    await busy(agent, 6)
    [seq, *_] = await places(table, "rich")
    await table.unlock()
    poor = await table.rows()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'agent-1' AND seq >= $1", seq)
    await table.admin.execute(
        f"INSERT INTO {TABLE} (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,"
        " prev_hash, hash, signature, key_id, idempotency_key, signed_text)"
        " SELECT tenant_id, 'agent-1', $1, seq, kind, actor, $1, created_at, prev_hash, hash, signature,"
        f" key_id, idempotency_key, signed_text FROM {TABLE} WHERE agent_id = 'rich' AND seq = $2",
        poor[0]["log_uuid"],
        seq,
    )
    with pytest.raises(QuarantinedError, match="prev_hash"):
        await state_at(agent, await cold())


async def test_c16_two_processes_take_one_and_not_two(agent: Caller, cold: Cold, table: Table) -> None:
    other = agent.at(await cold())
    await other.status()
    while len(await table.records()) < EVERY + 1:
        await agent.ask("look")
    assert await places(table) == []
    answers = await outcomes(*(one.ask("look", n) for n in range(3) for one in (agent, other)))
    assert [json_of(answer)["decision"] for answer in answers] == ["allowed"] * 6
    found = await places(table)
    assert found[0] >= EVERY
    assert all(after - before >= EVERY for before, after in pairwise(found))
    assert (await other.verify())["ok"] is True


async def test_one_that_would_be_too_long_is_not_written(
    agent: Caller, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ledger.act.MAX_SNAPSHOT_CHARS", 100)
    await busy(agent, 8)
    assert await places(table) == []
    monkeypatch.undo()
    await busy(agent, 4)
    assert len(await places(table)) >= 1


async def test_one_that_breaks_a_limit_of_records_hinders_no_act(ledger: Ledger, table: Table) -> None:
    """A wide rate window remembers more times than one array of a record may hold."""
    agent = Caller(ledger)
    await agent.create(rate_limit={"max_actions": 1_000_000, "window_secs": 10**6})
    while len(await table.records()) < EVERY:
        await agent.ask("look")
    chain = await ledger._chain(agent.may(Permission.READ_STATUS))
    times = (chain.state.recent[0],) * 100_001
    chain.state = msgspec.structs.replace(chain.state, recent=times)
    for _ in range(3):
        assert json_of(await agent.ask("look"))["decision"] == "allowed"
    assert await places(table) == []


async def test_a_long_one_comes_less_often(
    agent: Caller, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "CHARS_A_RECORD", 20)
    await busy(agent, 40)
    first, second, *_ = await places(table)
    size = len(msgspec.json.encode((await table.records())[first]))
    assert second - first >= size // 20 > EVERY


async def test_the_standing_of_a_tenant_is_begun_at_one_too(
    agent: Caller, cold: Cold, table: Table, admin: asyncpg.Connection
) -> None:
    """What is revoked stays revoked in a process that begins behind the revocation, whatever tables say."""
    ledger = agent.ledger
    may = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.ISSUE_KEY)
    may_revoke = grant(Principal(DEFAULT_TENANT_ID, Role.OPERATOR, "operator"), Permission.REVOKE_KEY)
    issued = [
        await ledger.administration.issue_key(may, NewKey(Role.AUDITOR, f"auditor {number}"))
        for number in range(8)
    ]
    await ledger.administration.revoke_key(may_revoke, issued[0].key.key_id)
    await ledger.administration.revoke_token(agent.may(Permission.REVOKE_TOKEN), "leaked")
    rules = RuleList.parse({"patterns": ["card_numbers"], "paths": ["$.secret"]}, 1)
    await ledger.administration.set_redaction(agent.may(Permission.SET_REDACTION), rules)
    for number in range(12):
        await ledger.administration.record(DEFAULT_TENANT_ID, "operator", {"act": "seen", "number": number})
    assert (await places(table, ADMINISTRATION))[-1] > 12
    await edited(table, 2, ADMINISTRATION)
    await admin.execute("ALTER TABLE trails.api_key_revocations DISABLE TRIGGER USER")
    await admin.execute("DELETE FROM trails.api_key_revocations")
    other = await cold()
    standing = await other._standings.of(DEFAULT_TENANT_ID)
    assert standing == (await ledger._standings.of(DEFAULT_TENANT_ID))
    assert issued[0].key.key_id not in standing.keys
    assert issued[1].key.key_id in standing.keys
    assert standing.epochs == {agent.agent: 1}
    assert standing.redaction.paths == ("$.secret",)
    whole = await cold(0)
    assert (await Caller(whole, ADMINISTRATION).verify())["failure"]["seq"] == 2


async def test_a_standing_that_is_not_the_fold_is_a_fault(agent: Caller, cold: Cold, pool: Pool) -> None:
    administration = Caller(agent.ledger, ADMINISTRATION)
    await agent.ledger.administration.record(DEFAULT_TENANT_ID, "operator", {"act": "seen"})
    [key] = await keys_of(agent.ledger)

    def revived(payload: Json) -> Json:
        return {**payload, "standing": {**payload["standing"], "keys": {"mine": None}}}

    await forged(administration, pool, key, revived)
    verdict = await Caller(await cold(), ADMINISTRATION).verify()
    assert verdict["failure"]["reason"] == "the snapshot is not the fold of the records before it"


async def test_behind_what_the_guard_would_refuse_nothing_vouches_for_one(
    agent: Caller, cold: Cold, pool: Pool
) -> None:
    """Whoever has the key makes an action allowed that nobody asked for, and a snapshot behind it."""
    other = await cold()
    [key] = await keys_of(agent.ledger)
    draft = Draft("action_allowed", {"action_id": "act-7", "approved_by": None}, "agent-1")
    rows = await next_rows(agent, draft)
    await db.ledger.append(pool, rows)
    chain = await agent.ledger._chain(agent.may(Permission.READ_STATUS))
    head = msgspec.structs.replace(chain.head, seq=rows[0].seq, hash=rows[0].hash)  # type: ignore[type-var]
    record = seal(chain.snapshot(), head, agent.ledger._clock(), key)
    await db.ledger.append(pool, [row_of(chain.id, record, key.public.key_id)])
    assert (await agent.at(other).status())["alive"] is True  # it is opened there …
    verdict = await agent.at(other).verify()  # … and does not stand up to being read
    assert verdict["failure"]["reason"].startswith("action_allowed: no action act-7")
    with pytest.raises(QuarantinedError):
        await agent.at(other).status()


async def test_many_posters_do_not_stumble_over_one(ledger: Ledger, table: Table) -> None:
    watched = Caller(ledger, "watched")
    await watched.observe()
    await asyncio.gather(*(watched.post(posted({"type": "x", "data": n}, f"k{n}")) for n in range(80)))
    kinds = await table.kinds("watched")
    assert kinds.count("event") == 80
    assert (await watched.verify())["ok"] is True


async def test_behind_a_kind_that_is_not_known_nothing_vouches_for_one(
    agent: Caller, cold: Cold, pool: Pool
) -> None:
    """Whoever has the key ends no comparison with a record that this version cannot fold."""
    await agent.ask("search")
    other = await cold()
    [key] = await keys_of(agent.ledger)
    chain = await agent.ledger._chain(agent.may(Permission.READ_STATUS))
    unheard_of = seal(Draft("unheard-of", {}, "agent-1"), chain.head, agent.ledger._clock(), key)
    draft = chain.snapshot()
    false = Draft(SNAPSHOT, refunded(draft.payload), draft.actor)
    record = seal(false, unheard_of.head, agent.ledger._clock(), key)
    rows = [row_of(chain.id, one, key.public.key_id) for one in (unheard_of, record)]
    await db.ledger.append(pool, rows)
    assert (await agent.at(other).status())["actions_allowed"] == 0  # it is opened there …
    verdict = await agent.at(other).verify()  # … and does not stand up to being read
    assert verdict["failure"]["reason"].startswith("records of kind 'unheard-of' are not known")
    with pytest.raises(QuarantinedError):
        await agent.at(other).status()
