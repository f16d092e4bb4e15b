-- Ten CHECKs of the trail become one, and a statement for few records costs less. PostgreSQL reads the expression of
-- each CHECK anew for every statement, however few rows that has, and it kept one agent waiting who asks one thing
-- after another. Measured, CPU µs of a statement of the guard's two records: 431 instead of 499, a third of it by the
-- look that index_sendings now takes first.
--
-- What is refused is the same, and an error still names the rule by itself, as its constraint. As in mirrors_v1,
-- everything is named with its schema: whoever inserts chooses the search path.
CREATE FUNCTION trails.well_formed_v1(seq bigint, kind text, created_at timestamptz, signature text,
                                      session_id uuid, log_uuid uuid, idempotency_key text, trace_data jsonb)
    RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    key_in_text constant text := trace_data OPERATOR(pg_catalog.->) 'idempotency' OPERATOR(pg_catalog.->>) 'key';
    -- One expression: each further one would cost a row nearly as much as what it asks.
    broken constant text := CASE
        WHEN pg_catalog.jsonb_typeof(trace_data) OPERATOR(pg_catalog.<>) 'object' THEN 'trail_payload_object'
        WHEN seq OPERATOR(pg_catalog.<) 0 THEN 'trail_seq_range'
        WHEN pg_catalog.char_length(kind) OPERATOR(pg_catalog.<) 1
             OR pg_catalog.char_length(kind) OPERATOR(pg_catalog.>) 64 THEN 'trail_kind_length'
        -- An infinite time reads as NULL in the mirror, which a text with "timestamp": null would equal.
        WHEN NOT pg_catalog.isfinite(created_at) THEN 'trail_created_at_finite'
        -- Not by a regular expression: on 128 characters that took a third of a row's whole cost.
        WHEN pg_catalog.octet_length(signature) OPERATOR(pg_catalog.<>) 128
             OR pg_catalog.encode(pg_catalog.decode(signature, 'hex'), 'hex') OPERATOR(pg_catalog.<>) signature
            THEN 'trail_signature_format'
        WHEN pg_catalog.text(session_id) OPERATOR(pg_catalog.<>) pg_catalog.lower(COALESCE(
                 trace_data OPERATOR(pg_catalog.->>) 'session_id', pg_catalog.text(log_uuid)))
            THEN 'trail_session_id'
        WHEN (idempotency_key IS NULL) OPERATOR(pg_catalog.<>) (key_in_text IS NULL)
             OR idempotency_key OPERATOR(pg_catalog.<>) key_in_text THEN 'trail_idempotency_mirror'
        WHEN pg_catalog.octet_length(idempotency_key) OPERATOR(pg_catalog.<>) 64
             OR pg_catalog.translate(idempotency_key, '0123456789abcdef', '') OPERATOR(pg_catalog.<>) ''
            THEN 'trail_idempotency_format'
        -- A btree cannot hold an entry of 2.7 kB or more: refused by name, not with "index row size".
        WHEN kind OPERATOR(pg_catalog.=) ANY (ARRAY['action_requested', 'approval_required', 'action_allowed',
                                                    'action_denied', 'action_rejected', 'outcome'])
             AND pg_catalog.char_length(trace_data OPERATOR(pg_catalog.->>) 'action_id')
                 OPERATOR(pg_catalog.>) 64 THEN 'trail_action_id_length'
        -- One row with another trace_tree would make jsonb_to_recordset fail for the whole table.
        WHEN trace_data OPERATOR(pg_catalog.?) 'trace_tree'
             AND (pg_catalog.jsonb_typeof(trace_data OPERATOR(pg_catalog.->) 'trace_tree')
                      OPERATOR(pg_catalog.<>) 'array'
                  OR pg_catalog.jsonb_path_exists(trace_data OPERATOR(pg_catalog.->) 'trace_tree',
                                                  'strict $[*] ? (@.type() != "object")'))
            THEN 'trail_trace_tree'
        END;
BEGIN
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'new row for relation "agent_audit_trails" violates check constraint "%"', broken
            USING ERRCODE = 'check_violation', SCHEMA = 'trails', TABLE = 'agent_audit_trails', CONSTRAINT = broken;
    END IF;
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION trails.well_formed_v1(bigint, text, timestamptz, text, uuid, uuid, text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trails.well_formed_v1(bigint, text, timestamptz, text, uuid, uuid, text, jsonb)
    TO trails_app, trails_auditor;

-- NOT VALID for the reason of 0010: db.migrate has the rows of before checked beside the others' work.
ALTER TABLE trails.agent_audit_trails
    DROP CONSTRAINT trail_seq_range,
    DROP CONSTRAINT trail_kind_length,
    DROP CONSTRAINT trail_created_at_finite,
    DROP CONSTRAINT trail_signature_format,
    DROP CONSTRAINT trail_payload_object,
    DROP CONSTRAINT trail_session_id,
    DROP CONSTRAINT trail_idempotency_mirror,
    DROP CONSTRAINT trail_idempotency_format,
    DROP CONSTRAINT trail_action_id_length,
    DROP CONSTRAINT trail_trace_tree,
    ADD CONSTRAINT trail_well_formed CHECK (
        trails.well_formed_v1(seq, kind, created_at, signature, session_id, log_uuid, idempotency_key, trace_data)
        IS TRUE
    ) NOT VALID;

-- The rest of it is that of 0011.
CREATE OR REPLACE FUNCTION trails.index_sendings_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_incremental_sort = off SET jit = off
AS $$
BEGIN
    -- Nearly all statements are for guard records alone that hold no tree of the agent's. A query of this one table
    -- tells that at a fraction of what the next one costs to begin.
    PERFORM FROM new_records AS n
      WHERE CASE WHEN n.kind IN ('action_requested', 'action_allowed') THEN n.trace_data ? 'trace_tree'
                 ELSE n.session_id <> n.log_uuid OR n.kind NOT IN ('outcome', 'action_denied', 'action_rejected')
            END
      LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The guard's requests and permissions, half of what it writes, hold no tree unless somebody put one there,
    -- and are small. Of the others most are the only one of their session, which the index of sessions tells,
    -- before any document has to be unpacked.
    PERFORM FROM new_records AS n
      WHERE CASE WHEN n.kind IN ('action_requested', 'action_allowed')
                      AND NOT n.trace_data ? 'trace_tree' THEN false
                 WHEN n.session_id = n.log_uuid
                      AND n.kind IN ('outcome', 'action_denied', 'action_rejected') THEN false
                 WHEN (SELECT count(*)
                         FROM (SELECT FROM trails.agent_audit_trails AS o
                                WHERE o.tenant_id = n.tenant_id AND o.session_id = n.session_id
                                ORDER BY o.created_at, o.log_uuid, o.seq
                                LIMIT 2) AS o) < 2 THEN false
                 WHEN NOT n.trace_data ? 'trace_tree' THEN false
                 WHEN EXISTS (SELECT FROM trails.sendings AS s
                               WHERE s.tenant_id = n.tenant_id AND s.session_id = n.session_id) THEN true
                 ELSE (SELECT true
                         FROM trails.agent_audit_trails AS o
                        WHERE o.tenant_id = n.tenant_id AND o.session_id = n.session_id
                          AND (o.log_uuid, o.seq) <> (n.log_uuid, n.seq) AND o.trace_data ? 'trace_tree'
                          AND NOT (o.session_id = o.log_uuid
                                   AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                        ORDER BY o.created_at, o.log_uuid, o.seq
                        LIMIT 1) END
      LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO trails.sendings (tenant_id, session_id, node_id, log_uuid, seq, guarded, tool, status)
    WITH sent AS MATERIALIZED (
        SELECT n.tenant_id, n.session_id, n.log_uuid, n.seq, n.kind, n.trace_data
          FROM new_records AS n
         WHERE n.trace_data ? 'trace_tree'
           AND NOT (n.session_id = n.log_uuid AND n.kind IN ('outcome', 'action_denied', 'action_rejected'))
    ), part AS MATERIALIZED (
        -- A chain's part of a session, and whether the session is indexed yet.
        SELECT p.*, EXISTS (SELECT FROM trails.sendings AS s
                             WHERE s.tenant_id = p.tenant_id AND s.session_id = p.session_id) AS indexed
          FROM (SELECT tenant_id, session_id, log_uuid, min(seq) AS seq FROM sent GROUP BY 1, 2, 3) AS p
    ), missing AS (
        SELECT n.*
          FROM part AS p
          JOIN sent AS n ON n.tenant_id = p.tenant_id AND n.session_id = p.session_id AND n.log_uuid = p.log_uuid
         WHERE p.indexed
        UNION ALL
        -- The chain's record before, if another chain had the session indexed without seeing it. An earlier one
        -- it cannot be: that one was put in by this.
        SELECT e.*
          FROM part AS p
         CROSS JOIN LATERAL (
               SELECT o.tenant_id, o.session_id, o.log_uuid, o.seq, o.kind, o.trace_data
                 FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = p.tenant_id AND o.session_id = p.session_id AND o.log_uuid = p.log_uuid
                  AND o.seq < p.seq AND o.trace_data ? 'trace_tree'
                  AND NOT (o.session_id = o.log_uuid
                           AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                ORDER BY o.created_at DESC, o.log_uuid DESC, o.seq DESC
                LIMIT 1) AS e
         CROSS JOIN LATERAL (
               SELECT i.node_id FROM trails.node_ids_v1(e.trace_data -> 'trace_tree') AS i LIMIT 1) AS any_node
         WHERE p.indexed
           -- One look at one key (OFFSET 0 keeps it that), whatever the record before holds.
           AND NOT EXISTS (
               SELECT FROM trails.sendings AS s
                WHERE s.tenant_id = e.tenant_id AND s.session_id = e.session_id
                  AND s.node_id = any_node.node_id AND s.log_uuid = e.log_uuid AND s.seq = e.seq
               OFFSET 0)
        UNION ALL
        SELECT e.tenant_id, e.session_id, e.log_uuid, e.seq, e.kind, e.trace_data
          FROM (SELECT DISTINCT tenant_id, session_id FROM part WHERE NOT indexed) AS p
         CROSS JOIN LATERAL (
               SELECT o.tenant_id, o.session_id, o.log_uuid, o.seq, o.kind, o.trace_data, count(*) OVER () AS records
                 FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = p.tenant_id AND o.session_id = p.session_id AND o.trace_data ? 'trace_tree'
                  AND NOT (o.session_id = o.log_uuid
                           AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                ORDER BY o.created_at, o.log_uuid, o.seq) AS e
         WHERE e.records > 1
    )
    -- In the order of the key: who index the same session wait for each other without a deadlock.
    SELECT m.tenant_id, m.session_id, i.node_id, m.log_uuid, m.seq,
           m.kind IN ('outcome', 'action_denied', 'action_rejected'), i.tool, i.status
      FROM missing AS m
     CROSS JOIN LATERAL trails.sent_nodes_v1(m.trace_data -> 'trace_tree') AS i
     ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
