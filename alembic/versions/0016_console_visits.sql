-- Who is signed in to the console. Nothing here is changed or removed: the end of a visit is a row of its own, so that
-- a copied cookie is worth nothing once its visit has ended, on every server process. Neither a key nor what the
-- cookie holds stands here: a visit is found by the SHA-256 of 256 random bits.
CREATE TABLE trails.console_visits (
    tenant_id  uuid        NOT NULL,
    visit_hash bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT console_visits_pkey PRIMARY KEY (tenant_id, visit_hash),
    CONSTRAINT console_visits_hash_length CHECK (octet_length(visit_hash) = 32)
);

CREATE TABLE trails.console_visit_ends (
    tenant_id  uuid        NOT NULL,
    visit_hash bytea       NOT NULL,
    ended_at   timestamptz NOT NULL,
    CONSTRAINT console_visit_ends_pkey PRIMARY KEY (tenant_id, visit_hash)
);

CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.console_visits
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.console_visits
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.console_visit_ends
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.console_visit_ends
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.console_visits
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.console_visit_ends
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

ALTER TABLE trails.console_visits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.console_visit_ends ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY app_reads ON trails.console_visits FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.console_visits FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.console_visit_ends FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.console_visit_ends FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
GRANT SELECT, INSERT ON trails.console_visits, trails.console_visit_ends TO trails_app;

COMMENT ON TABLE trails.console_visits IS
    'Who signed in to the console: hashes of visits, neither keys nor cookies.';
COMMENT ON TABLE trails.console_visit_ends IS
    'Visits to the console that were ended by signing out.';
