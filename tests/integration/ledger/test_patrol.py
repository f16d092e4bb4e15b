"""The patrol: what breaks under a running service is found by each process within a round, and told once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest

from app.errors import NotFoundError, QuarantinedError, TenantQuarantinedError
from app.ledger import Ledger
from app.ledger.chain import Chain, ChainId
from app.ledger.tenancy.administration import NewKey
from app.ledger.watch import patrol
from app.ledger.watch.patrol import SLICE_ROWS
from app.principal import ADMINISTRATION, Permission, Role
from db.pool import Pool
from db.schema import DEFAULT_TENANT_ID
from tests.integration.ledger.test_quarantine import TAMPERED
from tests.support.faults import rounds
from tests.support.ledgers import (
    MASTER_KEY,
    TABLE,
    Caller,
    Opener,
    SetClock,
    Table,
    event,
    json_of,
    outcomes,
    posted,
)

BROKEN = "a chain does not verify and is quarantined"
AT_ONCE = 1e9
"""A pace that waits for nothing."""

SECOND_TENANT = UUID(int=77)


async def go_round(*ledgers: Ledger, times: int = 1) -> None:
    for ledger in ledgers:
        going = ledger.patrol(AT_ONCE)
        for _ in range(times):
            await going.round()


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, str]]]:
    """Errors and warnings of the ledger and of the patrol, each with its fields."""
    return [
        (record.message, getattr(record, "fields", {}))
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("trails.")
    ]


def agents_told(caplog: pytest.LogCaptureFixture, message: str = BROKEN) -> list[str]:
    return sorted(fields["agent"] for text, fields in told(caplog) if text == message)


async def states(*callers: Caller) -> list[str]:
    return [str((await caller.listed())["state"]) for caller in callers]


@pytest.fixture
async def small_ledger(ledger: Ledger, pool: Pool, clock: SetClock) -> AsyncIterator[Ledger]:
    """A process that keeps two chains in memory."""
    del ledger
    opened = await Ledger.open(pool, master_key=MASTER_KEY, clock=clock, chains=2)
    yield opened
    await opened.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patrol that waits for no database."""
    monkeypatch.setattr(patrol, "AWAY_SECS", 0.0)


async def test_each_process_finds_what_breaks_while_it_has_the_chain_open_and_tells_it_once(
    agent: Caller, second_ledger: Ledger, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    names = {how: f"tampered-{number}" for number, how in enumerate(TAMPERED)}
    beside = [Caller(agent.ledger, name) for name in (*names.values(), "agent-2")]
    for caller in beside:
        await caller.create()
        for number in range(3):
            await caller.ask("search", number)
        await caller.at(second_ledger).status()
    await go_round(agent.ledger, second_ledger)
    assert told(caplog) == []
    await table.unlock()
    for how, (statement, _, _) in TAMPERED.items():
        await table.admin.execute(statement.replace("AGENT", names[how]))
    for ledger in (agent.ledger, second_ledger):
        caplog.clear()
        await go_round(ledger, times=3)
        assert agents_told(caplog) == sorted(names.values())
        assert len(told(caplog)) == len(names)
        assert ledger.meter.broken == ledger.load().quarantined == len(names)
        events = {fields["agent"]: fields for _, fields in told(caplog)}
        for how, (_, _, seq) in TAMPERED.items():
            assert events[names[how]]["reason"].startswith(f"seq {seq}: ")
            assert events[names[how]]["tenant"] == "default"
            with pytest.raises(QuarantinedError, match=f"seq {seq}: "):
                await Caller(ledger, names[how]).ask()
        sound = Caller(ledger, "agent-2")
        assert json_of(await sound.ask())["decision"] == "allowed"
        assert (await sound.verify())["ok"] is True


@pytest.mark.parametrize(
    "value",
    [
        "created_at = '20000-01-01'",
        "created_at = '0044-03-15 BC'",
        "created_at = 'infinity'",
        "signature = NULL",
    ],
)
async def test_a_row_that_no_client_can_read_is_a_fault(
    agent: Caller, restarted: Opener, table: Table, value: str
) -> None:
    await agent.ask("search")
    await table.unlock()
    await table.admin.execute(f"ALTER TABLE {TABLE} ALTER signature DROP NOT NULL")
    await table.admin.execute(f"UPDATE {TABLE} SET {value} WHERE agent_id = 'agent-1' AND seq = 2")
    await go_round(agent.ledger)
    for ledger in (agent.ledger, await restarted()):
        with pytest.raises(QuarantinedError, match="seq 2: "):
            await agent.at(ledger).ask()
        verdict = await agent.at(ledger).verify()
        assert (verdict["failure"]["seq"], verdict["faults"][0]["fault"]) == (2, "mirror")


async def test_p29_a_tail_that_was_cut_is_found_although_nobody_asks(agent: Caller, table: Table) -> None:
    for number in range(3):
        await agent.ask("search", number)
    await table.unlock()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'agent-1' AND seq > 5")
    await go_round(agent.ledger)
    chain = agent.ledger._chains.at_hand(DEFAULT_TENANT_ID, agent.agent)
    assert chain is not None
    assert chain.fault == "seq 7: record 7 was verified here before and is no longer in the table"


async def test_what_verifies_again_is_released_by_a_verification_alone(agent: Caller, table: Table) -> None:
    await agent.ask("search")
    await table.unlock()
    signature = (await table.rows())[3]["signature"]
    sign = f"UPDATE {TABLE} SET signature = $1 WHERE agent_id = 'agent-1' AND seq = 3"
    await table.admin.execute(sign, "0" * 128)
    await go_round(agent.ledger)
    await table.admin.execute(sign, signature)
    await go_round(agent.ledger, times=2)
    with pytest.raises(QuarantinedError, match="seq 3"):
        await agent.ask("search")
    assert (await agent.verify())["ok"] is True
    assert json_of(await agent.ask("search"))["remaining"] == 96
    await go_round(agent.ledger)
    assert await states(agent) == ["active"]


async def test_what_a_request_has_found_is_not_told_again(
    agent: Caller, table: Table, restarted: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    await agent.ask("search")
    await table.unlock()
    await table.admin.execute(f"UPDATE {TABLE} SET signature = repeat('0', 128) WHERE seq = 3")
    again = agent.at(await restarted())
    for _ in range(2):
        with pytest.raises(QuarantinedError):
            await again.status()
    await go_round(again.ledger, times=2)
    assert (await again.verify())["ok"] is False
    assert agents_told(caplog) == ["agent-1"]
    assert again.ledger.meter.broken == 1


async def test_a_tenant_whose_administration_breaks_is_refused_at_once(
    agent: Caller, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    administration = agent.ledger.administration
    issued = await administration.issue_key(agent.may(Permission.ISSUE_KEY), NewKey(Role.WRITER, "ingest"))
    token = issued.token.encode()
    assert (await agent.ledger.caller(token)).name == "ingest"
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET actor = 'nobody' WHERE agent_id = '{ADMINISTRATION}' AND seq = 1"
    )
    assert (await agent.ledger.caller(token)).name == "ingest"
    await go_round(agent.ledger)
    refused = await outcomes(agent.ledger.caller(token), agent.ask("search"))
    assert [type(error) for error in refused] == [TenantQuarantinedError] * 2
    assert agents_told(caplog) == [ADMINISTRATION]
    assert (await agent.verify())["ok"] is True, "an agent's chain is judged all the same"


async def test_a_chain_that_vanished_from_the_registry_is_not_forgotten(
    agent: Caller, twin: Caller, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that knew it refuses it; the other one tells that rows belong to no chain."""
    await Caller(agent.ledger, "agent-2").create()
    log_uuid = str((await table.rows())[0]["log_uuid"])
    await table.unlock()
    await table.admin.execute("ALTER TABLE trails.agents DISABLE TRIGGER USER")
    await table.admin.execute("DELETE FROM trails.agents WHERE agent_id = 'agent-1'")
    await go_round(agent.ledger, times=2)
    with pytest.raises(QuarantinedError, match="registry"):
        await agent.ask("search")
    assert (await agent.verify())["ok"] is False
    with pytest.raises(QuarantinedError, match="registry"):
        await agent.ask("search")
    stray = ("rows belong to no chain of the registry", {"tenant": "default", "log_uuid": log_uuid})
    assert [text for text, _ in told(caplog)] == [BROKEN, stray[0]]
    caplog.clear()
    await go_round(twin.ledger, times=2)
    assert told(caplog) == [stray]
    with pytest.raises(NotFoundError):
        await twin.ask("search")


async def test_a_chain_whose_row_of_the_registry_was_changed_is_refused(agent: Caller, table: Table) -> None:
    await table.admin.execute("ALTER TABLE trails.agents DISABLE TRIGGER USER")
    await table.admin.execute("UPDATE trails.agents SET guarded = false WHERE agent_id = 'agent-1'")
    await go_round(agent.ledger)
    with pytest.raises(QuarantinedError, match="registry"):
        await agent.ask("search")


async def test_going_round_is_no_use_of_a_chain_and_what_is_broken_is_remembered(
    small_ledger: Ledger, table: Table
) -> None:
    callers = [Caller(small_ledger, f"agent-{number}") for number in range(6)]
    for caller in callers:
        await caller.create()
    await callers[1].status()
    before = list(small_ledger._chains._chains)
    await go_round(small_ledger)
    assert list(small_ledger._chains._chains) == before
    assert len(before) == 2
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET session_id = gen_random_uuid()"
        " WHERE agent_id IN ('agent-0', 'agent-2', 'agent-4') AND seq = 1"
    )
    await go_round(small_ledger)
    assert await states(*callers) == ["quarantined", "active"] * 3


async def test_every_chain_of_every_tenant_is_verified_once_a_round(
    agent: Caller, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = agent.ledger
    await ledger.create_tenant(SECOND_TENANT, "second", "Second")
    others = [Caller(ledger, "same-name", tenant) for tenant in (DEFAULT_TENANT_ID, SECOND_TENANT)]
    for caller in others:
        await caller.observe()
    await others[1].post(*(posted(event(n=number).payload) for number in range(3 * SLICE_ROWS)))
    await go_round(ledger, times=2)
    records = await table.admin.fetchval(f"SELECT count(*) FROM {TABLE}")
    assert ledger.meter.verified == 2 * records
    assert (ledger.meter.rounds, ledger.meter.broken, told(caplog)) == (2, 0, [])
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET prev_hash = repeat('0', 64) WHERE tenant_id = $1 AND seq = {2 * SLICE_ROWS + 1}",
        SECOND_TENANT,
    )
    await go_round(ledger)
    assert await states(*others) == ["active", "quarantined"]
    assert [fields["tenant"] for _, fields in told(caplog)] == ["second"]


async def test_a_tenant_whose_key_does_not_open_is_told_once_and_hinders_no_other(
    agent: Caller, restarted: Opener, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    await agent.ledger.create_tenant(SECOND_TENANT, "second", "Second")
    await Caller(agent.ledger, "agent-2", SECOND_TENANT).create()
    await table.unlock()
    await table.admin.execute("ALTER TABLE trails.signing_keys DISABLE TRIGGER USER")
    await table.admin.execute(
        "UPDATE trails.signing_keys SET sealed_secret = $2 WHERE tenant_id = $1", SECOND_TENANT, b"\0" * 60
    )
    await table.admin.execute(
        f"UPDATE {TABLE} SET signature = repeat('0', 128) WHERE tenant_id = $1"
        " AND agent_id = 'agent-1' AND seq = 1",
        DEFAULT_TENANT_ID,
    )
    ledger = await restarted()
    await go_round(ledger, times=2)
    assert [text for text, _ in told(caplog)] == [BROKEN, "this could not be verified"]
    assert told(caplog)[1][1]["tenant"] == "second"
    assert (ledger.meter.rounds, ledger.meter.broken) == (0, 1)


@pytest.mark.parametrize(
    "trouble",
    [("1 / (seq - 1)", "DivisionByZeroError"), ("refuse()", "the database is not available")],
    ids=["defect", "unavailable"],
)
async def test_a_chain_that_cannot_be_read_hinders_no_other(
    agent: Caller, table: Table, caplog: pytest.LogCaptureFixture, at_once: None, trouble: tuple[str, str]
) -> None:
    """It is told once and makes no round of it; here a policy of the table makes its rows unreadable."""
    del at_once
    expression, reason = trouble
    other = Caller(agent.ledger, "agent-2")
    await other.create()
    await table.admin.execute(
        "CREATE FUNCTION refuse() RETURNS int LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'insufficient_privilege'; END$$"
    )
    await table.admin.execute(
        f"CREATE POLICY trouble ON {TABLE} AS RESTRICTIVE FOR SELECT"
        f" USING (CASE WHEN agent_id = 'agent-1' AND seq = 1 THEN {expression} ELSE 1 END = 1)"
    )
    await go_round(agent.ledger, times=2)
    errors = [(fields["agent"], fields["reason"]) for text, fields in told(caplog) if text.startswith("this")]
    assert [name for name, _ in errors] == ["agent-1"]
    assert errors[0][1].startswith(reason)
    await table.unlock()
    await table.admin.execute(f"UPDATE {TABLE} SET signature = repeat('0', 128) WHERE agent_id = 'agent-2'")
    await go_round(agent.ledger)
    assert agents_told(caplog) == ["agent-2"]
    assert agent.ledger.meter.rounds == 0
    await table.admin.execute(f"DROP POLICY trouble ON {TABLE}")
    await go_round(agent.ledger)
    assert agent.ledger.meter.rounds == 1


async def test_while_the_database_is_away_it_waits_and_then_goes_on(
    agent: Caller, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    going = asyncio.create_task(agent.ledger.patrol(AT_ONCE).run())
    meter = agent.ledger.meter
    try:
        await _until(lambda: meter.rounds >= 1)
        await table.admin.execute("ALTER ROLE trails_app NOLOGIN")
        await table.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'trails_app'"
        )
        waits = "the database is not available: verification in the background waits"
        await _until(lambda: [text for text, _ in told(caplog)] == [waits])
        rounds_before = meter.rounds
        await table.unlock()
        await table.admin.execute(f"UPDATE {TABLE} SET signature = repeat('0', 128) WHERE seq = 1")
    finally:
        await table.admin.execute("ALTER ROLE trails_app LOGIN")
    await _until(lambda: meter.rounds >= rounds_before + 2)
    assert agents_told(caplog) == [ADMINISTRATION, "agent-1"]
    assert meter.covered_since is not None
    assert not going.done()
    going.cancel()
    await asyncio.wait({going})


async def test_a_chain_that_begins_with_a_key_not_heard_of_is_no_fault(
    agent: Caller, second_ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    agent.ledger._keystore._known.secs = 600.0
    await go_round(agent.ledger)
    second_ledger._keystore.settle_secs = 0.0
    await second_ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
    await Caller(second_ledger, "agent-2").create()
    await go_round(agent.ledger)
    assert (agent.ledger.meter.rounds, told(caplog)) == (2, [])


def test_who_is_told_of_a_fault_hears_of_it_once_until_it_is_released() -> None:
    heard: list[str] = []
    chain_id = ChainId(DEFAULT_TENANT_ID, "agent-1", UUID(int=1), guarded=False)
    chain = Chain(chain_id, lambda found, reason: heard.append(f"{found.agent_id}: {reason}"))
    chain.quarantine("one")
    chain.quarantine("two")
    assert heard == ["agent-1: one"]
    chain.release()
    chain.quarantine("three")
    assert heard == ["agent-1: one", "agent-1: three"]


ROUNDS_MEANWHILE = 2
"""So often at least it has to have gone round while others wrote."""


async def test_no_alarm_is_raised_while_others_write_rotate_keys_and_forget_chains(
    agent: Caller, small_ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Chains grow within a slice, are handed over to new keys, begin, and are forgotten and opened again."""
    ledgers = (agent.ledger, small_ledger)
    for ledger in ledgers:
        ledger._keystore.settle_secs = 0.0
    others = [Caller(agent.ledger, f"agent-{number}") for number in range(2, 6)]
    for other in others:
        await other.observe()
    going = [asyncio.create_task(_go_on(ledger)) for ledger in ledgers]

    async def post(ledger: Ledger, turn: int) -> None:
        for number, other in enumerate(others):
            entries = [posted(event(n=number).payload) for _ in range(turn * 11 % (SLICE_ROWS + 3))]
            assert not any(isinstance(result, Exception) for result in await other.at(ledger).post(*entries))

    async def write(ledger: Ledger) -> None:
        turn = -1
        while (turn := turn + 1) < rounds(4, 60) or ledger.meter.rounds <= ROUNDS_MEANWHILE:
            await post(ledger, turn)
            await Caller(ledger, f"new-{id(ledger)}-{turn}").create()
            if turn % 4 == 3:
                await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")

    async with asyncio.timeout(120):
        await asyncio.gather(*map(write, ledgers))
    went = [ledger.meter.rounds for ledger in ledgers]
    await _until(
        lambda: all(ledger.meter.rounds >= before + 2 for ledger, before in zip(ledgers, went, strict=True))
    )
    for task in going:
        task.cancel()
    await asyncio.wait(going)
    assert all(task.cancelled() for task in going)
    assert told(caplog) == []
    for ledger, before in zip(ledgers, went, strict=True):
        assert before > ROUNDS_MEANWHILE
        assert ledger.meter.broken == 0


async def _go_on(ledger: Ledger) -> None:
    going = ledger.patrol(5_000)
    while True:
        await going.round()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)
