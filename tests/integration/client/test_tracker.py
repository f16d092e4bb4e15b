"""The tracker against a real service: what was recorded is on record, once, in order, and verifies."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import json
import math
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from app.client import LineageTracker
from app.client.json_values import unescape
from tests.integration.client.conftest import AGENT, QUICK, MakeTracker
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.lossy import lossy
from tests.support.posted import fragments, recorded, recorded_names
from tests.support.postgres import Database
from tests.support.proxy import Fault, Proxy, proxied

ROOT = Path(__file__).resolve().parents[3]


def outputs(tracker: LineageTracker, *names: str) -> None:
    for name in names:
        with tracker.node("OUTPUT", name):
            pass


def test_a_tree_is_on_record_as_it_was_compiled(
    tracker: LineageTracker, operator: Client, database: Database
) -> None:
    with tracker.node("PLANNING", "answer", {"question": "why?"}, "think first", {"model": "m"}):
        with pytest.raises(LookupError), tracker.node("TOOL_CALL", "search", {"q": [1, None, 0.5]}):
            raise LookupError("index is down")
        with tracker.node("SELF_CORRECTION", "retry") as node:
            node.set("again", tokens={"input": 5, "output": 7}, cost=0.25)
    assert tracker.flush()
    tree = tracker.compile_tree()
    on_record = {node.pop("node_id"): node for node in recorded(database, AGENT)}
    compiled = {
        node.pop("node_id"): {**node, "session_id": tracker.session_id} for node in tree["trace_tree"]
    }
    assert on_record == compiled
    reply = operator.get(f"/v1/agents/{AGENT}/verify")
    assert reply.json["ok"] is True


def test_c01_c07_c09_c11_any_value_is_on_record(tracker: LineageTracker, database: Database) -> None:
    floats = [1e-7, 1e16, 1e21, 123456789012345680.0, 5e-324, 0.1, 1.0, 100.0]
    inputs = {
        "v": floats,
        "integers": [2**53 + 1, 2**63, -(10**30), 10**127, 10**5_000],
        "nan": [math.nan, math.inf],
        "text": "a\0b\ud800",
        "k\0": 1,
        "when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "price": decimal.Decimal("1.10"),
        "raw": b"\x00",
        "large": "x" * 3_000_000,
        "self": ValueError(uuid.UUID(int=1)),
    }
    inputs["cycle"] = [inputs]
    with tracker.node("TOOL_CALL", "anything\0", inputs, thought_process="\ud800") as node:
        node.outputs = inputs
    assert tracker.flush(), tracker.refused
    [found] = recorded(database, AGENT)
    assert found["inputs"]["v"] == floats
    assert found["inputs"]["integers"][:4] == [2**53 + 1, 2**63, -(10**30), 10**127]
    assert found["inputs"]["nan"] == ["NaN", "Infinity"]
    assert unescape(found["inputs"]["text"]) == "a\0b\ud800"
    assert found["inputs"]["large"].endswith("…[cut: 3000000 characters in all]")
    assert {**found["outputs"], "status": None} == {**found["inputs"], "status": None}


def test_threads_and_tasks_arrive_once_each(make_tracker: MakeTracker, database: Database) -> None:
    tracker = make_tracker()

    def work(number: int) -> None:
        with tracker.node("AGENT", f"thread {number}"):
            outputs(tracker, *(f"{number}.{turn}" for turn in range(25)))

    async def task(number: int) -> None:
        async with tracker.node("AGENT", f"task {number}"):
            await asyncio.sleep(0)
            outputs(tracker, f"task.{number}")

    async def tasks() -> None:
        await asyncio.gather(*map(task, range(25)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    assert tracker.flush()
    found = recorded(database, AGENT)
    names = [node["name"] for node in found]
    assert len(names) == len(set(names)) == 4 * 26 + 50
    by_id = {node["node_id"]: node["name"] for node in found}
    for number in range(4):
        own = [node for node in found if node["name"].startswith(f"{number}.")]
        assert [node["name"] for node in own] == [f"{number}.{turn}" for turn in range(25)], "in order"
        assert {by_id[node["parent_id"]] for node in own} == {f"thread {number}"}


def test_order_within_each_session_is_kept(make_tracker: MakeTracker, database: Database) -> None:
    tracker = make_tracker()
    sessions = [tracker.session() for _ in range(5)]
    for turn in range(300):
        outputs(sessions[turn % 5], f"{turn}")  # type: ignore[arg-type]  # sessions record alike
    assert tracker.flush()
    found = recorded(database, AGENT)
    for number, session in enumerate(sessions):
        own = [node["name"] for node in found if node["session_id"] == session.session_id]
        assert own == [f"{turn}" for turn in range(number, 300, 5)]
    assert len(fragments(database, AGENT)) < 100, "nodes of a session go together"


def test_lost_answers_leave_nothing_twice(
    make_tracker: MakeTracker, service: Running, database: Database
) -> None:
    with lossy(service.url) as way:
        tracker = make_tracker(url=way.url)
        for turn in range(10):
            way.lose = 3
            outputs(tracker, *(f"{turn}.{number}" for number in range(20)))
            assert tracker.flush()
        tracker.close()
    assert len(way.keys) >= len(set(way.keys)) + 30, "the same request came again after each lost answer"
    assert recorded_names(database, AGENT) == [f"{t}.{n}" for t in range(10) for n in range(20)]


async def test_commits_of_an_unknown_end_leave_nothing_twice(database: Database, spool: Path) -> None:
    """The service itself loses its database's answer (P19), says 503, and is asked again."""
    async with proxied(database.app_url) as (proxy, url):
        await asyncio.to_thread(_post_through_faults, proxy, url, spool)
    names = await asyncio.to_thread(recorded_names, database, AGENT)
    assert names == [f"{fault.name} {number}" for fault in Fault for number in range(5)]


def _post_through_faults(proxy: Proxy, url: str, spool: Path) -> None:
    with serve(url, command_timeout_secs=1.0) as service:
        client = Client(service.url, service.operator_token)
        token = client.post("/v1/agents", {"agent_id": AGENT, "policy": None}).json["token"]
        with LineageTracker(service.url, token, spool=spool, backoff=QUICK) as tracker:
            for fault in Fault:
                fired = proxy.fired
                proxy.arm(fault, f'"{fault.name} 0"'.encode())
                outputs(tracker, *(f"{fault.name} {number}" for number in range(5)))
                assert tracker.flush()
                assert proxy.fired == fired + 1


def test_a_refused_node_does_not_take_others_with_it(make_tracker: MakeTracker, database: Database) -> None:
    tracker = make_tracker()
    outputs(tracker, "before")
    tracker.outbox.put_node(tracker.session_id, str(uuid.UUID(int=1)), b'{"node_id":"wrong"}')
    outputs(tracker, "after")
    report = tracker.flush()
    assert not report
    [refusal] = tracker.refused
    assert refusal.status == 400
    assert "node_id" in refusal.reason
    assert refusal.body == b'{"node_id":"wrong"}'
    assert recorded_names(database, AGENT) == ["before", "after"]
    tracker.outbox.discard_refused()


def test_a_small_limit_of_the_service_splits_batches(database: Database, spool: Path) -> None:
    names = [f"{number}" for number in range(40)]
    with serve(database.app_url, max_body_bytes=2_048) as small:
        client = Client(small.url, small.operator_token)
        token = client.post("/v1/agents", {"agent_id": AGENT, "policy": None}).json["token"]
        with LineageTracker(small.url, token, spool=spool, backoff=QUICK) as tracker:
            outputs(tracker, *names)
            with tracker.node("OUTPUT", "too large", "x" * 5_000):
                pass
            outputs(tracker, "last")
            assert [refusal.status for refusal in tracker.flush().refused] == [413]
    assert recorded_names(database, AGENT) == [*names, "last"]


def test_an_agent_that_is_created_later_gets_what_was_recorded_before(
    make_tracker: MakeTracker, service: Running, operator: Client, database: Database
) -> None:
    tracker = make_tracker(token=service.operator_token, agent="late")
    outputs(tracker, "early")
    report = tracker.flush(0.5)
    assert report.waiting == 1
    assert "404 not_found" in str(report.trouble)
    operator.post("/v1/agents", {"agent_id": "late", "policy": None})
    assert tracker.flush()
    assert recorded_names(database, "late") == ["early"]


def test_a_wrong_token_keeps_everything_for_the_right_one(
    make_tracker: MakeTracker, token: str, database: Database
) -> None:
    wrong = make_tracker(token=token[:-64] + "0" * 64)
    outputs(wrong, "one", "two")
    assert "401 unauthorized" in str(wrong.flush(0.5).trouble)
    assert wrong.close(0).waiting == 2
    assert make_tracker().flush()
    assert recorded_names(database, AGENT) == ["one", "two"]


def test_two_processes_share_a_spool_folder(
    service: Running, token: str, spool: Path, database: Database
) -> None:
    program = (
        "import sys\n"
        "from app.client import LineageTracker\n"
        f"with LineageTracker({service.url!r}, {token!r}, spool={str(spool)!r}) as tracker:\n"
        "    for number in range(150):\n"
        "        with tracker.node('OUTPUT', f'{sys.argv[1]}.{number}'): pass\n"
        "    assert tracker.flush()\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, name], cwd=ROOT, stderr=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for process in running:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said.decode()
    names = recorded_names(database, AGENT)
    for name in ("a", "b"):
        own = [found for found in names if found.startswith(name)]
        assert own == [f"{name}.{number}" for number in range(150)]
    assert len(names) == 300
    assert list(spool.iterdir()) == []


def test_a_full_journal_holds_recording_up_until_the_service_takes_more(
    make_tracker: MakeTracker, database: Database
) -> None:
    tracker = make_tracker(max_queued=10)
    outputs(tracker, *(f"{number}" for number in range(200)))
    assert tracker.flush()
    assert recorded_names(database, AGENT) == [f"{number}" for number in range(200)]


def test_the_compiled_tree_can_be_posted_by_hand(
    make_tracker: MakeTracker, operator: Client, database: Database
) -> None:
    tracker = make_tracker()
    with tracker.node("PLANNING", "plan"):
        outputs(tracker, "answer")
    tree = tracker.compile_tree()
    reply = operator.post(f"/v1/agents/{AGENT}/traces", tree)
    assert reply.status == 200, reply.raw
    assert reply.json["nodes"] == 2
    assert json.loads(json.dumps(tree)) in fragments(database, AGENT)
