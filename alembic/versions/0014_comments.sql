-- What tables are for, and what the columns mean that auditors read: \d+ shows it.

COMMENT ON TABLE trails.agent_audit_trails IS
    'The trail: one row a record, append-only; signed_text is the evidence.';
COMMENT ON TABLE trails.agents IS
    'The registry of chains, one row each; the chain of administrative acts is one, too.';
COMMENT ON TABLE trails.api_key_revocations IS
    'API keys that are none any more.';
COMMENT ON TABLE trails.api_key_uses IS
    'When API keys were used, to ten minutes.';
COMMENT ON TABLE trails.api_keys IS
    'API keys; a seal over each row tells one that was written by SQL.';
COMMENT ON TABLE trails.sendings IS
    'Which records of a session hold a node: an index and no evidence.';
COMMENT ON TABLE trails.signing_keys IS
    'The tenants'' Ed25519 keys; the secret half is sealed, or kept elsewhere.';
COMMENT ON TABLE trails.spans IS
    'Which record of a chain holds a span of OpenTelemetry: an index and no evidence.';
COMMENT ON TABLE trails.sql_logins IS
    'Which tenant an auditor''s SQL login sees.';
COMMENT ON TABLE trails.tenant_suspensions IS
    'The newest row of a tenant says whether it is suspended.';
COMMENT ON TABLE trails.waiting_actions IS
    'Which actions wait for a person: an index and no evidence, kept by a trigger.';
COMMENT ON TABLE trails.tenants IS
    'Who shares this database; no tenant sees another''s rows.';
COMMENT ON COLUMN trails.agent_audit_trails.id IS
    'Identifies the row for ever, made of its hash; tells no order.';
COMMENT ON COLUMN trails.agent_audit_trails.tenant_id IS
    'Whose row it is.';
COMMENT ON COLUMN trails.agent_audit_trails.agent_id IS
    'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.agent_audit_trails.log_uuid IS
    'The chain.';
COMMENT ON COLUMN trails.agent_audit_trails.seq IS
    'Place in the chain: 0, 1, 2 and so on, without gaps.';
COMMENT ON COLUMN trails.agent_audit_trails.kind IS
    'What happened.';
COMMENT ON COLUMN trails.agent_audit_trails.actor IS
    'Who caused it: the agent, or the API key that was used.';
COMMENT ON COLUMN trails.agent_audit_trails.session_id IS
    'The session it belongs to; the chain''s log_uuid where none was given.';
COMMENT ON COLUMN trails.agent_audit_trails.created_at IS
    'The record''s signed time, never before that of the record before it.';
COMMENT ON COLUMN trails.agent_audit_trails.prev_hash IS
    'The hash of the record before it; 64 zeros in the first.';
COMMENT ON COLUMN trails.agent_audit_trails.hash IS
    'SHA-256 of the line lineage-audit-v1 and the signed text.';
COMMENT ON COLUMN trails.agent_audit_trails.signature IS
    'Ed25519 over the 32 bytes of the hash.';
COMMENT ON COLUMN trails.agent_audit_trails.key_id IS
    'Which key signed it.';
COMMENT ON COLUMN trails.agent_audit_trails.idempotency_key IS
    'Digest of the client''s Idempotency-Key, where one was given.';
COMMENT ON COLUMN trails.agent_audit_trails.signed_text IS
    'The evidence: exactly the text that was signed.';
COMMENT ON COLUMN trails.agent_audit_trails.trace_data IS
    'The payload of the signed text, for SQL; nothing is proven from it.';
COMMENT ON COLUMN trails.agents.tenant_id IS
    'Whose agent it is.';
COMMENT ON COLUMN trails.agents.agent_id IS
    'The agent, or _administration.';
COMMENT ON COLUMN trails.agents.log_uuid IS
    'Its chain.';
COMMENT ON COLUMN trails.agents.guarded IS
    'Whether it has a policy; false: traces and events only.';
COMMENT ON COLUMN trails.agents.created_at IS
    'When its chain began.';
