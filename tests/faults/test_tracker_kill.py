"""The tracker's program is killed (kill -9) at any moment: what it had recorded arrives, once, in order.

A program says each node's name on its standard output once the node is recorded. What was said must be on
record in the end; what was not said yet may be; nothing may be there twice.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.http.client import Client
from tests.support.lossy import lossy
from tests.support.posted import recorded
from tests.support.postgres import Database
from tests.support.server import ServerProcess, StartServer

ROOT = Path(__file__).resolve().parents[2]
SESSION = "5e550000-0000-4000-8000-000000000001"
AGENT = "bot"

_PROGRAM = f"""
import itertools, sys
from app.client import LineageTracker
from app.client.outbox import Backoff
url, token, spool, name = sys.argv[1:]
tracker = LineageTracker(url, token, session_id="{SESSION}", spool=spool, backoff=Backoff(0.01, 0.05, 0.05))
for number in itertools.count():
    with tracker.node("TOOL_CALL", f"{{name}}.{{number}}", {{"number": number}}):
        pass
    print(f"{{name}}.{{number}}", flush=True)
"""

_FLUSH = """
import sys
from app.client import LineageTracker
url, token, spool = sys.argv[1:]
with LineageTracker(url, token, spool=spool) as tracker:
    assert tracker.flush(60), tracker.flush(0)
"""


@contextmanager
def recording(url: str, token: str, spool: Path, name: str) -> Iterator[Iterator[str]]:
    """A program that records for ever; yields the names of what it has recorded. Killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, url, token, str(spool), name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield (line.strip() for line in process.stdout)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def record(url: str, token: str, spool: Path, name: str, count: int) -> list[str]:
    """The names of ``count`` nodes, or some more, that a program had recorded when it was killed."""
    process_names: list[str] = []
    with recording(url, token, spool, name) as names:
        for said in names:
            process_names.append(said)
            if len(process_names) == count:
                break
    return process_names


def flush(url: str, token: str, spool: Path) -> None:
    """The program is started again, and ends when everything is sent."""
    done = subprocess.run(
        [sys.executable, "-c", _FLUSH, url, token, str(spool)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def check(database: Database, said: list[list[str]]) -> None:
    """Everything that was said is on record once, in order within each program."""
    found = recorded(database, AGENT)
    names = [node["name"] for node in found]
    assert len(names) == len(set(names)), "something is there twice"
    assert len({node["node_id"] for node in found}) == len(names)
    assert {node["session_id"] for node in found} == {SESSION}
    for number, program in enumerate(said):
        own = [name for name in names if name.startswith(f"{number}.")]
        assert own == [f"{number}.{turn}" for turn in range(len(own))], "a gap, or out of order"
        assert own[: len(program)] == program, "something that was recorded is missing"


@pytest.fixture
def token(server: ServerProcess) -> str:
    """Of the observed agent ``bot``."""
    reply = Client(server.base_url, server.operator_token).post(
        "/v1/agents", {"agent_id": AGENT, "policy": None}
    )
    return str(reply.json["token"])


def test_killed_while_the_service_is_away(
    server: ServerProcess, token: str, database: Database, tmp_path: Path
) -> None:
    server.kill()
    said = [record(server.base_url, token, tmp_path / "spool", f"{number}", 200) for number in range(3)]
    server.start()
    flush(server.base_url, token, tmp_path / "spool")
    check(database, said)
    assert list((tmp_path / "spool").glob("*.journal")) == []


def test_killed_at_any_moment_of_sending(
    server: ServerProcess, token: str, database: Database, tmp_path: Path
) -> None:
    said = [
        record(server.base_url, token, tmp_path / "spool", f"{number}", 1 + 97 * number)
        for number in range(8)
    ]
    flush(server.base_url, token, tmp_path / "spool")
    check(database, said)


def test_killed_after_the_service_has_stored_what_it_never_heard_of(
    server: ServerProcess, token: str, database: Database, tmp_path: Path
) -> None:
    said = []
    with lossy(server.base_url) as way:
        for number in range(3):
            way.lose = 1_000_000
            sent = len(way.keys)
            with recording(way.url, token, tmp_path / "spool", f"{number}") as names:
                program = [next(names)]
                while len(way.keys) < sent + 2:
                    program.append(next(names))
            said.append(program)
        stored = recorded(database, AGENT)
        assert stored, "answers are lost, not requests"
        way.lose = 2
        flush(way.url, token, tmp_path / "spool")
    check(database, said)


def test_the_service_is_killed_while_programs_record(
    start_server: StartServer, database: Database, tmp_path: Path
) -> None:
    server = start_server()
    client = Client(server.base_url, server.operator_token)
    token = client.post("/v1/agents", {"agent_id": AGENT, "policy": None}).json["token"]
    said = []
    with recording(server.base_url, token, tmp_path / "spool", "0") as names:
        program = []
        for _ in range(3):
            program += [next(names) for _ in range(300)]
            server.kill()
            program += [next(names) for _ in range(300)]
            server.start()
        said.append(program)
    flush(server.base_url, token, tmp_path / "spool")
    check(database, said)
