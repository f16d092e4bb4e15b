"""What is posted in these tests, and what of it is on record."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from tests.integration.http.client import Client, Reply

SESSION = "0b8f7c1e-6a0b-4a1f-9d3c-5e7a9b1d3f50"
TRACES = "/v1/agents/mailer/traces"
EVENTS = "/v1/agents/mailer/events"


def node_id(number: int) -> str:
    return str(UUID(int=(0xA1A1 << 100) + number))


def node(number: int = 1, parent: int | None = None, **members: Any) -> dict[str, Any]:
    """A node with everything, its own id and that of its parent made from numbers."""
    made = {
        "node_id": node_id(number),
        "parent_id": None if parent is None else node_id(parent),
        "node_type": "TOOL_CALL",
        "name": "search",
        "inputs": {"q": "ü"},
        "thought_process": "so be it",
        "outputs": {"status": "success"},
        "metadata": {"timestamp": "2026-01-01T00:00:00.000000Z", "duration_ms": 1.5},
    }
    return {**made, **members}


def fragment(*nodes: dict[str, Any], **members: Any) -> dict[str, Any]:
    nodes = nodes or (node(),)
    return {"session_id": SESSION, "total_nodes": len(nodes), "trace_tree": [*nodes], **members}


def event(**members: Any) -> dict[str, Any]:
    return {"type": "deployed", "data": {"version": "2"}, **members}


def post_lines(
    client: Client, path: str, lines: Iterable[Any], media_type: str = "application/x-ndjson", **headers: str
) -> Reply:
    """Posts a batch; a line that is no bytes is written as JSON."""
    raw = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return client.post_raw(path, raw, Content_Type=media_type, **headers)


def results(reply: Reply) -> list[dict[str, Any]]:
    """The lines of a batch's answer."""
    assert reply.status == 200, reply.raw
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    assert reply.raw.endswith(b"\n")
    return [json.loads(line) for line in reply.raw.splitlines()]


def recorded(operator: Client, kind: str) -> list[dict[str, Any]]:
    """Records of a kind in the agent's log, whose chain verifies."""
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True
    records = operator.get("/v1/agents/mailer/log?limit=5000").json["records"]
    return [record for record in records if record["kind"] == kind]


def head(operator: Client) -> Any:
    return operator.get("/v1/agents/mailer").json["head"]
