-- The trail and its registry, with everything that keeps them honest.
-- Runs as trails_owner inside the transaction of the migration. Frozen once released.

-- Functions are executable by everyone unless this is said.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- ------------------------------------------------------------------------------------------- tables

CREATE TABLE trails.tenants (
    tenant_id  uuid        NOT NULL,
    slug       text        COLLATE "C" NOT NULL,
    name       text        NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT tenants_slug_key UNIQUE (slug),
    CONSTRAINT tenants_slug_format CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    CONSTRAINT tenants_name_length CHECK (char_length(name) BETWEEN 1 AND 200)
);

CREATE TABLE trails.signing_keys (
    tenant_id     uuid        NOT NULL,
    key_id        text        COLLATE "C" NOT NULL,
    public_key    text        COLLATE "C" NOT NULL,
    sealed_secret bytea       NOT NULL,
    created_at    timestamptz NOT NULL,
    CONSTRAINT signing_keys_pkey PRIMARY KEY (tenant_id, key_id),
    CONSTRAINT signing_keys_key_id_format CHECK (key_id ~ '^[0-9a-f]{16}$'),
    CONSTRAINT signing_keys_public_key_format CHECK (public_key ~ '^[0-9a-f]{64}$')
);

CREATE TABLE trails.agents (
    tenant_id  uuid        NOT NULL,
    agent_id   text        COLLATE "C" NOT NULL,
    log_uuid   uuid        NOT NULL,
    guarded    boolean     NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT agents_pkey PRIMARY KEY (tenant_id, agent_id),
    CONSTRAINT agents_log_uuid_key UNIQUE (tenant_id, log_uuid),
    CONSTRAINT agents_agent_id_format CHECK (agent_id ~ '^[A-Za-z0-9_-]{1,64}$')
);

CREATE TABLE trails.agent_audit_trails (
    -- The first 63 bits of the hash: a stable identifier without a sequence.
    id              bigint      NOT NULL
        GENERATED ALWAYS AS (((('x'::text || substr(hash, 1, 16)))::bit(64) >> 1)::bigint) STORED,
    tenant_id       uuid        NOT NULL,
    agent_id        text        COLLATE "C" NOT NULL,
    log_uuid        uuid        NOT NULL,
    seq             bigint      NOT NULL,
    kind            text        COLLATE "C" NOT NULL,
    actor           text        NOT NULL,
    session_id      uuid        NOT NULL,
    created_at      timestamptz NOT NULL,
    prev_hash       text        COLLATE "C" NOT NULL,
    hash            text        COLLATE "C" NOT NULL,
    signature       text        COLLATE "C" NOT NULL,
    key_id          text        COLLATE "C" NOT NULL,
    idempotency_key text        COLLATE "C",
    -- The evidence: hash and signature are over exactly these bytes.
    signed_text     text        NOT NULL,
    -- Its mirror for SQL; nothing is ever proven from it.
    trace_data      jsonb       NOT NULL GENERATED ALWAYS AS (((signed_text)::jsonb -> 'payload'::text)) STORED,
    CONSTRAINT trail_pkey PRIMARY KEY (tenant_id, log_uuid, seq),
    CONSTRAINT trail_seq_range CHECK (seq >= 0),
    CONSTRAINT trail_kind_length CHECK (char_length(kind) BETWEEN 1 AND 64),
    CONSTRAINT trail_created_at_finite CHECK (isfinite(created_at)),
    -- translate() and not a regular expression: on 128 characters that took a third of a row's whole cost.
    CONSTRAINT trail_signature_format CHECK (
        octet_length(signature) = 128 AND translate(signature, '0123456789abcdef', '') = ''
    ),
    CONSTRAINT trail_hash CHECK (
        hash = encode(sha256(convert_to(E'lineage-audit-v1\n' || signed_text, 'UTF8')), 'hex')
    ),
    CONSTRAINT trail_mirror CHECK (
        signed_text::jsonb @> jsonb_build_object(
            'seq', seq, 'kind', kind, 'actor', actor, 'prev_hash', prev_hash,
            'timestamp', to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        )
    ),
    CONSTRAINT trail_payload_object CHECK (jsonb_typeof(trace_data) = 'object'),
    CONSTRAINT trail_session_id CHECK (
        session_id::text = lower(coalesce(trace_data ->> 'session_id', log_uuid::text))
    ),
    CONSTRAINT trail_idempotency_mirror CHECK (
        idempotency_key IS NOT DISTINCT FROM (trace_data -> 'idempotency' ->> 'key')
    ),
    CONSTRAINT trail_idempotency_format CHECK (
        octet_length(idempotency_key) = 64 AND translate(idempotency_key, '0123456789abcdef', '') = ''
    ),
    CONSTRAINT trail_action_id_length CHECK (
        kind NOT IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                     'action_rejected', 'outcome')
        OR coalesce(char_length(trace_data ->> 'action_id'), 0) <= 64
    )
);

-- ------------------------------------------------------------------------------------------ indexes

-- An Idempotency-Key counts once in a chain.
CREATE UNIQUE INDEX trail_idempotency_key ON trails.agent_audit_trails (tenant_id, log_uuid, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX trail_tenant_created_at ON trails.agent_audit_trails (tenant_id, created_at);
CREATE INDEX trail_tenant_session ON trails.agent_audit_trails (tenant_id, session_id);
-- The auditors' question: which tool calls failed?
CREATE INDEX trail_failed_tool_calls ON trails.agent_audit_trails (tenant_id, created_at)
    WHERE trace_data @> '{"trace_tree": [{"outputs": {"status": "failed"}, "node_type": "TOOL_CALL"}]}'::jsonb;
-- All records of one action; their action_id is short (trail_action_id_length).
CREATE INDEX trail_actions ON trails.agent_audit_trails (tenant_id, log_uuid, (trace_data ->> 'action_id'))
    WHERE kind IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                   'action_rejected', 'outcome');
CREATE INDEX trail_scars ON trails.agent_audit_trails (tenant_id, log_uuid, seq) WHERE kind = 'scar';

-- ------------------------------------------------------------------------------------ append-only

CREATE FUNCTION trails.refuse_change_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog
AS $$
BEGIN
    RAISE EXCEPTION '% refused: table %.% is append-only', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'TR001', CONSTRAINT = 'append_only',
              SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
              HINT = 'Records are never changed or removed; append a new one.';
END
$$;
REVOKE ALL ON FUNCTION trails.refuse_change_v1() FROM PUBLIC;

-- The statement triggers also answer when row security would hide every row or none matches (a silent
-- "UPDATE 0" is no refusal), the row triggers also where statement triggers do not fire (replication).
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.agent_audit_trails
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.agent_audit_trails
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.tenants
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.tenants
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.signing_keys
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.signing_keys
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.agents
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.agents
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();

-- ------------------------------------------------------------------------------------------- links

-- With the primary key this makes a fork or a gap impossible. No foreign key does: it is skipped under
-- session_replication_role = replica. A plan that was cached while the table was small must stay good when
-- it is large, and without statistics every index that begins with tenant_id looks the same to the planner
-- (seen: the one on sessions, at one read of the whole chain an append). So sequential scans and sorts are
-- off, and the predecessor is asked for by order, which the primary key alone has.
CREATE FUNCTION trails.check_append_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    stray record;
BEGIN
    -- One query answers for all sound appends; what is wrong with a stray row is told from what it returns.
    SELECT n.log_uuid, n.seq, n.agent_id, n.key_id,
           n.agent_id IS DISTINCT FROM c.agent_id AS unregistered,
           c.key_id IS NULL AS unknown_key
      INTO stray
      FROM new_records AS n
     CROSS JOIN LATERAL (
           SELECT CASE WHEN n.seq = 0 THEN '0000000000000000000000000000000000000000000000000000000000000000'
                  ELSE (SELECT CASE WHEN p.seq = n.seq - 1 THEN p.hash END
                          FROM trails.agent_audit_trails AS p
                         WHERE p.tenant_id = n.tenant_id AND p.log_uuid = n.log_uuid AND p.seq < n.seq
                         ORDER BY p.seq DESC LIMIT 1)
                  END AS predecessor,
                  (SELECT a.agent_id FROM trails.agents AS a
                    WHERE a.tenant_id = n.tenant_id AND a.log_uuid = n.log_uuid AND a.agent_id = n.agent_id
                  ) AS agent_id,
                  (SELECT k.key_id FROM trails.signing_keys AS k
                    WHERE k.tenant_id = n.tenant_id AND k.key_id = n.key_id) AS key_id
           OFFSET 0) AS c
     WHERE n.prev_hash IS DISTINCT FROM c.predecessor OR c.agent_id IS NULL OR c.key_id IS NULL
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF stray.unregistered THEN
        RAISE EXCEPTION 'record % names chain % of agent %, which its tenant''s registry does not hold',
                        stray.seq, stray.log_uuid, stray.agent_id
            USING ERRCODE = 'TR003', CONSTRAINT = 'trail_registry',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    IF stray.unknown_key THEN
        RAISE EXCEPTION 'record % of chain % names key %, which its tenant''s registry does not hold',
                        stray.seq, stray.log_uuid, stray.key_id
            USING ERRCODE = 'TR003', CONSTRAINT = 'trail_signing_key',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    RAISE EXCEPTION 'record % of chain % does not follow record %: prev_hash is not its hash',
                    stray.seq, stray.log_uuid, stray.seq - 1
        USING ERRCODE = 'TR002', CONSTRAINT = 'trail_link',
              SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
REVOKE ALL ON FUNCTION trails.check_append_v1() FROM PUBLIC;

CREATE TRIGGER check_append AFTER INSERT ON trails.agent_audit_trails
    REFERENCING NEW TABLE AS new_records
    FOR EACH STATEMENT EXECUTE FUNCTION trails.check_append_v1();

-- ALWAYS: they fire under session_replication_role = replica too.
ALTER TABLE trails.agent_audit_trails
    ENABLE ALWAYS TRIGGER refuse_change_statement,
    ENABLE ALWAYS TRIGGER refuse_change_row,
    ENABLE ALWAYS TRIGGER check_append;
ALTER TABLE trails.tenants
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.signing_keys
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;
ALTER TABLE trails.agents
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

-- ------------------------------------------------------------------------------------ row security

-- trails.tenants is a transaction-local setting with the ids of the tenants that the transaction is for,
-- separated by commas. Outside such a transaction it is NULL or '', and no row is visible.
ALTER TABLE trails.agent_audit_trails ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.tenants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.signing_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.agents ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

CREATE POLICY app_reads ON trails.agent_audit_trails FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.agent_audit_trails FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.signing_keys FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.signing_keys FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.agents FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.agents FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.tenants FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
-- Who knows a tenant's slug may find its id: the transaction names the slug, and sees that row alone.
CREATE POLICY app_finds_by_slug ON trails.tenants FOR SELECT TO trails_app
    USING (slug = nullif(current_setting('trails.slug', true), ''));
CREATE POLICY app_appends ON trails.tenants FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

-- ------------------------------------------------------------------------------------------- grants

REVOKE ALL ON ALL TABLES IN SCHEMA trails FROM PUBLIC;
GRANT SELECT, INSERT ON trails.agent_audit_trails, trails.tenants, trails.signing_keys, trails.agents
    TO trails_app;
GRANT SELECT ON trails.alembic_version TO trails_app;
-- No policy names the auditors yet, so they see no row.
GRANT SELECT ON trails.agent_audit_trails, trails.agents TO trails_auditor;
