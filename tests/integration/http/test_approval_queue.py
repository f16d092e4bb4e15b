"""The approval queue: what waits in the whole tenant, from chains that verify, with nothing left out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import msgspec
import pytest

from app.http import documents
from app.settings import Secrets
from tests.integration.http.client import Client
from tests.integration.http.serving import serve
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

POLICY: dict[str, Any] = {
    "budget": 50,
    "scar_limit": 10,
    "tools": {
        "search": {"cost": 1},
        "send_email": {"cost": 5, "requires_approval": True},
        "pay": {"cost": 1, "requires_approval": True, "approvers": 2, "approval_ttl_secs": 3600},
    },
}


def queue(client: Client, query: str = "") -> documents.ApprovalQueue:
    reply = client.get(f"/v1/approvals{query}")
    assert reply.status == 200, reply.raw
    return msgspec.json.decode(reply.raw, type=documents.ApprovalQueue)


def names(found: documents.ApprovalQueue) -> list[tuple[str, str]]:
    return [(entry.agent_id, entry.action.action_id) for entry in found.approvals]


def ask(client: Client, agent_id: str, tool: str = "send_email", value: Any = None) -> str:
    reply = client.post(f"/v1/agents/{agent_id}/actions", {"tool": tool, "input": value})
    assert reply.json["decision"] == "pending_approval", reply.raw
    return str(reply.json["action_id"])


def decide(client: Client, agent_id: str, action_id: str, word: str) -> Any:
    body = {"approver": "Ada"} | ({"reason": "no"} if word == "reject" else {})
    return client.post(f"/v1/agents/{agent_id}/actions/{action_id}/{word}", body)


@pytest.fixture
def agents(operator: Client) -> dict[str, Client]:
    return {agent_id: operator.create(agent_id, POLICY) for agent_id in ("a", "b", "c")}


@pytest.mark.usefixtures("database")
def test_all_that_waits_is_listed_oldest_first_as_the_agents_own_list_tells_it(
    operator: Client, agents: dict[str, Client]
) -> None:
    assert queue(operator).approvals == []
    agents["a"].post("/v1/agents/a/actions", {"tool": "search"})
    ask(agents["c"], "c", value={"digits": 12345678901234567890123})
    ask(agents["a"], "a", "pay")
    ask(operator, "c", value=2)
    listed = queue(operator)
    assert names(listed) == [("c", "act-1"), ("a", "act-2"), ("c", "act-2")]
    assert listed.next is None
    whole = operator.get("/v1/approvals").json["approvals"]
    for agent_id in ("a", "c"):
        own = operator.get(f"/v1/agents/{agent_id}/actions/pending").json["pending"]
        same = [{key: entry[key] for key in own[0]} for entry in whole if entry["agent_id"] == agent_id]
        assert same == own
    assert b"12345678901234567890123" in operator.get("/v1/approvals").raw
    assert [entry.requested_by for entry in listed.approvals] == [["c"], ["a"], ["operator"]]
    assert (listed.approvals[1].approvals, listed.approvals[1].approvers) == (0, 2)
    assert isinstance(listed.approvals[1].expires_at, str)


def test_what_is_decided_waits_no_more(operator: Client, agents: dict[str, Client]) -> None:
    for agent_id, agent in agents.items():
        ask(agent, agent_id)
    assert decide(operator, "b", "act-1", "approve").json["decision"] == "allowed"
    assert decide(operator, "c", "act-1", "reject").json["decision"] == "denied"
    assert names(queue(operator)) == [("a", "act-1")]
    again = agents["a"].post("/v1/agents/a/actions", {"tool": "send_email", "input": None})
    assert again.json == {"decision": "pending_approval", "action_id": "act-1"}
    assert names(queue(operator)) == [("a", "act-1")]
    two = ask(agents["b"], "b", "pay")
    key = operator.post("/v1/keys", {"role": "operator", "name": "bob"}).json["token"]
    assert decide(operator, "b", two, "approve").json["decision"] == "pending_approval"
    [_, second] = queue(operator).approvals
    assert (second.action.action_id, second.approvals) == (two, 1)
    assert decide(operator.as_(key), "b", two, "approve").json["decision"] == "allowed"
    assert names(queue(operator)) == [("a", "act-1")]


def test_an_approval_that_the_guard_denies_ends_the_wait(operator: Client, agents: dict[str, Client]) -> None:
    ask(agents["a"], "a")
    assert operator.post("/v1/agents/a/terminate", {"reason": "over", "by": "A"}).status == 200
    assert names(queue(operator)) == [("a", "act-1")]
    assert decide(operator, "a", "act-1", "approve").json["decision"] == "denied"
    assert names(queue(operator)) == []


def test_pages_hold_everything_once(operator: Client, agents: dict[str, Client]) -> None:
    for number in range(4):
        for agent_id, agent in agents.items():
            ask(agent, agent_id, value=number)
    everything = names(queue(operator))
    assert len(everything) == 12
    paged, after = [], ""
    while True:
        page = queue(operator, f"?limit=5{after}")
        paged += names(page)
        if page.next is None:
            break
        assert len(page.approvals) == 5
        after = f"&after={page.next}"
    assert paged == everything
    assert queue(operator, "?limit=12").next is None


def test_large_requests_end_a_page(operator: Client, agents: dict[str, Client]) -> None:
    large = ["x" * 900_000] * 4
    for agent_id, agent in agents.items():
        ask(agent, agent_id, value=[agent_id, *large])
    first = queue(operator)
    assert names(first) == [("a", "act-1"), ("b", "act-1"), ("c", "act-1")]
    ask(agents["a"], "a", value=["more", *large])
    first = queue(operator)
    assert len(first.approvals) == 3
    assert names(queue(operator, f"?after={first.next}")) == [("a", "act-2")]


@pytest.mark.parametrize("after", ["x", "1,2,3", "1,zz,act-1", "-1," + "0" * 32 + ",act-1", "9" * 18])
def test_a_place_that_is_none_is_refused(operator: Client, after: str) -> None:
    assert operator.get(f"/v1/approvals?after={after}").status == 400


@pytest.mark.parametrize(("role", "status"), [("auditor", 200), ("operator", 200), ("writer", 403)])
def test_the_queue_is_for_operators_and_auditors(operator: Client, role: str, status: int) -> None:
    key = operator.post("/v1/keys", {"role": role, "name": "k"}).json["token"]
    assert operator.as_(key).get("/v1/approvals").status == status


async def test_a_chain_that_does_not_verify_is_named_and_hides_no_other(
    operator: Client, agents: dict[str, Client], admin: asyncpg.Connection
) -> None:
    for agent_id, agent in agents.items():
        ask(agent, agent_id)
    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    await admin.execute("DELETE FROM trails.agent_audit_trails WHERE agent_id = 'b' AND seq >= 3")
    await admin.execute("ALTER TABLE trails.agent_audit_trails ENABLE TRIGGER ALL")
    found = queue(operator)
    assert names(found) == [("a", "act-1"), ("c", "act-1")]
    [broken] = found.quarantined
    assert (broken.agent_id, broken.action_ids) == ("b", ["act-1"])
    assert "verified here before" in broken.error


async def test_the_index_proves_nothing(
    operator: Client, agents: dict[str, Client], admin: asyncpg.Connection
) -> None:
    """What stands in it and does not wait is left out; it takes out nothing that waits, whoever asks it."""
    ask(agents["a"], "a")
    await admin.execute(
        "INSERT INTO trails.waiting_actions SELECT tenant_id, log_uuid, x, 3, created_at"
        "  FROM trails.agents, unnest(ARRAY['act-7', 'ä']) AS x"
    )
    assert names(queue(operator)) == [("a", "act-1")]
    page, after = [], ""
    while after is not None:
        found = queue(operator, f"?limit=1{after}")
        page += names(found)
        after = None if found.next is None else f"&after={found.next.replace('ä', '%C3%A4')}"
    assert page == [("a", "act-1")]
    for statement in ("DELETE FROM trails.waiting_actions", "UPDATE trails.waiting_actions SET seq = 1"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await admin.execute(statement)
        assert refused.value.sqlstate == "TR001"


def test_every_process_sees_what_another_one_was_asked(database: Database) -> None:
    known = Secrets("t" * 64, b"k" * 32)
    with serve(database.app_url, known=known) as first, serve(database.app_url, known=known) as second:
        one, other = (Client(running.url, running.operator_token) for running in (first, second))
        ask(one.create("a", POLICY), "a")
        assert names(queue(other)) == [("a", "act-1")]
        assert decide(other, "a", "act-1", "reject").status == 200
        assert names(queue(one)) == names(queue(other)) == []


def test_g10_of_twenty_decisions_at_once_one_counts(operator: Client, agents: dict[str, Client]) -> None:
    ask(agents["a"], "a")
    with ThreadPoolExecutor(20) as pool:
        replies = list(
            pool.map(
                lambda number: decide(operator, "a", "act-1", ("approve", "reject")[number % 2]), range(20)
            )
        )
    assert sorted({reply.status for reply in replies}) == [200, 409]
    [won] = [reply.json["decision"] for reply in replies if reply.status == 200]
    told = {reply.json["error"] for reply in replies if reply.status == 409}
    assert told == {f"action act-1 is {won}; operation not permitted"}
    assert names(queue(operator)) == []
    kinds = [record["kind"] for record in operator.get("/v1/agents/a/log").json["records"]]
    assert len([kind for kind in kinds if kind in {"action_allowed", "action_rejected"}]) == 1
