-- Which records of a session hold a node: so a view finds a node's later sendings without reading the session
-- once for each of its records.

-- A UUID in its hyphenated form, either case; NULL for any other text. The SQL twin of app.trace.node.is_uuid.
CREATE FUNCTION trails.uuid_v1(written text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN written ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$'
                THEN written::uuid END;
END
$$;

-- ------------------------------------------------------------------------------------------- the index

-- An index and no evidence: what it says is checked against the records it names. It holds the nodes of the
-- sessions that have more than one record with a tree; one record alone has no other sending to look for.
CREATE TABLE trails.sendings (
    tenant_id  uuid   NOT NULL,
    session_id uuid   NOT NULL,
    node_id    uuid   NOT NULL,
    log_uuid   uuid   NOT NULL,
    seq        bigint NOT NULL,
    CONSTRAINT sendings_pkey PRIMARY KEY (tenant_id, session_id, node_id, log_uuid, seq),
    CONSTRAINT sendings_seq_range CHECK (seq >= 0)
);

-- Appends of one chain follow each other, so that what its records say is always complete here from the second
-- one on. Two chains that append to a session at the same moment may not see each other: a later record of
-- either puts both in. The guard's records that name no session (theirs is the chain's own id) are left out:
-- nothing is posted under such an id.
--
-- The settings are those of check_append_v1, for its reason: each look at the trail asks for the order that one
-- index alone has.
CREATE FUNCTION trails.index_sendings_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_incremental_sort = off
AS $$
BEGIN
    -- Most records are the only one of their session, which the index of sessions tells.
    PERFORM FROM new_records AS n
      WHERE CASE WHEN n.session_id = n.log_uuid AND n.kind IN ('outcome', 'action_denied', 'action_rejected')
                      OR NOT n.trace_data ? 'trace_tree' THEN false
                 WHEN (SELECT count(*)
                         FROM (SELECT FROM trails.agent_audit_trails AS o
                                WHERE o.tenant_id = n.tenant_id AND o.session_id = n.session_id
                                ORDER BY o.created_at, o.log_uuid, o.seq
                                LIMIT 2) AS o) < 2 THEN false
                 WHEN EXISTS (SELECT FROM trails.sendings AS s
                               WHERE s.tenant_id = n.tenant_id AND s.session_id = n.session_id) THEN true
                 ELSE EXISTS (SELECT FROM trails.agent_audit_trails AS o
                               WHERE o.tenant_id = n.tenant_id AND o.session_id = n.session_id
                                 AND (o.log_uuid, o.seq) <> (n.log_uuid, n.seq)
                                 AND o.trace_data ? 'trace_tree'
                                 AND NOT (o.session_id = o.log_uuid
                                          AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                               ORDER BY o.created_at, o.log_uuid, o.seq
                               LIMIT 1) END
      LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO trails.sendings (tenant_id, session_id, node_id, log_uuid, seq)
    WITH sent AS MATERIALIZED (
        SELECT n.tenant_id, n.session_id, n.log_uuid, n.seq, n.trace_data
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
        -- it cannot be: that one would have been put in by this.
        SELECT e.*
          FROM part AS p
         CROSS JOIN LATERAL (
               SELECT o.tenant_id, o.session_id, o.log_uuid, o.seq, o.trace_data
                 FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = p.tenant_id AND o.session_id = p.session_id AND o.log_uuid = p.log_uuid
                  AND o.seq < p.seq AND o.trace_data ? 'trace_tree'
                  AND NOT (o.session_id = o.log_uuid
                           AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                ORDER BY o.created_at DESC, o.log_uuid DESC, o.seq DESC
                LIMIT 1) AS e
         WHERE p.indexed
           AND NOT EXISTS (
               SELECT FROM trails.sendings AS s
                WHERE s.tenant_id = e.tenant_id AND s.session_id = e.session_id AND s.log_uuid = e.log_uuid
                  AND s.seq = e.seq
                  AND s.node_id = trails.uuid_v1(jsonb_path_query_first(e.trace_data, 'lax $.trace_tree[*].node_id')
                                                 #>> '{}'))
        UNION ALL
        SELECT e.tenant_id, e.session_id, e.log_uuid, e.seq, e.trace_data
          FROM (SELECT DISTINCT tenant_id, session_id FROM part WHERE NOT indexed) AS p
         CROSS JOIN LATERAL (
               SELECT o.tenant_id, o.session_id, o.log_uuid, o.seq, o.trace_data, count(*) OVER () AS records
                 FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = p.tenant_id AND o.session_id = p.session_id AND o.trace_data ? 'trace_tree'
                  AND NOT (o.session_id = o.log_uuid
                           AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
                ORDER BY o.created_at, o.log_uuid, o.seq) AS e
         WHERE e.records > 1
    )
    -- In the order of the key: who index the same session wait for each other without a deadlock.
    SELECT DISTINCT m.tenant_id, m.session_id, i.node_id, m.log_uuid, m.seq
      FROM missing AS m
     CROSS JOIN LATERAL (
           SELECT trails.uuid_v1(x.id #>> '{}') AS node_id
             FROM jsonb_path_query(m.trace_data, 'lax $.trace_tree[*].node_id') AS x (id)
           OFFSET 0) AS i
     WHERE i.node_id IS NOT NULL
     ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION trails.index_sendings_v1() FROM PUBLIC;

CREATE TRIGGER index_sendings AFTER INSERT ON trails.agent_audit_trails
    REFERENCING NEW TABLE AS new_records
    FOR EACH STATEMENT EXECUTE FUNCTION trails.index_sendings_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.sendings
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.sendings
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.agent_audit_trails ENABLE ALWAYS TRIGGER index_sendings;
ALTER TABLE trails.sendings
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

-- The records that are there already. The owner sees no row under its own forced row security.
ALTER TABLE trails.agent_audit_trails NO FORCE ROW LEVEL SECURITY;
INSERT INTO trails.sendings (tenant_id, session_id, node_id, log_uuid, seq)
SELECT DISTINCT t.tenant_id, t.session_id, i.node_id, t.log_uuid, t.seq
  FROM (SELECT o.tenant_id, o.session_id
          FROM trails.agent_audit_trails AS o
         WHERE o.trace_data ? 'trace_tree'
           AND NOT (o.session_id = o.log_uuid AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
         GROUP BY 1, 2
        HAVING count(*) > 1) AS m
  JOIN trails.agent_audit_trails AS t ON t.tenant_id = m.tenant_id AND t.session_id = m.session_id
 CROSS JOIN LATERAL (
       SELECT trails.uuid_v1(x.id #>> '{}') AS node_id
         FROM jsonb_path_query(t.trace_data, 'lax $.trace_tree[*].node_id') AS x (id)
       OFFSET 0) AS i
 WHERE i.node_id IS NOT NULL
   AND NOT (t.session_id = t.log_uuid AND t.kind IN ('outcome', 'action_denied', 'action_rejected'));
ALTER TABLE trails.agent_audit_trails FORCE ROW LEVEL SECURITY;

ALTER TABLE trails.sendings ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY app_reads ON trails.sendings FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.sendings FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

GRANT SELECT, INSERT ON trails.sendings TO trails_app;
GRANT SELECT ON trails.sendings TO trails_auditor;
GRANT EXECUTE ON FUNCTION trails.uuid_v1(text) TO trails_app, trails_auditor;
