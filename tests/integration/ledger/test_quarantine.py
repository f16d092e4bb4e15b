"""A chain that does not verify answers nothing and says why; every other chain goes on."""

from __future__ import annotations

from collections import Counter

import asyncpg
import pytest

import db.ledger
from app.chain.record import Draft
from app.errors import KeyMaterialError, QuarantinedError, UnavailableError
from app.ledger import Ledger
from db.pool import Pool
from tests.support.ledgers import (
    TABLE,
    Caller,
    Opener,
    Table,
    event,
    json_of,
    next_rows,
    outcomes,
)

MINE = f"UPDATE {TABLE} SET %s WHERE agent_id = 'AGENT' AND seq = 3"

SWAP = f"""
    UPDATE {TABLE} SET seq = CASE seq WHEN 3 THEN 103 ELSE 3 END WHERE agent_id = 'AGENT' AND seq IN (3, 5);
    UPDATE {TABLE} SET seq = 5 WHERE agent_id = 'AGENT' AND seq = 103
"""

TAMPERED = {
    "text": (MINE % """signed_text = replace(signed_text, '"cost":2', '"cost":1')""", "content", 3),
    "text and hash": (
        MINE
        % """signed_text = replace(signed_text, '"cost":2', '"cost":1'), hash = encode(sha256(convert_to(
            E'lineage-audit-v1\\n' || replace(signed_text, '"cost":2', '"cost":1'), 'UTF8')), 'hex')""",
        "signature",
        3,
    ),
    "signature": (MINE % "signature = repeat('0', 128)", "signature", 3),
    "kind": (MINE % "kind = 'action_denied'", "mirror", 3),
    "time": (MINE % "created_at = created_at + interval '1 us'", "mirror", 3),
    "key": (MINE % "key_id = repeat('0', 16)", "mirror", 3),
    "session": (MINE % "session_id = gen_random_uuid()", "mirror", 3),
    "deleted": (f"DELETE FROM {TABLE} WHERE agent_id = 'AGENT' AND seq = 3", "order", 3),
    "first deleted": (f"DELETE FROM {TABLE} WHERE agent_id = 'AGENT' AND seq = 0", "order", 0),
    "all deleted": (f"DELETE FROM {TABLE} WHERE agent_id = 'AGENT'", "signature", 0),
    "swapped": (SWAP, "order", 3),
}


@pytest.fixture
async def neighbour(agent: Caller) -> Caller:
    """Another agent of the same tenant; both have asked three times."""
    other = Caller(agent.ledger, "agent-2")
    await other.create()
    for number in range(3):
        await agent.ask("search", number)
        await other.ask("search", number)
    return other


async def test_a_tampered_chain_is_quarantined_with_where_and_why(
    neighbour: Caller, restarted: Opener, table: Table, subtests: pytest.Subtests
) -> None:
    names = {how: f"tampered-{number}" for number, how in enumerate(TAMPERED)}
    for name in names.values():
        await Caller(neighbour.ledger, name).create()
        for number in range(3):
            await Caller(neighbour.ledger, name).ask("search", number)
    await table.unlock()
    for how, (statement, _, _) in TAMPERED.items():
        await table.admin.execute(statement.replace("AGENT", names[how]))
    ledger = await restarted()
    for how, (_, fault, seq) in TAMPERED.items():
        with subtests.test(how=how):
            again = Caller(ledger, names[how])
            refused = await outcomes(
                again.status(), again.ask(), again.scar(), again.action("act-1"), again.pending()
            )
            assert {type(error) for error in refused} == {QuarantinedError}
            where = f"seq {seq}: " if how != "all deleted" else "the table holds no record of it"
            assert where in str(refused[0])
            entry = {"agent_id": again.agent, "state": "quarantined", "error": str(refused[0])}
            assert await again.listed() == entry
            verdict = await again.verify()
            assert (verdict["ok"], verdict["verdict"]) == (False, "tampered")
            assert (verdict["failure"]["seq"], verdict["faults"][0]["fault"]) == (seq, fault)
    beside = neighbour.at(ledger)
    assert json_of(await beside.ask())["decision"] == "allowed"
    assert (await beside.listed())["state"] == "active"
    assert (await beside.verify())["ok"] is True


@pytest.mark.usefixtures("neighbour")
async def test_a_chain_is_released_when_it_verifies_again(
    agent: Caller, restarted: Opener, table: Table
) -> None:
    await table.unlock()
    text = (await table.rows())[3]["signed_text"]
    set_text = f"UPDATE {TABLE} SET signed_text = $1 WHERE agent_id = 'agent-1' AND seq = 3"
    await table.admin.execute(set_text, text.replace('"cost":2', '"cost":1'))
    again = agent.at(await restarted())
    with pytest.raises(QuarantinedError):
        await again.ask()
    assert (await again.verify())["ok"] is False
    await table.admin.execute(set_text, text)
    with pytest.raises(QuarantinedError):  # nothing is released by itself
        await again.ask()
    assert (await again.verify())["ok"] is True
    assert json_of(await again.ask("search", "again"))["remaining"] == 92
    assert (await again.status())["remaining"] == 92


@pytest.mark.usefixtures("neighbour")
async def test_p29_a_tail_that_is_gone_is_noticed_by_the_process_that_knew_it(
    agent: Caller, table: Table
) -> None:
    await table.unlock()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'agent-1' AND seq > 5")
    await table.admin.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    with pytest.raises(QuarantinedError, match="record 7 was verified here before and is no longer"):
        await agent.ask()
    verdict = await agent.verify()
    assert verdict["ok"] is False
    assert (verdict["failure"]["seq"], verdict["faults"][0]["fault"]) == (7, "order")
    with pytest.raises(QuarantinedError):
        await agent.status()


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("grown", [False, True], ids=["same length", "longer"])
async def test_a_replaced_tail_is_noticed_although_it_verifies_on_its_own(
    agent: Caller, restarted: Opener, table: Table, grown: bool
) -> None:
    """A database set back to an earlier state, which another process went on from."""
    await table.unlock()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'agent-1' AND seq > 5")
    await table.admin.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    other = agent.at(await restarted())
    await other.ask("search", "another history")
    if grown:
        await other.ask("search", "and on")
    with pytest.raises(QuarantinedError):
        await agent.ask()
    verdict = await agent.verify()
    assert verdict["ok"] is False
    assert verdict["failure"]["seq"] == 7
    with pytest.raises(QuarantinedError):
        await agent.ask()
    assert (await other.verify())["ok"] is True  # it knows of no other history


async def test_the_records_of_an_action_must_be_what_was_verified(
    agent: Caller, twin: Caller, table: Table
) -> None:
    """G01: an approval is for what was asked, not for what the table says now."""
    await agent.ask("email", {"to": "a"})
    await agent.ask("search")
    await table.unlock()
    swap = f"UPDATE {TABLE} SET signed_text = $1, hash = $2, signature = $3 WHERE seq = 2"
    rows = await next_rows(
        twin, Draft("action_requested", {"action_id": "act-1", "tool": "email", "input": "x", "cost": 5}, "x")
    )
    await table.admin.execute(swap, rows[0].signed_text, rows[0].hash, rows[0].signature)
    with pytest.raises(QuarantinedError, match="columns differ"):
        await agent.approve("act-1")
    assert (await agent.listed())["state"] == "quarantined"


MISSING_REQUEST = f"DELETE FROM {TABLE} WHERE seq = 2"
REPEATED_REQUEST = f"""
    UPDATE {TABLE} AS a SET signed_text = b.signed_text, hash = b.hash, signature = b.signature
      FROM {TABLE} AS b WHERE a.seq = 3 AND b.seq = 2
"""


@pytest.mark.parametrize("statement", [MISSING_REQUEST, REPEATED_REQUEST], ids=["missing", "repeated"])
async def test_an_action_whose_records_do_not_fit_quarantines_its_chain(
    agent: Caller, table: Table, statement: str
) -> None:
    await agent.ask("search")
    await agent.ask("search")
    await table.unlock()
    await table.admin.execute(statement)
    with pytest.raises(QuarantinedError):
        await agent.report("act-1")
    assert (await agent.listed())["state"] == "quarantined"


async def test_missing_scars_quarantine_the_chain(agent: Caller, table: Table) -> None:
    await agent.scar("minor", "one")
    await agent.scar("minor", "two")
    await agent.ask("search")
    await table.unlock()
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE agent_id = 'agent-1' AND seq = 2")
    with pytest.raises(QuarantinedError, match="scars"):
        await agent.status()
    assert (await agent.verify())["failure"]["seq"] == 2


async def test_a_replay_over_a_tampered_past_quarantines_the_chain(agent: Caller, table: Table) -> None:
    await agent.ask("search")
    await agent.report("act-1", "success", key="told")
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET signed_text = replace(signed_text, '\"cost\":2', '\"cost\":1')"
        " WHERE agent_id = 'agent-1' AND seq = 3"
    )
    with pytest.raises(QuarantinedError, match="seq 3"):
        await agent.report("act-1", "success", key="told")
    assert (await agent.listed())["state"] == "quarantined"


async def test_a_replayed_decision_is_read_from_the_acts_own_records(agent: Caller, table: Table) -> None:
    """An old chain must not make the retry of a lost answer slow; the act's records alone are proven."""
    await agent.ask("search")
    first = await agent.ask("search", key="lost")
    await table.unlock()
    await table.admin.execute(f"UPDATE {TABLE} SET signed_text = signed_text || ' ' WHERE seq = 3")
    assert await agent.ask("search", key="lost") == first
    await table.admin.execute(f"UPDATE {TABLE} SET signed_text = signed_text || ' ' WHERE seq = 5")
    with pytest.raises(QuarantinedError):
        await agent.ask("search", key="lost")


async def test_a_failed_verification_quarantines_a_chain_that_is_in_memory(
    agent: Caller, neighbour: Caller, table: Table
) -> None:
    await agent.ask("search")
    await table.unlock()
    await table.admin.execute(
        f"UPDATE {TABLE} SET signed_text = signed_text || ' ' WHERE agent_id = 'agent-1' AND seq = 2"
    )
    assert json_of(await agent.ask("search"))["decision"] == "allowed"
    assert (await agent.verify())["ok"] is False
    with pytest.raises(QuarantinedError, match="seq 2"):
        await agent.ask("search")
    assert (await agent.listed())["state"] == "quarantined"
    assert json_of(await neighbour.ask())["decision"] == "allowed"


async def test_a_chain_that_leaves_the_registry_under_a_running_ledger_is_quarantined(
    agent: Caller, neighbour: Caller, table: Table
) -> None:
    await table.admin.execute("ALTER TABLE trails.agents DISABLE TRIGGER USER")
    await table.admin.execute("DELETE FROM trails.agents WHERE agent_id = $1", agent.agent)
    for _ in range(2):
        with pytest.raises(QuarantinedError, match="the registry does not hold the chain"):
            await agent.ask()
    assert json_of(await neighbour.ask())["decision"] == "allowed"


async def test_g30_an_unknown_kind_closes_its_agent_and_no_other(
    agent: Caller, neighbour: Caller, restarted: Opener, pool: Pool
) -> None:
    unknown = Draft("agent.quarantined", {"version": 9}, "newer version")
    await db.ledger.append(pool, await next_rows(agent, unknown, event(n=1)))
    for caller in (agent, agent.at(await restarted())):
        with pytest.raises(
            QuarantinedError, match=r"seq 8: records of kind 'agent\.quarantined' are not known"
        ):
            await caller.ask()
        assert (await caller.listed())["state"] == "quarantined"
        verdict = await caller.verify()
        assert (verdict["ok"], verdict["unknown_kinds"], verdict["head"]["seq"]) == (True, 1, 9)
        with pytest.raises(QuarantinedError):
            await caller.ask()
        assert json_of(await neighbour.at(caller.ledger).ask())["decision"] == "allowed"


# --- a termination that is missing ----------------------------------------------------------------------


@pytest.fixture
async def cut(agent: Caller, table: Table) -> Caller:
    """The agent's chain without the termination behind the scar that reached the limit."""
    await agent.ask("email", key="k")
    await agent.scar("fatal", "harm")
    assert await table.kinds(after=3) == ["scar", "terminated"]
    await table.admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER")
    await table.admin.execute(f"DELETE FROM {TABLE} WHERE kind = 'terminated'")
    await table.admin.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    return agent


LACKING = "scar limit reached (4294967295 >= 50); termination record missing from the log"


async def test_a_chain_cut_behind_the_last_scar_is_terminated_when_opened(
    cut: Caller, restarted: Opener, table: Table
) -> None:
    ledgers = [await restarted() for _ in range(4)]
    statuses = await outcomes(*(cut.at(ledger).status() for ledger in ledgers))
    assert [status["termination_reason"] for status in statuses] == [LACKING] * 4
    last = (await table.records())[-1]
    assert last["payload"] == {"reason": LACKING, "by": "guard (replay)"}
    assert Counter(await table.kinds())["terminated"] == 1
    reason = json_of(await cut.at(ledgers[0]).ask())["reason"]
    assert reason == {"code": "terminated", "reason": LACKING}


async def test_nothing_is_allowed_while_the_missing_termination_cannot_be_written(
    cut: Caller, restarted: Opener, table: Table
) -> None:
    again = cut.at(await restarted())
    await table.admin.execute(f"REVOKE INSERT ON {TABLE} FROM trails_app")
    with pytest.raises(UnavailableError):
        await again.status()
    await table.admin.execute(f"GRANT INSERT ON {TABLE} TO trails_app")
    assert json_of(await again.ask("search"))["reason"] == {"code": "terminated", "reason": LACKING}
    assert (await again.status())["termination_reason"] == LACKING


async def test_a_wrong_master_key_opens_nothing(
    agent: Caller, pool: Pool, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    before = await admin.fetchval(f"SELECT count(*) FROM {TABLE}")
    with pytest.raises(KeyMaterialError, match="master key"):
        await Ledger.open(pool, master_key=bytes(32))
    unchecked = agent.at(Ledger(pool, bytes(32)))
    refused = await outcomes(
        unchecked.ask(), unchecked.status(), unchecked.verify(), Caller(unchecked.ledger, "x").create()
    )
    assert {type(error) for error in refused} == {KeyMaterialError}
    assert await admin.fetchval(f"SELECT count(*) FROM {TABLE}") == before
