DROP TRIGGER keep_waiting ON trails.agent_audit_trails;
DROP TABLE trails.waiting_actions;
DROP FUNCTION trails.keep_waiting_v1();
DROP FUNCTION trails.check_waiting_v1();
DROP FUNCTION trails.is_decided_v1(uuid, uuid, text);
