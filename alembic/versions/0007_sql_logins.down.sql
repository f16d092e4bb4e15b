REVOKE SELECT (tenant_id, key_id, public_key, created_at) ON trails.signing_keys FROM trails_auditor;
DROP POLICY auditor_reads ON trails.signing_keys;
DROP POLICY auditor_reads ON trails.sendings;
DROP POLICY auditor_reads ON trails.agents;
DROP POLICY auditor_reads ON trails.agent_audit_trails;
DROP TABLE trails.sql_logins;
