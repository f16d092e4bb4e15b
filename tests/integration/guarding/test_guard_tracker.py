"""A guarded call is a node of the tracker's session, and what happens inside of it stands below it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from app.client.decisions import Allowed, Pending
from app.client.guard import Guard
from app.client.tracker import LineageTracker
from tests.support.guarding import AGENT, DEADLINE_SECS, Stage
from tests.support.scripted import Reply, problem, scripted
from tests.support.standing import OPERATOR, database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

SESSION = "0b8f1c9e-1c2d-4a3b-8c4d-5e6f708192a3"


@pytest.fixture
def tracker(stage: Stage) -> Iterator[LineageTracker]:
    """A tracker of the agent's."""
    with LineageTracker(stage.url, stage.token, AGENT, SESSION, spool=stage.folder / "spool") as made:
        yield made


@pytest.fixture
def tracked(stage: Stage, tracker: LineageTracker) -> Guard:
    """A guard of the tracker."""
    return stage.guard(tracker=tracker, approval_timeout=DEADLINE_SECS)


def nodes(stage: Stage) -> dict[str, dict[str, object]]:
    """All nodes on record by their names."""
    trees = [record["payload"].get("trace_tree", []) for record in stage.records()]
    return {node["name"]: node for tree in trees for node in tree}


def action_node(stage: Stage, action_id: str) -> str:
    log_uuid = stage.operator.get(f"/v1/agents/{AGENT}").json["log_uuid"]
    return str(uuid.uuid5(uuid.UUID(log_uuid), action_id))


def test_the_call_stands_between_its_caller_and_what_it_does(
    tracked: Guard, tracker: LineageTracker, stage: Stage
) -> None:
    @tracked.tool("search")
    def search(query: str) -> str:
        with tracker.node("RETRIEVAL", "index", {"q": query}):
            return "found"

    with tracker.node("PLANNING", "answer") as planning:
        search("rates")
        with tracker.node("OUTPUT", "say") as said:
            pass
    assert tracker.flush(DEADLINE_SECS)
    found = nodes(stage)
    assert set(found) == {"answer", "search", "index", "say"}
    assert found["search"]["node_id"] == action_node(stage, "act-1")
    assert found["search"]["parent_id"] == planning.node_id
    assert found["index"]["parent_id"] == found["search"]["node_id"]
    assert found["say"]["parent_id"] == planning.node_id == said.parent_id
    [outcome] = stage.records("outcome")
    assert outcome["payload"]["session_id"] == SESSION


async def test_coroutines_too(tracked: Guard, tracker: LineageTracker, stage: Stage) -> None:
    @tracked.tool("search")
    async def search(query: str) -> str:
        async with tracker.node("RETRIEVAL", "index", {"q": query}):
            return "found"

    async with tracker.node("PLANNING", "answer") as planning:
        await search("rates")
    assert await tracker.aflush(DEADLINE_SECS)
    found = nodes(stage)
    assert found["search"]["parent_id"] == planning.node_id
    assert found["index"]["parent_id"] == found["search"]["node_id"] == action_node(stage, "act-1")


def test_the_guard_of_another_session(tracked: Guard, tracker: LineageTracker, stage: Stage) -> None:
    other = tracker.session()
    guard = tracked.in_session(other)

    @guard.tool("search")
    def search() -> None:
        """Nothing."""

    with other.node("PLANNING", "answer") as planning:
        search()
    [outcome] = stage.records("outcome")
    assert outcome["payload"]["session_id"] == other.session_id
    assert outcome["payload"]["trace_tree"][0]["parent_id"] == planning.node_id


def test_url_token_and_agent_are_the_trackers(tracker: LineageTracker, stage: Stage) -> None:
    with Guard(tracker=tracker) as guard:
        assert guard.service == tracker.outbox.service
        guard.check("search")
    assert len(stage.asked()) == 1
    assert not tracker.outbox.closed


def shown(tracker: LineageTracker) -> list[dict[str, Any]]:
    """The local tree without times, which are the client's own."""
    tree = tracker.compile_tree()["trace_tree"]
    return [without_times(node) for node in tree]


def without_times(node: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: said for name, said in node["metadata"].items() if name != "timestamp"}
    return {**node, "metadata": metadata}


def test_the_local_tree_shows_guarded_calls_as_the_service_writes_them(
    tracked: Guard, tracker: LineageTracker, stage: Stage
) -> None:
    @tracked.tool("search", thought_process="it may be there")
    def search(query: str) -> None:
        raise LookupError(query)

    with tracker.node("PLANNING", "answer"):
        with pytest.raises(LookupError):
            search("rates")
        assert not isinstance(tracked.check("rm", {"path": "/"}), Allowed)
        allowed = tracked.check("search", cost=3)
        assert isinstance(allowed, Allowed)
        tracked.report(allowed.action_id, "unknown", "no reply")
        tracked.report(allowed.action_id, "success", "there after all")
    assert tracker.flush(DEADLINE_SECS)
    trees = [record["payload"].get("trace_tree", []) for record in stage.records()]
    on_record = {node["node_id"]: without_times(node) for tree in trees for node in tree}
    calls = [node for node in shown(tracker) if node["node_type"] == "TOOL_CALL"]
    assert [call["outputs"]["status"] for call in calls] == ["failed", "denied", "success"]
    for call in calls:
        theirs = on_record[call["node_id"]]
        # What a denied call would have cost, the answer does not say.
        metadata = {**theirs["metadata"], **call["metadata"]}
        assert {**call, "metadata": metadata} == theirs
    assert len(stage.records("trace")) == 1, "a guarded call is not posted"


def test_a_rejected_call_is_denied_in_the_local_tree(
    tracked: Guard, tracker: LineageTracker, stage: Stage
) -> None:
    assert isinstance(tracked.check("send_email"), Pending)
    assert shown(tracker)[0]["outputs"] is None
    with stage.approver(stage.reject):
        tracked.wait("act-1", DEADLINE_SECS)
    [call] = shown(tracker)
    reason = {"code": "rejected", "by": OPERATOR, "reason": "wrong address"}
    assert call["outputs"] == {"status": "denied", "reason": reason}


def test_a_call_is_allowed_although_the_chain_has_no_answer(tracker: LineageTracker, stage: Stage) -> None:
    """Without the chain's id nobody knows the node's: the call runs, and is not shown."""
    with scripted() as answering:
        answering.script = [
            Reply(
                200, b'{"decision":"allowed","action_id":"act-1","cost":1,"remaining":1}', "application/json"
            ),
            problem(503, "unavailable"),
        ]
        with Guard(answering.url, stage.token, tracker=tracker, spool=stage.folder) as guard:
            assert guard.check("search") == Allowed("act-1", 1, 1)
    assert shown(tracker) == []
