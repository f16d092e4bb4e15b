"""The views over the guard's records, on what a real ledger wrote, and the check of changed rows."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from app.guard.answers import Allowed
from app.ledger import Ledger
from app.trace.node import action_node_id
from db.schema import DEFAULT_TENANT_ID
from tests.support.ledgers import TABLE, Caller, SetClock, Table
from tests.support.view_rows import SESSION, by, node_id

Json = dict[str, Any]


@pytest.fixture
def shown(table: Table) -> Any:
    """Rows of a view."""

    async def rows(name: str, order: str = "tenant_id") -> list[Json]:
        return [dict(row) for row in await table.admin.fetch(f"SELECT * FROM trails.{name} ORDER BY {order}")]

    return rows


async def test_a_sessions_cost_is_what_was_posted_and_not_what_the_guard_charged(
    agent: Caller, shown: Any
) -> None:
    await agent.ask("search", {"q": 1}, session_id=str(SESSION))
    await agent.report("act-1")
    await agent.ask("rm", session_id=str(SESSION))
    [row] = await shown("sessions")
    assert (row["nodes"], row["tool_calls"], row["cost"]) == (2, 2, None)
    assert {action["cost"] for action in await shown("actions")} == {2, 0}


async def test_actions_say_what_was_asked_decided_and_reported(
    agent: Caller, clock: SetClock, shown: Any
) -> None:
    await agent.ask(
        "search", {"q": 1}, session_id=str(SESSION), parent_id=node_id("plan").upper(), thought_process="why"
    )
    clock.move(2)
    await agent.report("act-1", "failure", "timed out")
    await agent.ask("email", {"to": "x"})
    clock.move(5)
    await agent.approve("act-2", note="fine")
    await agent.ask("email", {"to": "y"})
    await agent.ask("email", {"to": "y"})  # joins the one that waits
    await agent.reject("act-3", "not that one")
    await agent.ask("rm")
    await agent.ask("email", {"to": "z"})
    await agent.ask("search", {"q": 2})
    await agent.report("act-6", "unknown")
    await agent.report("act-6", "success", "found")

    rows = by(await shown("actions"), "action_id")
    columns = ("status", "decision", "reason_code", "outcome")
    assert {key: tuple(row[column] for column in columns) for key, row in rows.items()} == {
        "act-1": ("completed", "allowed", None, "failure"),
        "act-2": ("allowed", "allowed", None, None),
        "act-3": ("denied", "rejected", "rejected", None),
        "act-4": ("denied", "denied", "tool_not_allowed", None),
        "act-5": ("pending_approval", "pending_approval", None, None),
        "act-6": ("completed", "allowed", None, "success"),
    }
    first = rows["act-1"]
    assert (first["tool"], json.loads(first["input"]), first["cost"]) == ("search", {"q": 1}, 2)
    assert (first["session_id"], first["parent_id"], first["thought_process"]) == (
        SESSION,
        node_id("plan"),
        "why",
    )
    assert first["completed_at"] - first["decided_at"] == timedelta(seconds=2)
    assert (first["outcome_detail"], first["late"]) == ("timed out", False)
    assert (rows["act-2"]["approved_by"], rows["act-2"]["note"]) == ("alice", "fine")
    assert rows["act-2"]["session_id"] is None
    assert rows["act-3"]["rejected_by"] == "bob"
    assert json.loads(rows["act-3"]["reason"]) == {"code": "rejected", "by": "bob", "reason": "not that one"}
    assert rows["act-6"]["outcome_detail"] == "found"

    held = by(await shown("approvals"), "action_id")
    assert {key: (row["decision"], row["decided_by"], row["joins"]) for key, row in held.items()} == {
        "act-2": ("approved", "alice", 0),
        "act-3": ("rejected", "bob", 1),
        "act-5": ("pending", None, 0),
    }
    assert held["act-2"]["waited"] == timedelta(seconds=5)
    assert held["act-3"]["note"] == "not that one"
    assert held["act-5"]["decided_at"] is None


async def test_an_approval_that_the_policy_turns_into_a_denial_is_denied(agent: Caller, shown: Any) -> None:
    for number in range(20):
        await agent.ask("email", number)
    for number in range(19):
        assert isinstance(await agent.approve(f"act-{number + 1}"), Allowed)
    await agent.ask("search", "a", cost=3)
    await agent.approve("act-20")
    rows = by(await shown("approvals"), "action_id")
    assert (rows["act-20"]["decision"], rows["act-20"]["note"]) == ("denied", "insufficient_budget")
    assert rows["act-20"]["decided_by"] is not None


async def test_late_outcomes_and_scars_and_the_end(agent: Caller, shown: Any) -> None:
    await agent.ask("search", 1)
    await agent.scar("moderate", "seen")
    await agent.terminate("incident")
    await agent.report("act-1", "harmful", "sold it")
    [action] = await shown("actions")
    assert (action["late"], action["outcome"]) == (True, "harmful")
    scars = await shown("scars", "seq")
    assert [(row["severity"], row["weight"], row["score_after"]) for row in scars] == [
        ("moderate", 3, 3),
        ("severe", 10, 13),
    ]
    assert [row["action_id"] for row in scars] == [None, "act-1"]
    await agent.scar("fatal")
    await agent.scar("fatal")
    assert [row["score_after"] for row in await shown("scars", "seq")] == [3, 13, 2**32 - 1, 2**32 - 1]


async def test_agents_status_is_the_status_that_the_service_answers(
    ledger: Ledger, agent: Caller, shown: Any
) -> None:
    observed = Caller(ledger, "watched")
    await observed.observe()
    await agent.ask("search", 1)
    await agent.ask("email", 1)
    await agent.ask("rm")
    await agent.terminate("incident")
    rows = by(await shown("agents_status"), "agent_id")
    for caller in (agent, observed):
        status, row = await caller.status(), rows[caller.agent]
        for name in (
            *("alive", "termination_reason", "budget", "spent", "remaining", "scar_score", "scar_limit"),
            *("actions_allowed", "actions_denied", "actions_pending", "guarded"),
        ):
            assert row[name] == status[name], name
        assert {"seq": row["head_seq"], "hash": row["head_hash"]} == status["head"]
    assert rows[agent.agent]["actions_requested"] == 3
    assert rows[agent.agent]["terminated_at"] is not None


async def test_guarded_and_observed_calls_are_in_one_view(agent: Caller, table: Table, shown: Any) -> None:
    await agent.ask("search", {"q": 1}, session_id=str(SESSION))
    await agent.report("act-1", "failure", "timed out")
    await agent.ask("rm", session_id=str(SESSION))
    chain = (await table.rows())[0]["log_uuid"]
    calls = by(await shown("tool_calls"), "action_id")
    assert {key: (row["tool"], row["status"], row["error"]) for key, row in calls.items()} == {
        "act-1": ("search", "failed", "timed out"),
        "act-2": ("rm", "denied", "tool_not_allowed"),
    }
    assert calls["act-1"]["node_id"] == str(action_node_id(chain, "act-1"))
    assert calls["act-1"]["clock_skew"] == timedelta(0)
    [failed] = await shown("failed_tool_calls")
    assert failed["action_id"] == "act-1"


# --- chain_check ----------------------------------------------------------------------------------------

TAMPERING = {
    "text": (
        "UPDATE {table} SET signed_text = replace(signed_text, '\"cost\":2', '\"cost\":1') WHERE seq = 2",
        [(2, "hash is not"), (2, "columns or trace_data")],
    ),
    "text and hash": (
        (
            "UPDATE {table} SET signed_text = s, trace_data = s::jsonb -> 'payload', hash ="
            " encode(sha256(convert_to(E'lineage-audit-v1\\n' || s, 'UTF8')), 'hex')"
            ' FROM (SELECT replace(signed_text, \'"tool":"search"\', \'"tool":"look"\') AS s FROM {table}'
            " WHERE seq = 2) AS x WHERE seq = 2"
        ),
        [(3, "prev_hash is not")],
    ),
    "text that is no JSON": (
        "UPDATE {table} SET signed_text = 'gone', trace_data = '{{}}' WHERE seq = 2",
        [(2, "hash is not"), (2, "columns or trace_data")],
    ),
    "kind": ("UPDATE {table} SET kind = 'event' WHERE seq = 3", [(3, "columns or trace_data")]),
    "actor": ("UPDATE {table} SET actor = 'nobody' WHERE seq = 3", [(3, "columns or trace_data")]),
    "time": (
        "UPDATE {table} SET created_at = created_at - interval '1 day' WHERE seq = 3",
        [(3, "columns or trace_data")],
    ),
    "mirror": (
        "UPDATE {table} SET trace_data = trace_data || '{{\"cost\": 1}}' WHERE seq = 2",
        [(2, "columns or trace_data")],
    ),
    "session": (
        "UPDATE {table} SET session_id = gen_random_uuid() WHERE seq = 2",
        [(2, "columns or trace_data")],
    ),
    "idempotency key": (
        "UPDATE {table} SET idempotency_key = repeat('a', 64) WHERE seq = 2",
        [(2, "columns or trace_data")],
    ),
    "a record removed": (
        "DELETE FROM {table} WHERE seq = 2",
        [(3, "prev_hash is not"), (3, "seq does not follow")],
    ),
    "the first record removed": (
        "DELETE FROM {table} WHERE seq = 0",
        [(1, "prev_hash is not"), (1, "seq does not follow")],
    ),
    "another agent": (
        "UPDATE {table} SET agent_id = 'somebody' WHERE seq = 2",
        [(2, "prev_hash is not"), (2, "seq does not follow"), (3, "prev_hash"), (3, "seq does not follow")],
    ),
    "prev_hash": (
        "UPDATE {table} SET prev_hash = repeat('0', 64) WHERE seq = 2",
        [(2, "prev_hash is not"), (2, "columns or trace_data")],
    ),
}


@pytest.mark.parametrize("what", TAMPERING)
async def test_chain_check_names_the_row_that_was_changed(
    ledger: Ledger, agent: Caller, table: Table, shown: Any, what: str
) -> None:
    await agent.ask("search", {"q": 1})
    await agent.ask("search", {"q": 2})
    await Caller(ledger, "other").create()
    rows = await shown("chain_check", "agent_id, seq")
    assert all(row["ok"] and row["problem"] is None for row in rows)
    assert Counter(row["agent_id"] for row in rows) == {"agent-1": 6, "other": 2, "_administration": 3}

    statement, expected = TAMPERING[what]
    await table.unlock()
    await table.admin.execute(f"ALTER TABLE {TABLE} ALTER COLUMN trace_data DROP EXPRESSION")
    await table.admin.execute(f"{statement.format(table=TABLE)} AND agent_id = 'agent-1'")
    found = [row for row in await shown("chain_check", "agent_id, seq") if not row["ok"]]
    problems = [(row["seq"], problem) for row in found for problem in row["problem"].split("; ")]
    assert len(problems) == len(expected), problems
    for (seq, problem), (at, says) in zip(sorted(problems), sorted(expected), strict=True):
        assert seq == at
        assert problem.startswith(says)
    assert {row["tenant_id"] for row in found} == {DEFAULT_TENANT_ID}
    for row in found:
        assert "hash is not the SHA-256" in row["problem"] or row["hash_ok"]
        assert ("seq does not" in row["problem"]) is not row["seq_ok"]
        assert ("prev_hash is not" in row["problem"]) is not row["link_ok"]
        assert ("columns or" in row["problem"]) is not row["mirror_ok"]
