"""Example bodies and answers of the API description. Tests send and compare them, so they stay true."""

from __future__ import annotations

import json
from typing import Any, Final

HASH: Final = "5f0c9d3ef1f9f1be2b7f5a1e0d6f1d9a5f1c3b7a9e8d7c6b5a4f3e2d1c0b9a88"
KEY: Final = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
TOKEN: Final = "agt_7261696c730040008000000000000001.mailer.<64 hexadecimal digits>"  # noqa: S105  no token
NEXT_TOKEN: Final = "agt_7261696c730040008000000000000001.mailer.1.<64 hexadecimal digits>"  # noqa: S105  as above

POLICY: Final[dict[str, Any]] = {
    "budget": 50,
    "scar_limit": 10,
    "rate_limit": {"max_actions": 20, "window_secs": 60},
    "tools": {"search": {"cost": 1}, "send_email": {"cost": 5, "requires_approval": True, "max_calls": 3}},
    "default_rule": None,
}
NEW_AGENT: Final[dict[str, Any]] = {"agent_id": "mailer", "policy": POLICY}
STATUS: Final[dict[str, Any]] = {
    "agent_id": "mailer",
    "alive": True,
    "termination_reason": None,
    "budget": 50,
    "spent": 1,
    "remaining": 49,
    "scar_score": 1,
    "scar_limit": 10,
    "scars": [{"seq": 5, "severity": "minor", "reason": "action failed: timeout", "action_id": "act-1"}],
    "actions_allowed": 1,
    "actions_denied": 0,
    "actions_pending": 0,
    "head": {"seq": 5, "hash": HASH},
    "public_key": KEY,
    "guarded": True,
    "log_uuid": "4dd5a2dc-1a38-4c5d-8b1a-7bb6dd1f04a4",
}
CREATED: Final[dict[str, Any]] = {"agent": STATUS, "token": TOKEN}
AGENTS: Final[dict[str, Any]] = {
    "agents": [
        {"agent_id": "mailer", "state": "active", "status": STATUS},
        {"agent_id": "old", "state": "quarantined", "error": "seq 3: the hash is not that of the text"},
    ]
}
NEW_ACTION: Final[dict[str, Any]] = {"tool": "search", "input": {"query": "rate of exchange"}, "cost": 1}
ALLOWED: Final[dict[str, Any]] = {
    "decision": "allowed",
    "action_id": "act-1",
    "cost": 1,
    "remaining": 49,
}
ACTION: Final[dict[str, Any]] = {
    "action_id": "act-1",
    "tool": "search",
    "input": {"query": "rate of exchange"},
    "cost": 1,
    "status": "allowed",
    "outcome": None,
}
PENDING: Final[dict[str, Any]] = {
    "pending": [
        {
            "requested_at": "2026-09-30T08:27:35.423031Z",
            "seq": 6,
            "action": {
                "action_id": "act-2",
                "tool": "send_email",
                "input": {"to": "a@example.org"},
                "cost": 5,
            },
        }
    ]
}
APPROVALS: Final[dict[str, Any]] = {
    "approvals": [
        {
            "agent_id": "mailer",
            **PENDING["pending"][0],
            "requested_by": ["mailer"],
        }
    ],
    "quarantined": [],
    "next": None,
}
APPROVAL: Final[dict[str, Any]] = {"approver": "Ada", "note": "checked the address"}
REJECTION: Final[dict[str, Any]] = {"approver": "Ada", "reason": "wrong address", "scar": "minor"}
NEW_CLAIM: Final[dict[str, Any]] = {"tool": "search", "input": {"query": "rate of exchange"}}
CLAIM: Final[dict[str, Any]] = {
    "claimed": True,
    "action_id": "act-1",
    "tool": "search",
    "input": {"query": "rate of exchange"},
    "cost": 1,
}
OUTCOME: Final[dict[str, Any]] = {"status": "success", "detail": "3 results"}
NEW_SCAR: Final[dict[str, Any]] = {"severity": "minor", "reason": "rude answer", "action_id": "act-1"}
TERMINATION: Final[dict[str, Any]] = {"reason": "project ended", "by": "Ada"}
NEW_TRACE: Final[dict[str, Any]] = {
    "session_id": "0b8f7c1e-6a0b-4a1f-9d3c-5e7a9b1d3f50",
    "total_nodes": 2,
    "trace_tree": [
        {
            "node_id": "a1a11f8e-1c5b-4d8e-8f59-3f1f0c7b9d01",
            "parent_id": None,
            "node_type": "PLANNING",
            "name": "plan",
            "thought_process": "the rate is needed first",
        },
        {
            "node_id": "a1a11f8e-1c5b-4d8e-8f59-3f1f0c7b9d02",
            "parent_id": "a1a11f8e-1c5b-4d8e-8f59-3f1f0c7b9d01",
            "node_type": "TOOL_CALL",
            "name": "search",
            "inputs": {"query": "rate of exchange"},
            "outputs": {"status": "failed", "error": "timeout"},
            "metadata": {"timestamp": "2026-09-30T08:27:35.423031Z", "duration_ms": 30000},
        },
    ],
}
TRACE_RECEIPT: Final[dict[str, Any]] = {
    "agent_id": "mailer",
    "session_id": "0b8f7c1e-6a0b-4a1f-9d3c-5e7a9b1d3f50",
    "nodes": 2,
    "seq": 7,
    "hash": HASH,
    "timestamp": "2026-09-30T08:28:05.517204Z",
}
NEW_EVENT: Final[dict[str, Any]] = {
    "type": "deployed",
    "data": {"version": "2.4.1"},
    "occurred_at": "2026-09-30T10:27:35+02:00",
}
EVENT_RECEIPT: Final[dict[str, Any]] = {
    "agent_id": "mailer",
    "type": "deployed",
    "seq": 8,
    "hash": HASH,
    "timestamp": "2026-09-30T08:28:05.517204Z",
    "clock_skewed": False,
}
REFUSED_LINE: Final[dict[str, Any]] = {
    "status": 400,
    "code": "bad_request",
    "error": "session_id: must be a UUID such as 123e4567-e89b-12d3-a456-426614174000",
    "field": "session_id",
}
LOG: Final[dict[str, Any]] = {
    "head": {"seq": 5, "hash": HASH},
    "records": [
        {
            "actor": "operator",
            "kind": "terminated",
            "payload": {"by": "Ada", "reason": "project ended"},
            "prev_hash": HASH,
            "seq": 6,
            "timestamp": "2026-09-30T08:27:35.423031Z",
            "hash": HASH,
            "signature": "ab" * 64,
        }
    ],
}
VERIFICATION: Final[dict[str, Any]] = {
    "ok": True,
    "records": 6,
    "public_key": KEY,
    "head": {"seq": 5, "hash": HASH},
}
SESSION_ID: Final = "7f3c1b52-5d0e-4c59-9d0a-6a3f7f5f2a10"
SESSIONS: Final[dict[str, Any]] = {
    "sessions": [
        {
            "session_id": SESSION_ID,
            "agents": ["mailer", "planner"],
            "records": 3,
            "nodes": 2,
            "tool_calls": 1,
            "failed_tool_calls": 1,
            "first_recorded_at": "2026-09-30T08:27:35.423031Z",
            "last_recorded_at": "2026-09-30T08:27:41.008215Z",
        }
    ],
    "next": f"2026-09-30T08:27:35.423031Z,{SESSION_ID}",
}
SESSION: Final[dict[str, Any]] = {
    "session_id": SESSION_ID,
    "agents": ["mailer"],
    "records": 1,
    "total_nodes": 1,
    "depth": 1,
    "roots": 1,
    "orphans": 0,
    "nodes": [
        {
            "node_id": "0e0b7f6c-8f0e-4a53-8d7e-1f6a2b3c4d5e",
            "parent_id": None,
            "node_type": "TOOL_CALL",
            "name": "search",
            "inputs": {"query": "rate of exchange"},
            "thought_process": None,
            "outputs": {"status": "failed", "error": "timeout"},
            "metadata": {"timestamp": "2026-09-30T08:27:35.400000Z"},
            "depth": 1,
            "orphan": False,
            "cyclic": False,
            "sendings": 1,
            "conflict": False,
            "recorded_at": "2026-09-30T08:27:35.423031Z",
            "record": {"agent_id": "mailer", "seq": 2, "hash": HASH},
        }
    ],
    "tree": [
        {
            "node_id": "0e0b7f6c-8f0e-4a53-8d7e-1f6a2b3c4d5e",
            "name": "search",
            "node_type": "TOOL_CALL",
            "status": "failed",
            "children": [],
        }
    ],
    "unverified": [],
    "unverified_records": 0,
    "next": None,
}
SPAN_EXPORT: Final[dict[str, Any]] = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "mailer"}}]},
            "scopeSpans": [
                {
                    "scope": {"name": "my-agent"},
                    "spans": [
                        {
                            "traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": "eee19b7ec3c1b174",
                            "name": "execute_tool search",
                            "kind": 1,
                            "startTimeUnixNano": "1791016055000000000",
                            "endTimeUnixNano": "1791016055250000000",
                            "attributes": [
                                {
                                    "key": "gen_ai.operation.name",
                                    "value": {"stringValue": "execute_tool"},
                                },
                                {"key": "gen_ai.tool.name", "value": {"stringValue": "search"}},
                            ],
                            "status": {"code": 2, "message": "timeout"},
                        }
                    ],
                }
            ],
        }
    ]
}
SPAN_EXPORT_ANSWER: Final[dict[str, Any]] = {
    "partialSuccess": {
        "rejectedSpans": "1",
        "errorMessage": "span 5b8efff798038103d269b633813fc60c/eee19b7e 'search': spanId: must be 8 bytes",
    }
}
PUBLIC_KEY: Final[dict[str, Any]] = {
    "public_key": KEY,
    "algorithm": "ed25519",
    "keys": [
        {
            "key_id": "21fe31dfa154a261",
            "public_key": KEY,
            "created_at": "2026-07-01T12:00:00.000000Z",
            "retired": False,
        }
    ],
}
METRICS: Final = """\
# HELP trails_requests_total Requests answered.
# TYPE trails_requests_total counter
trails_requests_total{method="POST",route="/v1/agents/{agent_id}/actions",status="2xx"} 3502.0
"""
OK: Final[dict[str, Any]] = {"ok": True}
EXPORT: Final = """\
{"export":{"complete_chains":true,"filter":{"agents":["mailer"],"since":null,"until":null,"view":null}}}
{"actor":"operator","kind":"genesis","payload":{},"prev_hash":"00","seq":0,"hash":"9f2c","signature":"41d0"}
{"chain":{"agent_id":"mailer","first_seq":0,"head_hash":"9f2c","last_seq":0,"records":1}}
{"form":"lineage-export-v1","public_key":"03a1","trailer":{"complete":true,"rows":1},"hash":"5b1e","signature":"77c2"}
"""
EXPORT_CSV: Final = "agent_id,seq,kind,export_trailer\r\nmailer,0,genesis,\r\n"


def lines(*documents: dict[str, Any]) -> str:
    """Documents one a line."""
    return "".join(f"{json.dumps(document)}\n" for document in documents)


NEW_API_KEY: Final[dict[str, Any]] = {
    "role": "writer",
    "name": "ingest",
    "expires_at": "2030-01-01T00:00:00Z",
}
API_KEY: Final[dict[str, Any]] = {
    "key_id": "9f86d081884c7d65",
    "role": "writer",
    "agent_id": None,
    "name": "ingest",
    "created_at": "2026-11-30T09:00:00.000000Z",
    "expires_at": "2030-01-01T00:00:00.000000Z",
}
KEY_TOKEN: Final = "trk_7261696c730040008000000000000001.9f86d081884c7d65.<43 characters>.<16 digits>"  # noqa: S105
ISSUED_API_KEY: Final[dict[str, Any]] = {"key": API_KEY, "token": KEY_TOKEN}
NEW_REDACTION_RULES: Final[dict[str, Any]] = {
    "patterns": ["secret_members", "bearer_tokens", "cloud_keys", "private_keys", "url_passwords"],
    "paths": ["$..ssn"],
}
REDACTION_RULES: Final[dict[str, Any]] = {
    "version": 1,
    **NEW_REDACTION_RULES,
    "available": [{"name": "private_keys", "meaning": "private keys in PEM form, whole or cut off"}],
}
_ENTRY: Final[dict[str, Any]] = {**API_KEY, "revoked_at": None, "last_used_at": "2026-11-30T09:10:00.000000Z"}
API_KEYS: Final[dict[str, Any]] = {"keys": [_ENTRY]}
REVOKED_API_KEY: Final[dict[str, Any]] = {**_ENTRY, "revoked_at": "2026-11-30T10:00:00.000000Z"}
NEW_TENANT: Final[dict[str, Any]] = {"slug": "acme", "name": "Acme", "operator": "Ada"}
TENANT: Final[dict[str, Any]] = {
    "tenant_id": "3f1c9d3e-f1f9-41be-8b7f-5a1e0d6f1d9a",
    "slug": "acme",
    "name": "Acme",
    "created_at": "2026-11-30T09:00:00.000000Z",
}
CREATED_TENANT: Final[dict[str, Any]] = {
    "tenant": TENANT,
    "key": {**API_KEY, "role": "operator", "name": "Ada", "expires_at": None},
    "token": KEY_TOKEN,
}
TENANTS: Final[dict[str, Any]] = {"tenants": [{**TENANT, "suspended": False}]}
REASON: Final[dict[str, Any]] = {"reason": "contract ended"}

FEED_EVENT: Final[dict[str, Any]] = {
    "specversion": "1.0",
    "id": "4dd5a2dc-1a38-4c5d-8b1a-7bb6dd1f04a4/7",
    "source": "urn:lineage-trails:tenant:7261696c-7300-4000-8000-000000000001",
    "type": "trails.record.action_denied",
    "subject": "mailer",
    "time": "2026-11-30T12:00:00.000000Z",
    "datacontenttype": "application/json",
    "data": {
        "actor": "mailer",
        "kind": "action_denied",
        "payload": {"action_id": "act-3", "reason": {"code": "tool_not_allowed", "tool": "rm"}},
        "prev_hash": KEY,
        "seq": 7,
        "timestamp": "2026-11-30T12:00:00.000000Z",
        "hash": HASH,
        "signature": HASH + HASH,
    },
}
FEED_PAGE: Final[dict[str, Any]] = {
    "events": [FEED_EVENT],
    "next": "AbT0-3kQm1yfC0eX2vJw7AGTk88AAAAAB1vNFgGTzQPpzQPpkMDAwA",
    "more": False,
}
FEED_STREAM: Final = f"retry: 2741\n\nid: AbT0-3kQm1yfC0eX2vJw7A\ndata: {json.dumps(FEED_EVENT)}\n\n"

WEBHOOK_ID: Final = "9f86d081884c7d65"
NEW_WEBHOOK: Final[dict[str, Any]] = {
    "name": "Security desk",
    "url": "https://siem.example.com/lineage",
    "kinds": ["action_denied", "terminated"],
}
WEBHOOK: Final[dict[str, Any]] = {
    "webhook_id": WEBHOOK_ID,
    "name": "Security desk",
    "target": "https://siem.example.com",
    "kinds": ["action_denied", "terminated"],
    "agents": None,
    "enabled": True,
    "created_at": "2026-11-30T12:00:00.000000Z",
    "delivered": 0,
    "failures": 0,
    "failing_since": None,
    "problem": None,
}
CREATED_WEBHOOK: Final[dict[str, Any]] = {
    "webhook": WEBHOOK,
    "secret": "whsec_ANq/KqoGd1TZQsPzBOmF1zmN1Q5l0K1wYyaTkI3J0mE=",
}
WEBHOOKS: Final[dict[str, Any]] = {"webhooks": [WEBHOOK]}
DELETED_WEBHOOK: Final[dict[str, Any]] = {"deleted": True}
WEBHOOK_REASON: Final[dict[str, Any]] = {"reason": "the receiver is back"}
WEBHOOK_TRIED: Final[dict[str, Any]] = {"delivered": False, "status": 503, "problem": "it answered 503"}
