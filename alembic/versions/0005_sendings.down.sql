DROP TRIGGER index_sendings ON trails.agent_audit_trails;
DROP TABLE trails.sendings;
DROP FUNCTION trails.index_sendings_v1(), trails.uuid_v1(text);
