"""``trails verify --jobs``: one verdict, however many processes share the work (case T11).

That tampered databases of many kinds come out the same is seen by every other test of ``trails verify``: its
fixture verifies each database a second time, shared by workers in pieces of three rows.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from app.audit.chain import ProvenRows
from app.audit.rows import Spot
from app.audit.walk import Walk
from app.cli.verify import default_jobs
from app.workers import worker_pool
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, faults, run_trails
from tests.support.jobs import Threads, shared_work

ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECS = 60
T = TypeVar("T")
IN_PROCESSES = """
import sys
from app.cli.main import main
from app.workers import worker_pool
from tests.support.jobs import shared_work
with shared_work(rows=1, workers=worker_pool):
    sys.exit(main())
"""
"""``trails``, every row of which goes to a process."""


@contextmanager
def adopted() -> Iterator[list[int]]:
    """How many records each proof had that was taken for a verification, in order."""
    told: list[int] = []
    adopt = Walk.adopt

    def telling(walk: Walk, spot: Spot, proven: ProvenRows) -> bool:
        taken = adopt(walk, spot, proven)
        if taken:
            told.append(proven.stretch.records)
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "adopt", telling)
        yield told


def shared(trail: Trail, *arguments: object, rows: int = 3, workers: object = Threads) -> Result:
    with shared_work(rows, workers):
        return run_trails("verify", *arguments, "--jobs", 2, "--json", env=trail.env)


def test_t11_workers_prove_every_row_but_those_of_administration(trail: Trail) -> None:
    with adopted() as told:
        assert shared(trail).code == 0
    rows = trail.fetch(f"SELECT count(*) FROM {TRAIL} WHERE agent_id <> '_administration'")[0][0]
    assert sum(told) == rows


def test_t11_processes_come_to_the_verdict_of_one(trail: Trail) -> None:
    with adopted() as told:
        assert shared(trail, workers=worker_pool).json == trail.verify().json
        assert len(told) > 5
        trail.tamper(f"DELETE FROM {TRAIL} WHERE agent_id = 'scout' AND seq = 5")
        result = shared(trail, workers=worker_pool)
    assert (result.code, faults(result)) == (1, [(5, "order")])
    assert result.json == trail.verify().json
    assert not multiprocessing.active_children()


def test_t11_behind_a_record_that_does_not_verify_no_worker_is_believed(trail: Trail) -> None:
    trail.tamper(
        f"UPDATE {TRAIL} SET signature = (SELECT signature FROM {TRAIL} WHERE agent_id = 'scout' AND seq = 3)"
        " WHERE agent_id = 'scout' AND seq = 2"
    )
    with adopted() as told:
        result = shared(trail)
    assert faults(result) == [(2, "signature")]
    others = trail.fetch(f"SELECT count(*) FROM {TRAIL} WHERE agent_id = 'other'")[0][0]
    assert others <= sum(told) <= others + 2


def test_t11_a_worker_that_is_killed_leaves_nothing_verified(trail: Trail) -> None:
    adopt = Walk.adopt

    def killing(walk: Walk, spot: Spot, proven: ProvenRows) -> bool:
        victim = multiprocessing.active_children()[0]
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join(LIMIT_SECS)
        return adopt(walk, spot, proven)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "adopt", killing)
        result = shared(trail, rows=1, workers=worker_pool)
    assert (result.code, result.json["verdict"]) == (5, "could not check")
    [finding] = result.json["findings"]
    assert "killed, or memory ran out" in finding["reason"]
    assert not multiprocessing.active_children()  # its siblings ended with it


def test_t11_workers_end_with_the_process_that_they_work_for(trail: Trail) -> None:
    audit = subprocess.Popen(
        [sys.executable, "-c", IN_PROCESSES, "verify", "--jobs", "2", "--quiet"],
        env={**os.environ, **trail.env, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    try:
        workers = until(lambda: children(audit.pid))
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
    finally:
        audit.kill()
        audit.wait(LIMIT_SECS)
    for worker in workers:
        os.kill(worker, signal.SIGCONT)
    until(lambda: not any(Path(f"/proc/{worker}/exe").exists() for worker in workers))


def children(pid: int) -> list[int]:
    """The processes of Python that a process started."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        pytest.skip("the children of a process are told by Linux alone")
    return [int(child) for child in found]


def until(asked: Callable[[], T]) -> T:
    """What is asked for, once it is there."""
    deadline = time.monotonic() + LIMIT_SECS
    while not (found := asked()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("forged", [None, "fold", "kind"])
def test_t11_snapshots_are_compared_whoever_read_the_records_before_them(
    trail: Trail, forged: str | None
) -> None:
    trail.take_snapshots(forged)
    result = trail.verify()
    assert (result.code, [fault for _, fault in faults(result)]) == ((1, [forged]) if forged else (0, []))


def test_a_database_whose_snapshot_cannot_be_shared_is_verified_by_one_process(trail: Trail) -> None:
    with psycopg.connect(trail.database.admin_url, autocommit=True) as connection:
        connection.execute(b"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_export_snapshot() FROM PUBLIC")
    env = trail.with_url(trail.database.app_url)
    with shared_work(), adopted() as told:
        result = run_trails("verify", "--jobs", 2, "--json", env=env)
    assert (result.code, told) == (0, [])
    assert any("one process did all" in note for note in result.json["notes"])


def test_the_default_is_a_process_for_each_processor_up_to_four() -> None:
    assert 1 <= default_jobs() <= 4
