"""The tracker: what a node says, and whose child it is, in threads, tasks and generators."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import re
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.client import LineageTracker
from app.client import tracker as tracker_module
from app.client.errors import ConfigurationError, OutboxClosedError, OutboxFullError
from app.client.tracker import Session
from app.trace.fragment import Fragment
from tests.support.scripted import Scripted, problem
from tests.unit.client.conftest import MakeTracker

NONE = str(uuid.UUID(int=7))


def nodes(session: Session) -> dict[str, dict[str, Any]]:
    """The compiled nodes by their names."""
    return {node["name"]: node for node in session.compile_tree()["trace_tree"]}


def parents(session: Session) -> dict[str, str | None]:
    """The name of each node's parent, by the node's name."""
    found = nodes(session)
    names = {node["node_id"]: name for name, node in found.items()}
    return {name: names.get(node["parent_id"]) for name, node in found.items()}


# --- what a node says -------------------------------------------------------------------------------


def test_a_node_says_what_happened(tracker: LineageTracker) -> None:
    with tracker.node("TOOL_CALL", "run_sql", {"sql": "SELECT 1"}, "they asked", {"model": "m"}) as node:
        node.outputs = {"rows": 1}
        node.set(tokens={"input": 3, "output": 4}, cost=0.5)
    found = nodes(tracker)["run_sql"]
    metadata = found.pop("metadata")
    assert found == {
        "node_id": node.node_id,
        "parent_id": None,
        "node_type": "TOOL_CALL",
        "name": "run_sql",
        "thought_process": "they asked",
        "inputs": {"sql": "SELECT 1"},
        "outputs": {"rows": 1, "status": "success"},
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", metadata.pop("timestamp"))
    assert metadata.pop("duration_ms") >= 0
    assert metadata == {"model": "m", "tokens": {"input": 3, "output": 4}, "cost": 0.5}


def test_inputs_are_those_of_the_beginning(tracker: LineageTracker) -> None:
    inputs = {"messages": ["one"]}
    with tracker.node("LLM_CALL", "ask", inputs):
        inputs["messages"].append("two")
    assert nodes(tracker)["ask"]["inputs"] == {"messages": ["one"]}


@pytest.mark.parametrize("node_type", ["TOOL_CALL", "PLANNING", "OUTPUT"])
def test_an_exception_makes_a_node_failed_and_goes_on(tracker: LineageTracker, node_type: str) -> None:
    def divide() -> None:
        with tracker.node(node_type, "divide") as node:
            node.outputs = {"tried": True}
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        divide()
    assert nodes(tracker)["divide"]["outputs"] == {
        "tried": True,
        "status": "failed",
        "error": {"type": "ZeroDivisionError", "message": "division by zero"},
    }


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (None, {"status": "success"}),
        ("text", {"result": "text", "status": "success"}),
        ([1], {"result": [1], "status": "success"}),
        ({"status": 404}, {"status": 404}),
    ],
)
def test_outputs_are_an_object_with_a_status(
    tracker: LineageTracker, outputs: object, expected: object
) -> None:
    with tracker.node("OUTPUT", "answer") as node:
        node.set(outputs)
    assert nodes(tracker)["answer"]["outputs"] == expected


def test_a_node_may_fail_without_an_exception(tracker: LineageTracker) -> None:
    with tracker.node("TOOL_CALL", "fetch") as node:
        node.fail("no answer")
    with tracker.node("TOOL_CALL", "parse") as node:
        node.fail(ValueError("not JSON"))
    found = nodes(tracker)
    assert found["fetch"]["outputs"] == {
        "status": "failed",
        "error": {"type": "error", "message": "no answer"},
    }
    assert found["parse"]["outputs"]["error"] == {"type": "ValueError", "message": "not JSON"}


def test_names_and_thoughts_are_made_to_fit(tracker: LineageTracker) -> None:
    with tracker.node("TOOL_CALL", "x" * 5_000, thought_process="y\0" * 2**20):
        pass
    with tracker.node("TOOL_CALL", ""):
        pass
    tree = tracker.compile_tree()
    Fragment.parse(tree)  # the service's own rules
    assert tree["trace_tree"][0]["name"].endswith("…[cut: 5000 characters in all]")
    assert tree["trace_tree"][1]["name"] == "(unnamed)"


def test_what_cannot_be_right_is_said_at_once(tracker: LineageTracker) -> None:
    for wrong in ("tool_call", "", "A" * 65, "ÄB"):
        with pytest.raises(ValueError, match="node_type"):
            tracker.node(wrong, "x")
    with pytest.raises(ConfigurationError, match="parent_id"):
        tracker.node("TOOL_CALL", "x", parent_id="no id")
    with pytest.raises(ConfigurationError, match="session_id"):
        tracker.session("no id")
    with pytest.raises(ValueError, match="not open"):
        tracker.end_node(NONE)


def test_a_node_happens_once(tracker: LineageTracker) -> None:
    node = tracker.node("OUTPUT", "once")
    with node:
        pass
    with pytest.raises(RuntimeError, match="once"), node:
        pass


def test_a_node_without_a_block(tracker: LineageTracker) -> None:
    plan = tracker.start_node("PLANNING", "plan", {"q": 1})
    call = tracker.start_node("TOOL_CALL", "call", thought_process="why", metadata={"model": "m"})
    other = tracker.start_node("TOOL_CALL", "other", {}, plan)
    tracker.end_node(plan)
    tracker.end_node(call, {"rows": 2}, status="unknown", metadata={"cost": 1})
    tracker.end_node(other, error=OSError("gone"))
    assert parents(tracker) == {"plan": None, "call": "plan", "other": "plan"}
    found = nodes(tracker)
    assert found["call"]["outputs"] == {"rows": 2, "status": "unknown"}
    assert found["call"]["metadata"]["cost"] == 1
    assert found["other"]["outputs"]["error"] == {"type": "OSError", "message": "gone"}
    with pytest.raises(ValueError, match="not open"):
        tracker.end_node(plan)


def test_the_compiled_tree_is_what_the_service_takes_and_got(
    tracker: LineageTracker, answering: Scripted
) -> None:
    with tracker.node("PLANNING", "plan", [float("nan")]), tracker.node("TOOL_CALL", "call"):
        pass
    assert tracker.flush()
    tree = tracker.compile_tree()
    assert Fragment.parse(tree).nodes == tree["total_nodes"] == 2
    lines = [json.loads(line) for got in answering.got for line in got.body.splitlines()]
    assert {line["session_id"] for line in lines} == {tree["session_id"]}
    sent = [node for line in lines for node in line["trace_tree"]]
    assert sent == sorted(tree["trace_tree"], key=lambda node: node["name"])  # call ended first


def test_an_open_node_stands_in_the_compiled_tree_without_a_status(tracker: LineageTracker) -> None:
    with tracker.node("PLANNING", "plan"):
        assert nodes(tracker)["plan"]["outputs"] is None
    assert nodes(tracker)["plan"]["outputs"] == {"status": "success"}


# --- whose child it is ------------------------------------------------------------------------------


def test_blocks_nest(tracker: LineageTracker) -> None:
    with tracker.node("PLANNING", "a"):
        with tracker.node("TOOL_CALL", "b"), tracker.node("TOOL_CALL", "c"):
            pass
        with pytest.raises(KeyError), tracker.node("TOOL_CALL", "d"):
            raise KeyError
        with tracker.node("TOOL_CALL", "e"):
            pass
    with tracker.node("OUTPUT", "f"):
        pass
    assert parents(tracker) == {"a": None, "b": "a", "c": "b", "d": "a", "e": "a", "f": None}


def test_threads_do_not_mix(tracker: LineageTracker) -> None:
    meet = threading.Barrier(8, timeout=20)

    def work(number: int) -> None:
        with tracker.node("AGENT", f"thread {number}"):
            for turn in range(20):
                meet.wait()
                with tracker.node("TOOL_CALL", f"call {number} {turn}"):
                    meet.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = parents(tracker)
    assert len(found) == 8 * 21
    for name, parent in found.items():
        assert parent == (None if name.startswith("thread") else f"thread {name.split()[1]}")


def test_a_thread_pool_is_given_the_parent(tracker: LineageTracker) -> None:
    def work(name: str) -> None:
        with tracker.node("TOOL_CALL", name):
            pass

    def attached(parent: str | None, name: str) -> None:
        with tracker.attach(parent):
            work(name)

    with ThreadPoolExecutor(2) as pool, tracker.node("PLANNING", "plan"):
        context = contextvars.copy_context()
        for done in [
            pool.submit(work, "lost"),
            pool.submit(tracker.bound(work), "bound"),
            pool.submit(context.run, work, "copied"),
            pool.submit(attached, tracker.current, "attached"),
        ]:
            done.result()
        with tracker.attach(None):
            work("root")
    assert parents(tracker) == {
        "plan": None, "lost": None, "bound": "plan", "copied": "plan", "attached": "plan", "root": None
    }  # fmt: skip


async def test_tasks_do_not_mix(tracker: LineageTracker) -> None:
    async def work(number: int) -> None:
        async with tracker.node("AGENT", f"task {number}"):
            for turn in range(5):
                await asyncio.sleep(0)
                with tracker.node("TOOL_CALL", f"call {number} {turn}"):
                    await asyncio.sleep(0)
                    await asyncio.to_thread(in_thread, number, turn)

    def in_thread(number: int, turn: int) -> None:
        with tracker.node("TOOL_CALL", f"deep {number} {turn}"):
            pass

    with tracker.node("PLANNING", "plan"):
        await asyncio.gather(*map(work, range(10)))
    found = parents(tracker)
    assert len(found) == 1 + 10 * 11
    for name, parent in found.items():
        kind, *rest = name.split()
        expected = {"plan": None, "task": "plan", "call": f"task {rest[:1]}", "deep": "call"}[kind]
        if kind == "call":
            expected = f"task {rest[0]}"
        elif kind == "deep":
            expected = f"call {rest[0]} {rest[1]}"
        assert parent == expected, name


def test_interleaved_generators_do_not_mix(tracker: LineageTracker) -> None:
    def steps(name: str) -> Iterator[None]:
        with tracker.node("RETRIEVAL", name):
            for turn in range(2):
                with tracker.node("TOOL_CALL", f"{name} {turn}"):
                    yield

    with tracker.node("PLANNING", "plan"):
        first, second = steps("first"), steps("second")
        for turn in range(2):
            next(first)
            next(second)
            with tracker.node("OUTPUT", f"between {turn}"):
                pass
        first.close()
        with tracker.node("OUTPUT", "after"):
            pass
        assert list(second) == []
    assert parents(tracker) == {
        "plan": None,
        "first": "plan", "first 0": "first", "first 1": "first",
        "second": "plan", "second 0": "second", "second 1": "second",
        "between 0": "plan", "between 1": "plan", "after": "plan",
    }  # fmt: skip
    found = nodes(tracker)
    assert found["first 1"]["outputs"] == {"status": "success"}, "closing a generator early is no failure"
    assert found["first 1"]["metadata"]["closed_early"] is True


def test_a_generator_that_is_a_context_manager_is_the_parent_of_its_block(tracker: LineageTracker) -> None:
    @contextlib.contextmanager
    def step(name: str) -> Iterator[None]:
        with tracker.node("AGENT", name):
            yield

    @contextlib.contextmanager
    def outer(name: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(step(name))
            yield

    def work() -> Iterator[None]:
        with step("in a generator"):
            with tracker.node("TOOL_CALL", "c"):
                pass
            yield

    with step("a"), outer("b"), tracker.node("TOOL_CALL", "call"):
        pass
    for _ in work():
        with tracker.node("OUTPUT", "between"):
            pass
    assert parents(tracker) == {
        "a": None, "b": "a", "call": "b", "in a generator": None, "c": "in a generator", "between": None
    }  # fmt: skip


async def test_async_generators_do_not_mix(tracker: LineageTracker) -> None:
    async def child(name: str) -> None:
        with tracker.node("TOOL_CALL", name):
            await asyncio.sleep(0)

    async def steps(name: str) -> AsyncIterator[None]:
        async with tracker.node("RETRIEVAL", name):
            await asyncio.create_task(child(f"{name} has a task"))
            yield
            await child(f"{name} awaits")

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        async with tracker.node("AGENT", "manager"):
            yield

    async with manager(), tracker.node("PLANNING", "plan"):
        first, second = steps("first"), steps("second")
        await anext(first)
        await anext(second)
        await child("between")
        for generator in (first, second):
            with pytest.raises(StopAsyncIteration):
                await anext(generator)
    assert parents(tracker) == {
        "manager": None, "plan": "manager", "between": "plan",
        "first": "plan", "first awaits": "first", "first has a task": "first",
        "second": "plan", "second awaits": "second", "second has a task": "second",
    }  # fmt: skip


def test_sessions_do_not_mix(tracker: LineageTracker, answering: Scripted) -> None:
    one, two = tracker.session(), tracker.session(uuid.UUID(int=5))
    assert two.session_id == str(uuid.UUID(int=5))
    with one.node("PLANNING", "one"), two.node("PLANNING", "two"), one.node("TOOL_CALL", "call"):
        pass
    assert parents(one) == {"one": None, "call": "one"}
    assert parents(two) == {"two": None}
    assert tracker.compile_tree()["total_nodes"] == 0
    assert tracker.flush()
    lines = [json.loads(line) for got in answering.got for line in got.body.splitlines()]
    assert {line["session_id"] for line in lines} == {one.session_id, two.session_id}


# --- trouble on the way -----------------------------------------------------------------------------


async def test_a_full_journal_makes_recording_wait_and_does_not_hold_up_the_loop(
    make_tracker: MakeTracker, answering: Scripted
) -> None:
    let_go = threading.Event()
    answering.script = [lambda _: let_go.wait(20) and problem(503, "unavailable")]
    tracker = make_tracker(max_queued=1)
    with tracker.node("OUTPUT", "first"):
        pass

    async def record() -> None:
        async with tracker.node("OUTPUT", "second"):
            pass

    waiting = asyncio.create_task(record())
    while "second" not in nodes(tracker):
        await asyncio.sleep(0)  # the loop goes on
    impatient = tracker.session()
    impatient._put_timeout = 0
    with pytest.raises(OutboxFullError, match="wait for"), impatient.node("OUTPUT", "third"):
        pass
    assert not waiting.done()
    let_go.set()
    await asyncio.wait_for(waiting, 20)
    assert tracker.flush()


async def test_who_waits_for_room_can_be_cancelled_and_holds_no_program_up(
    make_tracker: MakeTracker, answering: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    answering.script = [problem(503, "unavailable", Retry_After="60")] * 2
    tracker = make_tracker(max_queued=1)
    with tracker.node("OUTPUT", "first"):
        pass

    async def record() -> None:
        async with tracker.node("OUTPUT", "second"):
            pass

    before = set(threading.enumerate())
    waiting = asyncio.create_task(record())
    while "second" not in nodes(tracker):
        await asyncio.sleep(0)
    assert {thread for thread in threading.enumerate() if thread.name.startswith("asyncio")} <= before
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert "was not recorded: cancelled" in caplog.text


def test_the_first_node_of_a_long_session_can_be_ended(
    tracker: LineageTracker, answering: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "MAX_TREE", 5)
    root = tracker.start_node("PLANNING", "root")
    for number in range(9):
        with tracker.node("OUTPUT", f"n{number}"):
            pass
    tracker.end_node(root, "done")
    assert tracker.flush()
    assert root in [name for got in answering.got for line in got.node_ids for name in line]
    assert list(nodes(tracker)) == ["root", "n5", "n6", "n7", "n8"]


def test_a_session_of_large_nodes_keeps_the_last_ones_in_memory(
    tracker: LineageTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "MAX_TREE_BYTES", 5_000)
    for number in range(9):
        with tracker.node("OUTPUT", f"n{number}", "x" * 2_000):
            pass
    assert list(nodes(tracker)) == ["n7", "n8"]


def test_an_exception_of_the_block_is_not_hidden_by_trouble_with_the_journal(
    make_tracker: MakeTracker,
) -> None:
    tracker = make_tracker()
    tracker.close()
    with pytest.raises(KeyError) as caught, tracker.node("TOOL_CALL", "call"):
        raise KeyError
    assert "could not be recorded" in caught.value.__notes__[0]
    with pytest.raises(OutboxClosedError), tracker.node("TOOL_CALL", "call"):
        pass


def test_trackers_with_the_same_settings_share_a_journal(make_tracker: MakeTracker, spool: Path) -> None:
    first, second = make_tracker(), make_tracker()
    assert first.outbox is second.outbox
    assert first.session_id != second.session_id
    first.close()
    with second.node("OUTPUT", "still"):
        pass
    assert second.close()
    assert list(spool.iterdir()) == []
