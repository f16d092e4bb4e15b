"""What somebody with all rights changes under two running processes is found by both, while others go on.

Nobody asks for the chains that are changed: what finds it is the patrol of each process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
import httpx2

from tests.support.faults import rounds
from tests.support.ledgers import TABLE, Json, Table
from tests.support.server import ServerProcess, StartServer

AT_ONCE: Final = {"TRAILS_VERIFY_RECORDS_PER_SEC": "1000000", "TRAILS_LOG_FORMAT": "json"}
BUSY: Final = ("busy-0", "busy-1", "busy-2")
POLICY: Final = {"budget": 2**40, "scar_limit": 1_000, "tools": {"search": {"cost": 1}}}
LENGTH: Final = 101
"""Records of a chain that is changed: several slices."""

PAUSE_SECS: Final = 0.3
"""Between two turns of a client: what is looked at is that all go on, not how much there may be at once."""

BROKEN: Final = "a chain does not verify and is quarantined"

CHANGES: Final = {
    "edited": (
        f"UPDATE {TABLE} SET actor = 'nobody' WHERE agent_id = $1 AND seq = 50",
        50,
    ),
    "deleted": (f"DELETE FROM {TABLE} WHERE agent_id = $1 AND seq = 50", 50),
    "swapped": (
        f"UPDATE {TABLE} AS r SET signature = o.signature FROM {TABLE} AS o"  # noqa: ISC004  one statement
        " WHERE r.agent_id = $1 AND o.agent_id = $1 AND r.seq IN (50, 51) AND o.seq = 101 - r.seq",
        50,
    ),
    "cut": (f"DELETE FROM {TABLE} WHERE agent_id = $1 AND seq > 90", LENGTH - 1),
}
"""What is done to the chain of this name, and the ``seq`` that is told."""


class Traffic:
    """Clients of both processes that ask, post and begin agents until they are stopped; none is refused."""

    def __init__(self, servers: Sequence[ServerProcess]) -> None:
        self._servers = servers
        self._is_going = True
        self.answered = 0

    async def run(self) -> None:
        """Goes on until ``stop``."""
        async with asyncio.TaskGroup() as clients:
            for server in self._servers:
                for agent in BUSY:
                    clients.create_task(self._client(server, agent))

    def stop(self) -> None:
        """Lets the clients end."""
        self._is_going = False

    async def _client(self, server: ServerProcess, agent: str) -> None:
        async with httpx2.AsyncClient(base_url=server.base_url, headers=server.headers, timeout=30) as http:
            turn = 0
            while self._is_going:
                turn += 1
                begun = f"{agent}-{server.pid}-{turn}"
                for path, body in (
                    (f"/{agent}/actions", [{"tool": "search", "input": turn}]),
                    (f"/{agent}/events", [{"type": "t", "data": n} for n in range(turn % 40 + 1)]),
                    ("", [{"agent_id": begun, "policy": None}]),
                ):
                    answer = await post(http, path, body)
                    assert answer.status_code in {200, 201}, answer.text
                    self.answered += 1
                await asyncio.sleep(PAUSE_SECS)


async def post(http: httpx2.AsyncClient, path: str, bodies: Sequence[Json]) -> httpx2.Response:
    """Posts one document, or several as a batch."""
    kind = "application/json" if len(bodies) == 1 else "application/x-ndjson"
    content = b"\n".join(json.dumps(body).encode() for body in bodies)
    return await http.post(f"/v1/agents{path}", content=content, headers={"Content-Type": kind})


def events(server: ServerProcess) -> list[dict[str, Any]]:
    """What the process has logged of what it verified."""
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] in {"trails.ledger", "trails.patrol"}]


async def figures(server: ServerProcess) -> dict[str, float]:
    async with httpx2.AsyncClient(base_url=server.base_url, timeout=30) as http:
        text = (await http.get("/metrics")).text
    lines = [line.split() for line in text.splitlines() if line.startswith("trails_") and "{" not in line]
    return {name: float(value) for name, value in lines}


async def some_rounds(servers: Sequence[ServerProcess], count: int) -> None:
    """Returns when each process has gone round all chains so many times more."""
    for server in servers:
        wanted = (await figures(server))["trails_verify_rounds_total"] + count
        async with asyncio.timeout(60 * count):
            while (await figures(server))["trails_verify_rounds_total"] < wanted:
                await asyncio.sleep(0.1)


async def make_chains(servers: Sequence[ServerProcess]) -> None:
    """The chains of the test, each read by both processes."""
    first = servers[0]
    async with httpx2.AsyncClient(base_url=first.base_url, headers=first.headers, timeout=30) as http:
        for agent in BUSY:
            (await post(http, "", [{"agent_id": agent, "policy": POLICY}])).raise_for_status()
        for agent in CHANGES:
            (await post(http, "", [{"agent_id": agent, "policy": None}])).raise_for_status()
            told = [{"type": "t", "data": {"n": n}} for n in range(LENGTH - 1)]
            (await post(http, f"/{agent}/events", told)).raise_for_status()
            for server in servers:
                status = await http.get(f"{server.base_url}/v1/agents/{agent}")
                assert status.json()["head"]["seq"] == LENGTH - 1


async def test_both_processes_find_what_was_changed_while_others_go_on(
    start_server: StartServer, admin: asyncpg.Connection
) -> None:
    servers = [start_server(env=AT_ONCE) for _ in range(2)]
    await make_chains(servers)
    traffic = Traffic(servers)
    going = asyncio.create_task(traffic.run())
    await some_rounds(servers, rounds(1, 10))
    for server in servers:
        assert events(server) == []
        assert (await figures(server))["trails_broken_chains_total"] == 0
    table = Table(admin)
    await table.unlock()
    for agent, (change, _) in CHANGES.items():
        await admin.execute(change, agent)
    await admin.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    before = traffic.answered
    await some_rounds(servers, 2)  # one of them began after the change
    async with httpx2.AsyncClient(headers=servers[0].headers, timeout=30) as http:
        for server in servers:
            found = {event["agent"]: event for event in events(server)}
            assert len(events(server)) == len(found) == len(CHANGES)
            for agent, (_, seq) in CHANGES.items():
                event = found[agent]
                assert (event["message"], event["level"], event["tenant"]) == (BROKEN, "error", "default")
                assert event["reason"].startswith(f"seq {seq}: ")
                answer = await http.get(f"{server.base_url}/v1/agents/{agent}")
                assert (answer.status_code, answer.json()["code"]) == (503, "quarantined")
            health = [
                (await http.get(f"{server.base_url}{path}")).status_code for path in ("/healthz", "/readyz")
            ]
            assert health == [200, 200]
    await some_rounds(servers, 1)
    traffic.stop()
    await going
    assert traffic.answered > before
    async with httpx2.AsyncClient(headers=servers[0].headers, timeout=30) as http:
        for server in servers:
            assert len(events(server)) == len(CHANGES), "each was told once"
            told = await figures(server)
            assert told["trails_broken_chains_total"] == told["trails_quarantined_chains"] == len(CHANGES)
            for agent in BUSY:
                assert (await http.get(f"{server.base_url}/v1/agents/{agent}/verify")).json()["ok"] is True


def test_sigterm_ends_it_in_the_midst_of_a_wait(start_server: StartServer) -> None:
    server = start_server(env={"TRAILS_VERIFY_RECORDS_PER_SEC": "1"})
    with server.client() as client:
        client.post("/v1/agents", json={"agent_id": "agent-1", "policy": None}).raise_for_status()
        assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert server.stop() == 0
    assert "Traceback" not in server.log
