"""Observed agents for the rows that post traces."""

from __future__ import annotations

import json
import urllib.request

from tests.bench.stage import OPERATOR_TOKEN


def observe(port: int, agent_id: str) -> None:
    """Creates an agent without a policy."""
    body = json.dumps({"agent_id": agent_id, "policy": None}).encode()
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/agents", data=body, headers=headers)
    urllib.request.urlopen(request).close()  # noqa: S310  our own server
