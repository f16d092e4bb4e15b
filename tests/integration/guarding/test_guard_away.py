"""Answers that get lost, services that are away: nothing runs unasked, nothing is charged twice or lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.client.backend import Outcome
from app.client.decisions import ActionDenied, Allowed, Decision, Denied, Pending
from app.client.gate import Gate
from app.client.guard import Guard
from app.client.worker import Worker
from tests.integration.http.client import Client
from tests.integration.http.serving import serve
from tests.support.guarding import AGENT, POLICY, Stage
from tests.support.lossy import Lossy, lossy
from tests.support.postgres import Database
from tests.support.proxy import Fault, Proxy, proxied
from tests.support.scripted import Reply, Scripted, problem, scripted

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def way(stage: Stage) -> Iterator[Lossy]:
    """A way to the service on which answers get lost."""
    with lossy(stage.url) as found:
        yield found


@pytest.fixture
def answering() -> Iterator[Scripted]:
    """A service that answers as told."""
    with scripted() as found:
        yield found


def test_the_tool_does_not_run_when_the_service_is_away(gone: Guard) -> None:
    ran = []

    @gone.tool("search")
    def search() -> None:
        ran.append(1)

    with pytest.raises(ActionDenied, match="without its answer nothing is run") as caught:
        search()
    assert ran == []
    assert caught.value.decision.code == "unavailable"


async def test_the_coroutine_does_not_run_when_the_service_is_away(gone: Guard) -> None:
    ran = []

    @gone.tool("search")
    async def search() -> None:
        ran.append(1)

    with pytest.raises(ActionDenied):
        await search()
    assert ran == []


NO_DECISION = {
    "a page": Reply(200, b"<html>hello</html>", "text/html"),
    "another document": Reply(200, b'{"ok":true}', "application/json"),
    "an array": Reply(200, b"[]", "application/json"),
    "half an answer": Reply(200, b'{"decision":"allowed","action_id":"act-1"', "application/json"),
    "allowed without an id": Reply(200, b'{"decision":"allowed","cost":1,"remaining":1}', "application/json"),
    "allowed for true": Reply(
        200, b'{"decision":"allowed","action_id":"act-1","cost":true,"remaining":1}', "application/json"
    ),
    "a word of another time": Reply(200, b'{"decision":"maybe","action_id":"act-1"}', "application/json"),
    "a redirect": Reply(302, b"", "text/plain", (("Location", "http://127.0.0.1:1/"),)),
    "an error of a proxy": Reply(502, b"bad gateway", "text/plain"),
    "a refusal of a proxy": Reply(403, b"no", "text/plain"),
    "denied until a word": Reply(
        200,
        b'{"decision":"denied","action_id":"act-1","reason":{"code":"no"},"retry_after_secs":"soon"}',
        "application/json",
    ),
    "503": problem(503, "unavailable"),
    "quarantined": problem(503, "quarantined", Retry_After="60"),
    "500": problem(500, "internal"),
    "cut": Reply(None),
}


@pytest.mark.parametrize("reply", NO_DECISION.values(), ids=NO_DECISION)
def test_what_is_no_decision_denies(reply: Reply, answering: Scripted, stage: Stage) -> None:
    answering.script = [reply] * 8
    guard = stage.guard(answering.url, attempts=2)
    ran = []

    @guard.tool("search")
    def search() -> None:
        ran.append(1)

    with pytest.raises(ActionDenied) as caught:
        search()
    assert caught.value.decision.code == "unavailable"
    assert ran == []
    assert len({got.key for got in answering.got}) == 1, "the same key each time"


def test_an_answer_that_comes_too_late_denies(stage: Stage, answering: Scripted) -> None:
    asked = threading.Event()

    def late(_: object) -> Reply:
        asked.wait(20)
        return Reply(200, b'{"decision":"allowed","action_id":"act-1","cost":1,"remaining":1}')

    answering.script = [late]
    guard = stage.guard(answering.url, attempts=1, timeout=0.2)
    try:
        denied = guard.check("search")
    finally:
        asked.set()
    assert isinstance(denied, Denied)
    assert denied.code == "unavailable"


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_answer_is_charged_once(lost: int, stage: Stage, way: Lossy) -> None:
    guard = stage.guard(way.url)
    way.lose = lost
    assert guard.check("search", cost=7) == Allowed("act-1", 7, 993)
    assert len(way.keys) == lost + 1
    assert len(set(way.keys)) == 1
    assert stage.spent == 7
    assert len(stage.asked()) == 1


async def test_more_lost_answers_than_attempts_deny(stage: Stage, way: Lossy) -> None:
    guard = stage.guard(way.url, attempts=2)
    way.lose = 2
    denied = await guard.acheck("search")
    assert isinstance(denied, Denied)
    assert (denied.action_id, denied.code) == (None, "unavailable")
    assert len(stage.asked()) == 1


@pytest.mark.parametrize("fault", Fault)
async def test_p19_an_answer_lost_between_service_and_database_is_charged_once(
    fault: Fault, database: Database, tmp_path: Path
) -> None:
    def ask(proxy: Proxy, url: str) -> None:
        with serve(url) as running:
            operator = Client(running.url, running.operator_token)
            agent = operator.create(AGENT, POLICY)
            with Guard(running.url, agent.token, spool=tmp_path) as guard:
                proxy.arm(fault, b'"kind":"action_allowed"')
                assert guard.check("search", cost=7) == Allowed("act-1", 7, 993)
                assert proxy.fired == 1
            assert operator.get(f"/v1/agents/{AGENT}").json["spent"] == 7

    async with proxied(database.app_url) as (proxy, url):
        await asyncio.to_thread(ask, proxy, url)


def test_an_outcome_waits_for_a_service_that_is_away(stage: Stage, way: Lossy) -> None:
    guard = stage.guard(way.url)

    @guard.tool("search")
    def search() -> str:
        way.away = True
        raise LookupError("no index")

    with pytest.raises(LookupError):
        search()
    assert stage.outcomes() == []
    way.away = False
    guard.close()
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


def test_an_outcome_whose_answer_was_lost_is_on_record_once(stage: Stage, way: Lossy) -> None:
    guard = stage.guard(way.url)

    @guard.tool("search")
    def search() -> str:
        way.lose = 1
        return "found"

    assert search() == "found"
    guard.close()
    assert stage.outcomes() == [("act-1", "success", "")]


def test_without_a_journal_an_outcome_waits_in_memory(stage: Stage, way: Lossy) -> None:
    blocked = stage.folder / "no-folder"
    blocked.write_text("a file stands where the spool would be")
    guard = stage.guard(way.url, spool=blocked, attempts=1)

    @guard.tool("search")
    def search() -> str:
        way.lose = 1
        return "found"

    assert search() == "found"
    guard.close()
    assert stage.outcomes() == [("act-1", "success", "")]


PROGRAM = """
import os, sys
from app.client.guard import Guard
from app.client.worker import Worker

guard = Guard(sys.argv[1], sys.argv[2], spool=sys.argv[3])

@guard.tool("search")
def search():
    print("runs", flush=True)
    sys.stdin.readline()
    raise LookupError("no index")

try:
    search()
except LookupError:
    print("raised", flush=True)
    sys.stdin.readline()
"""


def test_an_outcome_survives_a_program_that_is_killed(stage: Stage, way: Lossy) -> None:
    spool = str(stage.folder / "spool")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way.url, stage.token, spool],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "runs\n"
        way.away = True
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "raised\n"
        program.send_signal(signal.SIGKILL)
    assert stage.outcomes() == []
    way.away = False
    with Guard(way.url, stage.token, spool=spool):
        stage.until(stage.outcomes)
    assert stage.outcomes() == [("act-1", "failure", "LookupError: no index")]


def test_a_forked_child_asks_on_connections_of_its_own(stage: Stage) -> None:
    guard = stage.guard()
    assert guard.check("search") == Allowed("act-1", 1, 999)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is found
        allowed = guard.check("search") == Allowed("act-2", 1, 998)
        os._exit(0 if allowed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert guard.check("search") == Allowed("act-3", 1, 997)


NOT_OF_THE_OUTCOME = {
    "a page of a proxy": Reply(404, b"<html>", "text/html"),
    "a redirect": Reply(302, b"", "text/plain", (("Location", "http://127.0.0.1:1/"),)),
    "a token that was changed": problem(401, "unauthorized"),
}


@pytest.mark.parametrize("reply", NOT_OF_THE_OUTCOME.values(), ids=NOT_OF_THE_OUTCOME)
def test_an_outcome_is_kept_when_something_else_answers(
    reply: Reply, answering: Scripted, stage: Stage
) -> None:
    answering.script = [reply]
    guard = stage.guard(answering.url)
    assert guard.report("act-1", "success") is False
    again = stage.until(lambda: answering.got[1:])
    assert {got.path for got in again} == {answering.got[0].path}
    assert {got.key for got in again} == {answering.got[0].key}


def test_the_standing_of_another_action_lets_nobody_go(answering: Scripted, stage: Stage) -> None:
    answering.script = [Reply(200, b'{"action_id":"act-2","status":"allowed","cost":1}', "application/json")]
    assert isinstance(stage.guard(answering.url).wait("act-1", 0), Pending)
    assert len(answering.got) == 1, "nothing is claimed"


@pytest.fixture
def hanging(stage: Stage, answering: Scripted) -> Iterator[Callable[..., Guard]]:
    """Makes guards of a service that takes questions and says nothing until the test is over."""
    over = threading.Event()

    def silent(_: object) -> Reply:
        over.wait(60)
        return Reply(None)

    answering.script = [silent] * 50
    yield lambda **options: stage.guard(answering.url, **options)
    over.set()


def test_all_attempts_together_have_one_deadline(hanging: Callable[..., Guard], answering: Scripted) -> None:
    guard = hanging(timeout=0.3)
    denied = guard.check("search")
    assert isinstance(denied, Denied)
    assert denied.code == "unavailable"
    assert len(answering.got) == 1, "nothing is sent for a caller who has gone"


async def test_a_coroutine_has_the_same_deadline(hanging: Callable[..., Guard], answering: Scripted) -> None:
    guard = hanging(timeout=0.3)
    ran = []

    @guard.tool("search")
    async def search() -> None:
        ran.append(1)

    with pytest.raises(ActionDenied, match="unavailable"):
        await search()
    assert ran == []
    assert len(answering.got) == 1


def test_a_wait_ends_although_the_service_hangs(hanging: Callable[..., Guard]) -> None:
    assert hanging(timeout=0.2).wait("act-1", 0.3) == Pending("act-1")


def test_trouble_until_the_deadline_denies(stage: Stage, answering: Scripted) -> None:
    """No attempt begins after it, however many are left."""
    answering.script = [problem(503, "unavailable", Retry_After="0.2")] * 1_000
    guard = stage.guard(answering.url, attempts=1_000, timeout=0.5)
    assert isinstance(guard.check("search"), Denied)
    guard.close()
    assert len(answering.got) <= 4


def test_an_action_allowed_after_the_deadline_is_on_record_as_given_up() -> None:
    """The transport is not what ends the waiting here: whatever hangs, the caller is let go."""
    go_on = threading.Event()

    class Late:
        keeps = False

        async def ask(self, *_: object) -> Decision:
            await asyncio.to_thread(go_on.wait, 20)
            return Allowed("act-1", 1, 1)

        async def report(self, outcome: Outcome) -> None:
            reported.append(outcome)

        def keep(self, _: Outcome) -> bool:
            return False

        async def close(self) -> None:
            """Nothing."""

    async def start() -> Any:
        return Late()

    reported: list[Outcome] = []
    gate = Gate(Worker(start, lambda late: late.close(), "late"), timeout=0.1)
    denied = gate.check("search")
    assert isinstance(denied, Denied)
    assert "no decision came within 0.1 seconds" in denied.reason["error"]
    go_on.set()
    gate.close()
    assert [(outcome.action_id, outcome.status) for outcome in reported] == [("act-1", "unknown")]
