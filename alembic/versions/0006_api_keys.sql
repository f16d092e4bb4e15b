-- API keys, what became of them, and tenants that are suspended. Nothing here is changed or removed: a
-- revocation, a suspension and its end are rows of their own.

CREATE TABLE trails.api_keys (
    tenant_id   uuid        NOT NULL,
    key_id      text        COLLATE "C" NOT NULL,
    role        text        COLLATE "C" NOT NULL,
    agent_id    text        COLLATE "C",
    name        text        NOT NULL,
    secret_hash bytea       NOT NULL,
    -- HMAC over all the other columns: a row that was written by SQL is no key.
    seal        bytea       NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    CONSTRAINT api_keys_pkey PRIMARY KEY (tenant_id, key_id),
    CONSTRAINT api_keys_key_id_format CHECK (key_id ~ '^[0-9a-f]{16}$'),
    CONSTRAINT api_keys_role CHECK (role IN ('operator', 'auditor', 'writer', 'agent')),
    CONSTRAINT api_keys_agent CHECK ((role = 'agent') = (agent_id IS NOT NULL)),
    CONSTRAINT api_keys_agent_id_format CHECK (agent_id ~ '^[A-Za-z0-9_-]{1,64}$'),
    CONSTRAINT api_keys_name_length CHECK (char_length(name) BETWEEN 1 AND 64),
    CONSTRAINT api_keys_secret_hash_length CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT api_keys_seal_length CHECK (octet_length(seal) = 32)
);

CREATE TABLE trails.api_key_revocations (
    tenant_id  uuid        NOT NULL,
    key_id     text        COLLATE "C" NOT NULL,
    revoked_at timestamptz NOT NULL,
    CONSTRAINT api_key_revocations_pkey PRIMARY KEY (tenant_id, key_id)
);

-- When a key was used, to ten minutes: a convenience and no evidence. Rows are added here too and never
-- changed, so that the service needs no privilege to change anything.
CREATE TABLE trails.api_key_uses (
    tenant_id uuid        NOT NULL,
    key_id    text        COLLATE "C" NOT NULL,
    used_at   timestamptz NOT NULL,
    CONSTRAINT api_key_uses_pkey PRIMARY KEY (tenant_id, key_id, used_at)
);

-- The newest row says whether the tenant is suspended; without one it is not.
CREATE TABLE trails.tenant_suspensions (
    tenant_id  uuid        NOT NULL,
    changed_at timestamptz NOT NULL,
    suspended  boolean     NOT NULL,
    CONSTRAINT tenant_suspensions_pkey PRIMARY KEY (tenant_id, changed_at)
);

CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.api_keys
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.api_key_revocations
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.api_key_revocations
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.api_key_uses
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.api_key_uses
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.tenant_suspensions
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.tenant_suspensions
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.api_keys
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.api_key_revocations
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.api_key_uses
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.tenant_suspensions
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

ALTER TABLE trails.api_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.api_key_revocations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.api_key_uses ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.tenant_suspensions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

CREATE POLICY app_reads ON trails.api_keys FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.api_keys FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.api_key_revocations FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.api_key_revocations FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.api_key_uses FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.api_key_uses FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.tenant_suspensions FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.tenant_suspensions FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

-- Whoever creates tenants may list them: a transaction that says so sees who there is, and nothing of theirs.
CREATE POLICY app_lists ON trails.tenants FOR SELECT TO trails_app
    USING (current_setting('trails.all_tenants', true) = 'listed');

GRANT SELECT, INSERT ON trails.api_keys, trails.api_key_revocations, trails.api_key_uses,
    trails.tenant_suspensions TO trails_app;
