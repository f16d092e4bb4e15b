"""Sixty real agent runs replayed through the guard over HTTP: every count equals the manifest.

The policy of each run is its own list of tool permissions. Every recorded call is requested; one that was
allowed has its recorded outcome reported. Four calls name tools that the run never had: their recorded
failure is here a denial, since the guard stops them before they run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.support.server import ServerProcess
from tests.support.shared import SHARED_DATA, files_of

CLASSIC_QUERY = """
SELECT session_id, created_at
FROM agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = 'failed';
"""

FAILED_BY_TOOL = """
SELECT x.name, count(*)
FROM agent_audit_trails,
     jsonb_to_recordset(trace_data->'trace_tree') AS x(node_type text, name text, outputs jsonb)
WHERE x.node_type = 'TOOL_CALL' AND x.outputs->>'status' = $1
GROUP BY x.name
"""


def calls_of(run: dict[str, Any]) -> list[tuple[str, Any, str | None]]:
    """The recorded calls of one run, in order: tool, arguments, error (None when it went well)."""
    errors = {
        message["tool_call_id"]: message["error"]
        for message in run["conversations"]
        if message["role"] == "tool" and message.get("error")
    }
    return [
        (call["function"], call["args"], errors.get(call["id"]))
        for message in run["conversations"]
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or []
    ]


def replay(client: httpx2.Client, agent_id: str, run: dict[str, Any]) -> Counter[str]:
    """Plays one run; counts decisions and outcomes."""
    tools = {name: {"cost": 1} for name in run["tool_permission"]}
    policy = {"budget": 1_000_000, "scar_limit": 1_000_000, "tools": tools}
    client.post("/v1/agents", json={"agent_id": agent_id, "policy": policy}).raise_for_status()
    counts: Counter[str] = Counter()
    for tool, arguments, error in calls_of(run):
        answer = client.post(f"/v1/agents/{agent_id}/actions", json={"tool": tool, "input": arguments})
        decision = answer.raise_for_status().json()
        counts[decision["decision"]] += 1
        if decision["decision"] == "allowed":
            outcome = {"status": "failure", "detail": error} if error else {"status": "success", "detail": ""}
            path = f"/v1/agents/{agent_id}/actions/{decision['action_id']}/outcome"
            client.post(path, json=outcome).raise_for_status()
            counts[outcome["status"]] += 1
    return counts


@pytest.fixture
def operator(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


async def test_real_runs_give_the_counts_of_the_manifest(
    operator: httpx2.Client, admin: asyncpg.Connection
) -> None:
    entries = files_of("drift")
    totals: Counter[str] = Counter()
    expected_failed: Counter[str] = Counter()
    for number, entry in enumerate(entries):
        run = json.loads((SHARED_DATA / entry["file"]).read_text())
        counts = replay(operator, f"run-{number}", run)
        assert counts["allowed"] + counts["denied"] == entry["expected"]["tool_calls"], entry["file"]
        assert counts["denied"] == entry["expected"]["extra"]["not_listed"], entry["file"]
        verdict = operator.get(f"/v1/agents/run-{number}/verify").json()
        assert verdict["ok"] is True, (entry["file"], verdict)
        totals += counts
        expected_failed += Counter(entry["expected"]["failed_by_tool"])

    assert totals["allowed"] + totals["denied"] == 260
    assert totals["denied"] == 4
    assert totals["failure"] + totals["denied"] == 50

    await admin.execute("SET search_path = trails")
    failed = Counter({row["name"]: row["count"] for row in await admin.fetch(FAILED_BY_TOOL, "failed")})
    denied = Counter({row["name"]: row["count"] for row in await admin.fetch(FAILED_BY_TOOL, "denied")})
    assert failed + denied == expected_failed
    assert denied.total() == 4
    assert len(await admin.fetch(CLASSIC_QUERY)) == totals["failure"] == 46
