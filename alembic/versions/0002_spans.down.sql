DROP TABLE trails.spans;
DROP INDEX trails.trail_sessions;
CREATE INDEX trail_tenant_session ON trails.agent_audit_trails (tenant_id, session_id);
ALTER TABLE trails.agent_audit_trails DROP CONSTRAINT trail_trace_tree;
