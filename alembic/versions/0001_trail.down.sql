-- Takes everything of 0001 away again, with all records: for development and tests, never for production.
DROP TABLE trails.agent_audit_trails, trails.agents, trails.signing_keys, trails.tenants;
DROP FUNCTION trails.check_append_v1();
DROP FUNCTION trails.refuse_change_v1();
REVOKE SELECT ON trails.alembic_version FROM trails_app;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
