"""The thread of a guard at the end of the program."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.client import worker as worker_module
from app.client.worker import Worker

ROOT = Path(__file__).resolve().parents[3]

MANY = """
import asyncio, time
from app.client import worker

worker.EXIT_SECS = 0.5

async def start():
    return None

async def stop(_):
    return None

async def hang(_):
    await asyncio.Event().wait()

workers = [worker.Worker(start, stop, "w") for _ in range(20)]
for one in workers:
    one.spawn(hang)
    one.call(lambda _: asyncio.sleep(0))
print("end", flush=True)
"""


def test_all_workers_share_the_time_at_the_end_of_the_program() -> None:
    program = subprocess.Popen([sys.executable, "-c", MANY], cwd=ROOT, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"end\n"
    began = time.monotonic()
    program.stdout.close()
    assert program.wait(60) == 0
    assert time.monotonic() - began < 20 * 0.5, "not one after the other"


def test_a_backend_that_does_not_close_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "CLOSING_SECS", 0.1)

    async def start() -> None:
        """Nothing to begin."""

    async def stop(_: None) -> None:
        await asyncio.Event().wait()

    async def use(_: None) -> int:
        return 1

    worker = Worker(start, stop, "test")
    assert worker.call(use) == 1
    worker.close(0.1)
