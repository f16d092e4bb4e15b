"""What tables are for, and what the columns mean that auditors read: the database's own comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABOUT: Final[Mapping[str, str]] = {
    "agent_audit_trails": "The trail: one row a record, append-only; signed_text is the evidence.",
    "agents": "The registry of chains, one row each; the chain of administrative acts is one, too.",
    "api_key_revocations": "API keys that are none any more.",
    "api_key_uses": "When API keys were used, to ten minutes.",
    "api_keys": "API keys; a seal over each row tells one that was written by SQL.",
    "console_visit_ends": "Visits to the console that were ended by signing out.",
    "console_visits": "Who signed in to the console: hashes of visits, neither keys nor cookies.",
    "sendings": "Which records of a session hold a node: an index and no evidence.",
    "signing_keys": "The tenants' Ed25519 keys; the secret half is sealed, or kept elsewhere.",
    "spans": "Which record of a chain holds a span of OpenTelemetry: an index and no evidence.",
    "sql_logins": "Which tenant an auditor's SQL login sees.",
    "tenant_suspensions": "The newest row of a tenant says whether it is suspended.",
    "waiting_actions": "Which actions wait for a person: an index and no evidence, kept by a trigger.",
    "tenants": "Who shares this database; no tenant sees another's rows.",
    "webhook_progress": "How far each webhook is: no evidence; the one table whose rows the service changes.",
    "webhooks": "Where records are told to; address and secret are sealed with what they belong to.",
}
"""What each table is for."""

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "agent_audit_trails": {
        "id": "Identifies the row for ever, made of its hash; tells no order.",
        "tenant_id": "Whose row it is.",
        "agent_id": "The agent whose chain holds the record.",
        "log_uuid": "The chain.",
        "seq": "Place in the chain: 0, 1, 2 and so on, without gaps.",
        "kind": "What happened.",
        "actor": "Who caused it: the agent, or the API key that was used.",
        "session_id": "The session it belongs to; the chain's log_uuid where none was given.",
        "created_at": "The record's signed time, never before that of the record before it.",
        "prev_hash": "The hash of the record before it; 64 zeros in the first.",
        "hash": "SHA-256 of the line lineage-audit-v1 and the signed text.",
        "signature": "Ed25519 over the 32 bytes of the hash.",
        "key_id": "Which key signed it.",
        "idempotency_key": "Digest of the client's Idempotency-Key, where one was given.",
        "signed_text": "The evidence: exactly the text that was signed.",
        "trace_data": "The payload of the signed text, for SQL; nothing is proven from it.",
    },
    "agents": {
        "tenant_id": "Whose agent it is.",
        "agent_id": "The agent, or _administration.",
        "log_uuid": "Its chain.",
        "guarded": "Whether it has a policy; false: traces and events only.",
        "created_at": "When its chain began.",
    },
}
"""What the columns mean of the tables that auditors' logins read."""
