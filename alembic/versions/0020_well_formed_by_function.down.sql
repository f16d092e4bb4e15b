ALTER TABLE trails.agent_audit_trails
    DROP CONSTRAINT trail_well_formed,
    ADD CONSTRAINT trail_seq_range CHECK (seq >= 0),
    ADD CONSTRAINT trail_kind_length CHECK (char_length(kind) BETWEEN 1 AND 64),
    ADD CONSTRAINT trail_created_at_finite CHECK (isfinite(created_at)),
    ADD CONSTRAINT trail_signature_format CHECK (
        octet_length(signature) = 128 AND encode(decode(signature, 'hex'), 'hex') = signature
    ),
    ADD CONSTRAINT trail_payload_object CHECK (jsonb_typeof(trace_data) = 'object'),
    ADD CONSTRAINT trail_session_id CHECK (
        session_id::text = lower(coalesce(trace_data ->> 'session_id', log_uuid::text))
    ),
    ADD CONSTRAINT trail_idempotency_mirror CHECK (
        idempotency_key IS NOT DISTINCT FROM (trace_data -> 'idempotency' ->> 'key')
    ),
    ADD CONSTRAINT trail_idempotency_format CHECK (
        octet_length(idempotency_key) = 64 AND translate(idempotency_key, '0123456789abcdef', '') = ''
    ),
    ADD CONSTRAINT trail_action_id_length CHECK (
        kind NOT IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                     'action_rejected', 'outcome')
        OR coalesce(char_length(trace_data ->> 'action_id'), 0) <= 64
    ),
    ADD CONSTRAINT trail_trace_tree CHECK (
        CASE WHEN jsonb_typeof(trace_data -> 'trace_tree') = 'array'
             THEN NOT jsonb_path_exists(trace_data -> 'trace_tree', 'strict $[*] ? (@.type() != "object")')
             ELSE NOT trace_data ? 'trace_tree' END
    );
DROP FUNCTION trails.well_formed_v1(bigint, text, timestamptz, text, uuid, uuid, text, jsonb);

-- The trigger as it was.
CREATE OR REPLACE FUNCTION trails.index_sendings_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_incremental_sort = off SET jit = off
AS $$
BEGIN
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
