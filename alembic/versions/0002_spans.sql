-- What every trace tree has to be, sessions by time, and which spans are on record already.

-- The classic auditor's query reads trace_tree with jsonb_to_recordset, which fails for the whole table on one
-- row whose trace_tree is no array of objects. Strict, since a lax path would look into nested arrays.
ALTER TABLE trails.agent_audit_trails ADD CONSTRAINT trail_trace_tree CHECK (
    CASE WHEN jsonb_typeof(trace_data -> 'trace_tree') = 'array'
         THEN NOT jsonb_path_exists(trace_data -> 'trace_tree', 'strict $[*] ? (@.type() != "object")')
         ELSE NOT trace_data ? 'trace_tree' END
);

-- A session's first record, and whether it has a later one, are answered from the index alone.
DROP INDEX trails.trail_tenant_session;
CREATE INDEX trail_sessions ON trails.agent_audit_trails (tenant_id, session_id, created_at, log_uuid, seq);

-- Which record holds a span. An index and no evidence: what it says is checked against the signed record. Its
-- key makes an exporter's second delivery visible, whichever process it comes to.
CREATE TABLE trails.spans (
    tenant_id uuid   NOT NULL,
    trace_id  bytea  NOT NULL,
    span_id   bytea  NOT NULL,
    log_uuid  uuid   NOT NULL,
    seq       bigint NOT NULL,
    CONSTRAINT spans_pkey PRIMARY KEY (tenant_id, trace_id, span_id),
    CONSTRAINT spans_trace_id_length CHECK (octet_length(trace_id) = 16),
    CONSTRAINT spans_span_id_length CHECK (octet_length(span_id) = 8),
    CONSTRAINT spans_seq_range CHECK (seq >= 0)
);

CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.spans
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.spans
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.spans
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

ALTER TABLE trails.spans ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY app_reads ON trails.spans FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.spans FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

GRANT SELECT, INSERT ON trails.spans TO trails_app;
