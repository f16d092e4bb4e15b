"""Guarded requests (two signed records each, durable) against one plain INSERT of the same JSON."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from tests.bench import load
from tests.bench.rows import Row, interleaved
from tests.bench.stage import OPERATOR_TOKEN, served, service
from tests.support.postgres import Database

AGENTS = 64
TURNS = 40
SINGLE_TURNS = 600
ROUNDS = 5
BODY = json.dumps({"tool": "search", "input": {"q": "refund policy", "top": 5}, "cost": 2}).encode()
POLICY = {"budget": 10**15, "scar_limit": 10, "tools": {"search": {"cost": 1}}}


def rows(database: Database) -> list[Row]:
    """Both guard rows: 64 agents at once, and one agent's requests one after another."""
    floor_env = {"TRAILS_BENCH_FLOOR_URL": database.admin_url}
    with service(database) as ours, served("tests.bench.floor:app", floor_env, "/") as floor:
        for number in range(AGENTS):
            _create(ours, f"bench-{number}")
        many = [
            load.post(f"/v1/agents/bench-{number}/actions", BODY, OPERATOR_TOKEN) for number in range(AGENTS)
        ]
        return [
            _row("guard, 64 agents at once", ours, floor, many, TURNS, at_least=0.9, aim=1.3),
            _row("guard, one after another", ours, floor, many[:1], SINGLE_TURNS, at_least=0.6, aim=0.9),
        ]


def _row(
    name: str, ours: int, floor: int, requests: list[bytes], turns: int, *, at_least: float, aim: float
) -> Row:
    def measure(port: int) -> float:
        return asyncio.run(load.rate("127.0.0.1", port, requests, turns))

    measure(ours), measure(floor)  # warm both up
    return interleaved(
        name,
        "requests/s",
        ours=lambda: measure(ours),
        floor=lambda: measure(floor),
        rounds=ROUNDS,
        at_least=at_least,
        aim=aim,
    )


def _create(port: int, agent_id: str) -> None:
    body = json.dumps({"agent_id": agent_id, "policy": POLICY}).encode()
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/agents", data=body, headers=headers)
    urllib.request.urlopen(request).close()  # noqa: S310  our own server
