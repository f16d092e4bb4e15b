"""Records that were posted pass every auditor's tool (cases C09, C12, C13): verify, export, show."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.http.posting import EVENTS, TRACES, event, fragment, node
from tests.support.cli import run_trails, verify
from tests.support.server import MASTER_KEY, ServerProcess

NUMBERS = {"a": 9007199254740993, "b": 9223372036854775808, "c": -int("9" * 30), "d": int("8" * 128)}


def test_c09_c12_c13_posted_records_verify_and_are_exported_to_the_last_digit(
    server: ServerProcess, tmp_path: Path
) -> None:
    deep = json.dumps(event(data="HERE")).encode().replace(b'"HERE"', b"[" * 127 + b"]" * 127)
    traces = [fragment(node(inputs=NUMBERS)), fragment(node(metadata={"timestamp": "2024-W01-1"}))]
    batch = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "k"}
    with server.client() as client:
        client.post("/v1/agents", json={"agent_id": "mailer", "policy": None}).raise_for_status()
        lines = "".join(f"{json.dumps(trace)}\n" for trace in traces)
        client.post(TRACES, content=lines, headers=batch).raise_for_status()
        json_body = {"Content-Type": "application/json"}
        client.post(EVENTS, content=deep, headers=json_body).raise_for_status()
        told = {"events": [event(occurred_at="2024-01-01T00:00:00.1234567Z", data=NUMBERS)]}
        client.post(EVENTS, json=told).raise_for_status()
        key = client.get("/v1/public-key").json()["public_key"]

    env = {
        "TRAILS_DATABASE_URL": server.database_url,
        "TRAILS_DATA_DIR": str(tmp_path / "data"),
        "TRAILS_MASTER_KEY": MASTER_KEY,
    }
    assert verify("--agent", "mailer", env=env).code == 0
    exported = tmp_path / "mailer.jsonl"
    assert run_trails("export", "mailer", "--out", exported, env=env).code == 0
    assert verify(exported, "--public-key", key).code == 0
    payloads = [json.loads(line)["payload"] for line in exported.read_bytes().splitlines()]
    assert payloads[1]["trace_tree"] == traces[0]["trace_tree"]
    assert payloads[2]["trace_tree"] == traces[1]["trace_tree"]
    assert payloads[3] == json.loads(deep)
    assert payloads[4]["occurred_at"] == "2024-01-01T00:00:00.123456Z"
    assert payloads[4]["data"] == NUMBERS
    shown = run_trails("show", "mailer", env=env)
    assert shown.code == 0, shown.err
