DROP POLICY app_lists ON trails.tenants;
DROP TABLE trails.tenant_suspensions;
DROP TABLE trails.api_key_uses;
DROP TABLE trails.api_key_revocations;
DROP TABLE trails.api_keys;
