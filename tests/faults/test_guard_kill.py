"""A guarded program is killed (kill -9) at any moment: what it did is on record once, and charged once.

It says ``runs`` in the tool, and ``done`` once the guarded call has returned: by then its outcome is either
on record or in the spool, from which the next program sends it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.integration.http.client import Client
from tests.support.aftermath import Work
from tests.support.faults import rounds
from tests.support.guarding import AGENT
from tests.support.lossy import Lossy, lossy
from tests.support.postgres import Database
from tests.support.server import ROOT, ServerProcess

POLICY = {"budget": 100_000, "scar_limit": 100_000, "tools": {"search": {"cost": 1}}}

_PROGRAM = """
import itertools, sys
from app.client import Guard
url, token, spool, name = sys.argv[1:]
guard = Guard(url, token, spool=spool)

@guard.tool("search")
def search(what: str) -> str:
    print("runs", what, flush=True)
    return what

for number in itertools.count():
    search(f"{name}.{number}")
    print("done", f"{name}.{number}", flush=True)
"""

_FLUSH = """
import sys
from app.client import LineageTracker
url, token, spool = sys.argv[1:]
with LineageTracker(url, token, spool=spool) as tracker:
    assert tracker.flush(60), tracker.flush(0)
"""


def killed_after(count: int, way: Lossy, *arguments: str, lose: int) -> list[tuple[str, str]]:
    """What a program said until it was killed: after ``count`` lines, or when its last answers were lost."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, way.url, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(tuple(line.split()))
            if len(said) == count:
                break
        if lose:
            way.lose, sent = lose, len(way.keys)
            while len(way.keys) == sent and (line := process.stdout.readline()):
                said.append(tuple(line.split()))
    finally:
        process.kill()
        rest, _ = process.communicate()
        way.lose = 0
    return [(word, what) for word, what in [*said, *(tuple(line.split()) for line in rest.splitlines())]]


def test_what_a_killed_program_did_is_on_record_and_charged_once(
    server: ServerProcess, database: Database, tmp_path: Path
) -> None:
    operator = Client(server.base_url, server.operator_token)
    token = str(operator.create(AGENT, POLICY).token)
    spool = str(tmp_path / "spool")
    said: list[tuple[str, str]] = []
    with lossy(server.base_url) as way:
        for number in range(rounds(3, 20)):
            lose = 1_000_000 * (number % 2)  # every other program dies before it hears of what was done
            said += killed_after(1 + 3 * number, way, token, spool, f"{number}", lose=lose)
    flushed = subprocess.run(
        [sys.executable, "-c", _FLUSH, server.base_url, token, spool],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert flushed.returncode == 0, flushed.stderr

    log = operator.get(f"/v1/agents/{AGENT}/log?limit=5000").json["records"]
    of_kind = {
        kind: [record["payload"] for record in log if record["kind"] == kind]
        for kind in ("action_requested", "action_allowed", "outcome")
    }
    asked = {found["action_id"]: found["input"]["what"] for found in of_kind["action_requested"]}
    assert max(Counter(asked.values()).values()) == 1
    outcomes = Counter(asked[found["action_id"]] for found in of_kind["outcome"])
    assert max(outcomes.values()) == 1
    ran = [what for word, what in said if word == "runs"]
    assert Counter(ran).keys() <= set(asked.values()), "ran without a permission on record"
    assert {what for word, what in said if word == "done"} <= outcomes.keys()
    assert operator.get(f"/v1/agents/{AGENT}").json["spent"] == len(of_kind["action_allowed"]) == len(asked)
    Work(database.admin_url, lambda: operator).check_database()
