-- The newest snapshot of a chain: where opening it begins. They are few, so the index costs appends nothing.
CREATE INDEX trail_snapshots ON trails.agent_audit_trails (tenant_id, log_uuid, seq) WHERE kind = 'snapshot';
