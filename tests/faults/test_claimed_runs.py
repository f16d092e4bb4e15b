"""Programs of one agent share an approval (case G04): one of them runs, also when it does not live to tell.

Each is a process of its own. It writes a line when it runs the tool, and one when it is told not to.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.http.client import Client
from tests.support.guarding import AGENT, POLICY
from tests.support.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
ACTION = f"/v1/agents/{AGENT}/actions/act-1"

_PROGRAM = """
import sys, threading
from app.client import ActionDenied, Guard
url, token, spool, ends = sys.argv[1:]
guard = Guard(url, token, spool=spool, approval_timeout=60, on_pending=lambda _: print("waits", flush=True))

@guard.tool("send_email")
def send(to: str) -> None:
    print("runs", flush=True)
    if ends == "never":
        threading.Event().wait(60)

try:
    send("a@example.com")
except ActionDenied as denied:
    print(denied.decision.code, flush=True)
guard.close()
"""

_LATER = """
import sys
from app.client import Guard
url, token, spool = sys.argv[1:]
with Guard(url, token, spool=spool) as guard:
    print(guard.wait("act-1", 0, tool="send_email", input={"to": "a@example.com"}).code)
"""

Program = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def operator(server: ServerProcess) -> Client:
    """Whoever approves."""
    return Client(server.base_url, server.operator_token)


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path, operator: Client) -> Iterator[Program]:
    """Starts programs of the agent; they are ended with the test."""
    token = str(operator.create(AGENT, POLICY).token)

    @contextmanager
    def started(source: str, *more: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", source, server.base_url, token, str(tmp_path / "spool"), *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(started(*arguments))


def said(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kinds(operator: Client) -> list[str]:
    log: list[dict[str, Any]] = operator.get(f"/v1/agents/{AGENT}/log?limit=5000").json["records"]
    return [record["kind"] for record in log]


def test_g04_of_two_programs_that_wait_for_one_approval_one_runs(program: Program, operator: Client) -> None:
    programs = [program(_PROGRAM, "soon") for _ in range(2)]
    assert [said(each) for each in programs] == ["waits", "waits"]
    assert operator.post(f"{ACTION}/approve", {"approver": "Ada"}).status == 200
    ends = sorted(said(each) for each in programs)
    assert ends[1] == "runs"
    assert ends[0] in {"already_claimed", "completed"}
    assert [each.wait(60) for each in programs] == [0, 0]
    assert (kinds(operator).count("action_claimed"), kinds(operator).count("outcome")) == (1, 1)


def test_g04_what_a_killed_program_had_claimed_nobody_runs_again(program: Program, operator: Client) -> None:
    """The record says that it was claimed and not how it went; whoever finds out reports it."""
    killed = program(_PROGRAM, "never")
    assert said(killed) == "waits"
    assert operator.post(f"{ACTION}/approve", {"approver": "Ada"}).status == 200
    assert said(killed) == "runs"
    killed.kill()
    killed.wait()
    assert said(program(_LATER)) == "already_claimed"
    shown = operator.get(ACTION).json
    assert (shown["status"], shown["claimed_by"], shown["outcome"]) == ("allowed", AGENT, None)
    for status in ("unknown", "success"):
        assert operator.post(f"{ACTION}/outcome", {"status": status, "detail": "looked it up"}).status == 200
