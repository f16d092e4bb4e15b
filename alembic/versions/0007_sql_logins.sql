-- SQL logins of auditors: which tenant one sees follows from who it is, never from a setting, which a SQL user
-- could change. A login without a row here sees nothing.
CREATE TABLE trails.sql_logins (
    login      text        COLLATE "C" NOT NULL,
    tenant_id  uuid        NOT NULL,
    name       text        NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT sql_logins_pkey PRIMARY KEY (login),
    CONSTRAINT sql_logins_login_format CHECK (login ~ '^[a-z][a-z0-9_]{0,62}$'),
    CONSTRAINT sql_logins_name_length CHECK (char_length(name) BETWEEN 1 AND 64)
);

CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.sql_logins
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.sql_logins
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.sql_logins
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

ALTER TABLE trails.sql_logins ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
-- The administrator who makes logins works as the owner of the tables; the service only lists its tenant's.
CREATE POLICY owner_registers ON trails.sql_logins TO trails_owner USING (true) WITH CHECK (true);
CREATE POLICY app_reads ON trails.sql_logins FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY login_finds_itself ON trails.sql_logins FOR SELECT TO trails_auditor
    USING (login = current_user::text);

-- The sub-select is asked once a query, not once a row.
CREATE POLICY auditor_reads ON trails.agent_audit_trails FOR SELECT TO trails_auditor
    USING (tenant_id = (SELECT l.tenant_id FROM trails.sql_logins AS l WHERE l.login = current_user::text));
CREATE POLICY auditor_reads ON trails.agents FOR SELECT TO trails_auditor
    USING (tenant_id = (SELECT l.tenant_id FROM trails.sql_logins AS l WHERE l.login = current_user::text));
CREATE POLICY auditor_reads ON trails.sendings FOR SELECT TO trails_auditor
    USING (tenant_id = (SELECT l.tenant_id FROM trails.sql_logins AS l WHERE l.login = current_user::text));
CREATE POLICY auditor_reads ON trails.signing_keys FOR SELECT TO trails_auditor
    USING (tenant_id = (SELECT l.tenant_id FROM trails.sql_logins AS l WHERE l.login = current_user::text));

GRANT SELECT ON trails.sql_logins, trails.sendings TO trails_auditor;
-- Not the tenants: EXPLAIN tells how many rows of an index on slugs it passed over.
-- What verifies, and nothing that signs.
GRANT SELECT (tenant_id, key_id, public_key, created_at) ON trails.signing_keys TO trails_auditor;
GRANT SELECT ON trails.sql_logins TO trails_app;
