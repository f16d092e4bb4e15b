"""Two server processes on one database, twelve clients, 600 guarded requests on three agents.

No fork, no gap, the budgets exact, everything verified (cases C16, G11).
"""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
import httpx2

from tests.support.server import ServerProcess

AGENTS = ("one", "two", "three")
CLIENTS = 12
REQUESTS_A_CLIENT = 50
BUDGET = 150


async def client(base_url: str, token: str, number: int) -> Counter[tuple[str, str]]:
    """One client: asks ``REQUESTS_A_CLIENT`` times, round the agents; counts the answers by agent."""
    answers: Counter[tuple[str, str]] = Counter()
    async with httpx2.AsyncClient(
        base_url=base_url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as http:
        for turn in range(REQUESTS_A_CLIENT):
            agent = AGENTS[(number + turn) % len(AGENTS)]
            answer = await http.post(f"/v1/agents/{agent}/actions", json={"tool": "search", "input": [turn]})
            assert answer.status_code == 200, answer.text
            answers[agent, answer.json()["decision"]] += 1
    return answers


async def test_c16_g11_two_processes_never_fork_and_never_overspend(
    servers: list[ServerProcess], admin: asyncpg.Connection
) -> None:
    first, second = servers
    headers = {"Authorization": f"Bearer {first.operator_token}"}
    policy = {"budget": BUDGET, "scar_limit": 1_000, "tools": {"search": {"cost": 1}}}
    with httpx2.Client(base_url=first.base_url, headers=headers, timeout=30) as operator:
        for agent in AGENTS:
            operator.post("/v1/agents", json={"agent_id": agent, "policy": policy}).raise_for_status()

        results = await asyncio.gather(
            *(client(servers[n % 2].base_url, first.operator_token, n) for n in range(CLIENTS))
        )
        answers: Counter[tuple[str, str]] = sum(results, Counter())

        assert answers.total() == CLIENTS * REQUESTS_A_CLIENT
        for agent in AGENTS:
            assert answers[agent, "allowed"] == BUDGET
            for server in (first, second):
                status = httpx2.get(f"{server.base_url}/v1/agents/{agent}", headers=headers).json()
                assert (status["spent"], status["remaining"]) == (BUDGET, 0)
                assert status["termination_reason"] == "budget exhausted"
            assert operator.get(f"/v1/agents/{agent}/verify").json()["ok"] is True

    rows = await admin.fetch(
        "SELECT count(*) AS n, max(seq) + 1 AS length, count(DISTINCT prev_hash) AS links"
        " FROM trails.agent_audit_trails GROUP BY tenant_id, log_uuid"
    )
    assert len(rows) == len(AGENTS) + 1  # and the chain of administration, which tells of them
    for row in rows:
        assert row["n"] == row["length"] == row["links"]
