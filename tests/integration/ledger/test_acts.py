"""The act flow: decide, seal, append, answer. All records of an act, or none."""

from __future__ import annotations

import asyncpg
import pytest

import db.ledger
from app.errors import (
    AgentExistsError,
    AlreadyTerminatedError,
    BadRequestError,
    ConflictError,
    InvalidStateError,
    NotFoundError,
    TooManyRequestsError,
    UnknownActionError,
)
from app.guard import decide
from app.ledger import Ledger
from db.pool import Pool
from db.schema import metadata
from tests.support.ledgers import TABLE, Caller, Opener, SetClock, Table, json_of, outcomes


async def test_creating_an_agent_records_genesis_and_policy(ledger: Ledger, table: Table) -> None:
    status = await Caller(ledger).create()
    genesis, policy = await table.records()
    assert (genesis["kind"], policy["kind"]) == ("genesis", "policy")
    assert genesis["payload"]["public_key"] == status["public_key"]
    assert status["head"] == {"seq": 1, "hash": (await table.rows())[1]["hash"]}
    assert (status["alive"], status["budget"], status["remaining"]) == (True, 100, 100)


async def test_each_act_appends_its_records_and_no_other(agent: Caller, table: Table) -> None:
    async def behind(seq: int) -> list[str]:
        return await table.kinds(after=seq)

    assert json_of(await agent.ask("search"))["decision"] == "allowed"
    assert await behind(1) == ["action_requested", "action_allowed"]
    assert json_of(await agent.ask("unheard-of"))["decision"] == "denied"
    assert await behind(3) == ["action_requested", "action_denied", "scar"]
    await agent.ask("email", {"to": "a"})
    assert await behind(6) == ["action_requested", "approval_required"]
    await agent.approve("act-3", note="fine")
    assert await behind(8) == ["action_allowed"]
    await agent.report("act-3", "failure", "bounced")
    assert await behind(9) == ["outcome", "scar"]
    await agent.ask("email", {"to": "b"})
    await agent.reject("act-4", "not now", "moderate")
    assert await behind(13) == ["action_rejected", "scar"]
    await agent.scar("minor", "rude", "act-1")
    assert await behind(15) == ["scar"]
    status = await agent.terminate()
    assert await behind(16) == ["terminated"]
    assert (status["alive"], status["termination_reason"]) == (False, "incident")


async def test_the_act_that_reaches_a_limit_also_terminates(ledger: Ledger, table: Table) -> None:
    spender = Caller(ledger, "spender")
    await spender.create(budget=2)
    assert json_of(await spender.ask("search"))["remaining"] == 0
    assert await table.kinds("spender", after=1) == ["action_requested", "action_allowed", "terminated"]
    sinner = Caller(ledger, "sinner")
    await sinner.create(scar_limit=3)
    await sinner.ask("unheard-of")
    assert await table.kinds("sinner", after=1) == ["action_requested", "action_denied", "scar", "terminated"]


async def test_nothing_is_appended_when_the_guard_refuses(agent: Caller, table: Table) -> None:
    await agent.ask("email")
    observed = Caller(agent.ledger, "observed")
    await observed.observe()
    before = await table.kinds(), await table.kinds("observed")
    refused = await outcomes(
        agent.scar(action_id="act-9"),
        agent.report("act-1"),
        agent.approve("act-9"),
        agent.create(),
        observed.ask(),
        Caller(agent.ledger, "nobody").ask(),
    )
    assert [type(error) for error in refused] == [
        UnknownActionError,
        InvalidStateError,
        UnknownActionError,
        AgentExistsError,
        ConflictError,
        NotFoundError,
    ]
    assert (await table.kinds(), await table.kinds("observed")) == before


async def test_an_act_is_whole_or_absent_when_one_of_its_records_is_refused(
    agent: Caller, table: Table
) -> None:
    await agent.ask("email")
    before = await table.kinds(), await agent.status()
    await table.admin.execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT t CHECK (kind <> 'terminated') NOT VALID")
    with pytest.raises(asyncpg.CheckViolationError):
        await agent.reject("act-1", scar="fatal")
    assert (await table.kinds(), await agent.status()) == before
    await table.admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT t")
    await agent.reject("act-1", scar="fatal")
    assert await table.kinds(after=3) == ["action_rejected", "scar", "terminated"]


async def test_the_status_after_an_act_is_the_status_read_afterwards(agent: Caller, twin: Caller) -> None:
    await agent.ask("search")
    assert await agent.report("act-1", "failure", "x") == await agent.status() == await twin.status()
    assert await twin.scar("moderate") == await agent.status()
    assert await agent.terminate() == await twin.status()
    assert [scar["reason"] for scar in (await agent.status())["scars"]] == ["action failed: x", "seen"]  # type: ignore[union-attr,index,call-overload]


async def test_reads_are_bounded_by_bytes_and_still_complete(
    agent: Caller, pool: Pool, monkeypatch: pytest.MonkeyPatch, restarted: Opener
) -> None:
    """Large records cost no more memory than small ones: chunks and pages end early, none is lost."""
    for number in range(6):
        await agent.ask("look", "x" * 1000 * number)
    before = await agent.status()
    monkeypatch.setattr(db.ledger, "CHUNK_BYTES", 2500)
    seqs, after = [], -1
    chain = await db.ledger.chain(pool, agent.tenant, agent.agent)
    assert chain is not None
    while rows := await db.ledger.records(pool, agent.tenant, chain.log_uuid, after=after):
        assert sum(len(row.signed_text) for row in rows[:-1]) < 2500
        seqs += [row.seq for row in rows]
        after = seqs[-1]
    assert seqs == list(range(before["head"]["seq"] + 1))
    again = agent.at(await restarted())
    assert await again.status() == before
    assert (await again.verify())["checked"] == len(seqs)


async def test_an_ask_joins_a_pending_one_only_so_often(
    agent: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "MAX_JOINS", 2)
    for _ in range(3):
        assert json_of(await agent.ask("email", 1, thought_process="please"))["action_id"] == "act-1"
    with pytest.raises(TooManyRequestsError, match="act-1 asks exactly this"):
        await agent.ask("email", 1)
    assert (await agent.action("act-1"))["status"] == "pending_approval"
    assert json_of(await agent.approve("act-1"))["decision"] == "allowed"


async def test_what_waits_for_a_person_is_bounded_in_size(
    agent: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "MAX_PENDING_CHARS", 2000)
    await agent.ask("email", "x" * 3000)
    with pytest.raises(TooManyRequestsError, match="wait for approval"):
        await agent.ask("email", "another")
    await agent.reject("act-1")
    assert json_of(await agent.ask("email", "another"))["decision"] == "pending_approval"


async def test_t13_a_records_time_is_the_injected_clock_whatever_the_caller_says(
    agent: Caller, clock: SetClock, table: Table
) -> None:
    clock.move(3.25)
    await agent.ask("search", {"occurred_at": "2099-01-01T00:00:00Z"})
    with pytest.raises(BadRequestError, match="timestamp: is no member here"):
        await agent.ask("search", timestamp="2020-01-01T00:00:00Z")
    for row, record in zip((await table.rows())[2:], (await table.records())[2:], strict=True):
        assert round(row["created_at"].timestamp() * 1_000_000) == clock.now_us
        assert record["timestamp"] == row["created_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def test_c15_a_clock_that_steps_back_refuses_no_append_and_reopens_no_window(
    ledger: Ledger, clock: SetClock, table: Table
) -> None:
    agent = Caller(ledger)
    await agent.create(rate_limit={"max_actions": 3, "window_secs": 60})
    for _ in range(3):
        clock.move(1)
        await agent.ask("look")
    clock.move(-600)
    for _ in range(3):
        answer = json_of(await agent.ask("look"))
        assert (answer["decision"], answer["reason"]["code"]) == ("denied", "rate_limited")
        # The first call leaves the window 60 s after it, on the chain's own time, which stands still.
        assert answer["retry_after_secs"] == 58
    clock.move(600 + 61)
    assert json_of(await agent.ask("look"))["decision"] == "allowed"
    times = [record["timestamp"] for record in await table.records()]
    assert times == sorted(times)
    assert (await agent.verify())["ok"] is True


async def test_p37_everything_runs_with_select_and_insert_alone(
    agent: Caller, pool: Pool, table: Table
) -> None:
    await agent.ask("email")
    await agent.approve("act-1")
    await agent.report("act-1")
    assert await pool.fetchval("SELECT current_user") == "trails_app"
    granted = await table.admin.fetch(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants"
        " WHERE grantee = 'trails_app' AND table_name <> 'alembic_version' ORDER BY 1, 2"
    )
    more = {
        (row["table_name"], row["privilege_type"])
        for row in granted
        if row["privilege_type"] not in {"INSERT", "SELECT"}
    }
    assert more == {("waiting_actions", "DELETE")}, "an index of what waits, and no evidence"
    written = {row["table_name"] for row in granted if row["privilege_type"] == "INSERT"}
    assert written == {known.name for known in metadata.tables.values()} - {"sql_logins"}


async def test_g15_two_ledgers_and_a_restart_say_the_same_as_the_rows(
    agent: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    for number in range(30):
        await (agent, twin)[number % 2].ask("search", number)
    await twin.ask("email")
    await agent.scar("moderate")
    await Caller(agent.ledger, "dead").create()
    await Caller(agent.ledger, "dead").terminate("over")
    third = agent.at(await restarted())
    for caller in (agent, twin, third):
        status = await caller.status()
        state = await table.folded()
        assert status == await agent.status()
        assert (status["spent"], status["actions_pending"], status["scar_score"]) == (60, 1, 3)
        assert (state.spent, list(state.pending), state.scar_score) == (60, ["act-31"], 3)
        assert state.head is not None
        assert status["head"] == {"seq": state.head.seq, "hash": state.head.hash}
        assert await caller.pending() == await agent.pending()
        dead = Caller(caller.ledger, "dead")
        assert json_of(await dead.ask())["reason"] == {"code": "terminated", "reason": "over"}
    assert [json_of(await caller.ask("search"))["remaining"] for caller in (third, twin, agent)] == [
        38,
        36,
        34,
    ]


async def test_g04_an_approval_counts_once(
    agent: Caller, twin: Caller, restarted: Opener, table: Table
) -> None:
    await agent.ask("email")
    assert json_of(await agent.approve("act-1"))["decision"] == "allowed"
    before = await table.kinds()
    for caller in (agent, twin, agent.at(await restarted())):
        for again in (caller.approve("act-1"), caller.reject("act-1")):
            with pytest.raises(InvalidStateError):
                await again
    await agent.report("act-1", "failure")
    with pytest.raises(InvalidStateError):
        await twin.approve("act-1")
    assert await table.kinds() == [*before, "outcome", "scar"]


async def test_g23_a_terminated_agent_gets_nothing_from_an_old_approval(
    agent: Caller, twin: Caller, table: Table
) -> None:
    await agent.ask("email", 1)
    await agent.ask("email", 2)
    await agent.approve("act-1")
    await twin.terminate("over")
    gone = {"code": "terminated", "reason": "over"}
    assert json_of(await agent.approve("act-2"))["reason"] == gone
    assert json_of(await agent.ask("look"))["reason"] == gone
    await agent.report("act-1", "success")
    assert (await table.records())[-1]["payload"]["late"] is True
    with pytest.raises(AlreadyTerminatedError):
        await agent.terminate()
    with pytest.raises(AgentExistsError):
        await twin.create()
    assert (await twin.status())["alive"] is False


async def test_g25_an_outcome_counts_once_and_unknown_may_become_known(
    agent: Caller, twin: Caller, table: Table
) -> None:
    await agent.ask("search")
    await agent.ask("search")
    first = await agent.report("act-1", "failure", "x", key="k")
    assert await twin.report("act-1", "failure", "x", key="k") == first
    for outcome in ("failure", "success"):
        with pytest.raises(InvalidStateError):
            await twin.report("act-1", outcome, "x")
    await twin.report("act-2", "unknown", "reply lost")
    with pytest.raises(InvalidStateError):
        await agent.report("act-2", "unknown")
    status = await agent.report("act-2", "success")
    with pytest.raises(InvalidStateError):
        await twin.report("act-2", "harmful")
    assert status["scar_score"] == 1
    records = await table.records()
    said = [r["payload"]["status"] for r in records if r["kind"] == "outcome"]
    assert said == ["failure", "unknown", "success"]
    anomalies = [r["payload"]["data"] for r in records if r["kind"] == "event"]
    assert [(a["action_id"], a["recorded"], a["reported"]) for a in anomalies] == [
        ("act-1", "failure", "success"),
        ("act-2", "success", "harmful"),
    ]
    assert (await agent.action("act-2"))["outcome"] == "success"


async def test_g25_a_refused_outcome_is_refused_again_under_the_same_key(
    agent: Caller, twin: Caller, table: Table
) -> None:
    await agent.ask("search")
    await agent.report("act-1", "success")
    for caller in (agent, agent, twin):
        with pytest.raises(InvalidStateError, match="act-1 is completed"):
            await caller.report("act-1", "failure", "late doubt", key="k")
    assert [r["kind"] for r in await table.records()].count("event") == 1
    assert (await agent.action("act-1"))["outcome"] == "success"
