"""Case H29: a database that stands still is told in time, by every caller, and forgotten when it goes on."""

from __future__ import annotations

import asyncio

import asyncpg
import httpx2

from tests.support.processes import paused
from tests.support.server import ServerProcess, server, start_server

__all__ = ["server", "start_server"]

ANSWER_SECS = 2.0
"""What the API promises of ``/readyz``."""


async def test_h29_sessions_that_stand_still_are_told_within_two_seconds(
    server: ServerProcess, admin: asyncpg.Connection
) -> None:
    async with httpx2.AsyncClient(base_url=server.base_url, timeout=30) as client:
        warm = await asyncio.gather(*(client.get("/readyz") for _ in range(4)))
        assert {answer.status_code for answer in warm} == {200}
        sessions = await admin.fetch("SELECT pid FROM pg_stat_activity WHERE usename = 'trails_app'")
        with paused(row["pid"] for row in sessions):
            said: set[int] = set()
            async with asyncio.timeout(30):
                while said != {503}:  # what was said a moment ago may be said once more
                    answers = await asyncio.gather(*(client.get("/readyz") for _ in range(4)))
                    assert max(answer.elapsed.total_seconds() for answer in answers) < ANSWER_SECS
                    said = {answer.status_code for answer in answers}
            assert (await client.get("/healthz")).status_code == 200
        async with asyncio.timeout(30):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
