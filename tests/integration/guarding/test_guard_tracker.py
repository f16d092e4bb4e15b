"""A guarded call is a node of the tracker's session, and what happens inside of it stands below it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from app.client.guard import Guard
from app.client.tracker import LineageTracker
from tests.support.guarding import AGENT, DEADLINE_SECS, Stage

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


async def test_what_is_cancelled_before_it_begins_has_an_outcome(
    tracked: Guard, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = asyncio.Event()

    async def slowly(_: object) -> None:
        looking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(tracked, "_anode_of", slowly)
    ran = []

    @tracked.tool("search")
    async def search() -> None:
        ran.append(1)

    task = asyncio.create_task(search())
    await looking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []
    outcomes = await asyncio.to_thread(stage.until, stage.outcomes)
    assert outcomes == [("act-1", "unknown", "interrupted: CancelledError")]
