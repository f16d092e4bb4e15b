-- Which records of a session hold a node: so a view finds a node's other sendings without reading the session
-- once for each of its records. And the calls that are seen from both ends, which are counted once.

-- ---------------------------------------------------------------------------------- what a node says

-- A UUID in its hyphenated form, either case; NULL for any other text. The SQL twin of app.trace.node.is_uuid.
CREATE FUNCTION trails.uuid_v1(written text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN written ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$'
                THEN written::uuid END;
END
$$;

-- The node that a node says it is the inner end of: metadata.nested_in, where it is a UUID in a string.
CREATE FUNCTION trails.outer_id_v1(metadata jsonb) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN jsonb_typeof(metadata -> 'nested_in') = 'string'
                THEN trails.uuid_v1(metadata ->> 'nested_in') END;
END
$$;

-- The ids of a tree's nodes; what is no UUID is no node's id.
CREATE FUNCTION trails.node_ids_v1(tree jsonb) RETURNS TABLE (node_id uuid)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT i.node_id
      FROM (SELECT trails.uuid_v1(x.id #>> '{}') AS node_id
              FROM jsonb_path_query(tree, 'lax $[*].node_id') AS x (id)
            OFFSET 0) AS i
     WHERE i.node_id IS NOT NULL
$$;

-- What the index says of a tree's nodes, each id once: of a call the tool and the status. A call that is marked as
-- an inner end itself is none here: it is no outer end, or two calls that name each other would both be left out.
-- Texts that are longer than any that the service takes are left out, and equal none.
CREATE FUNCTION trails.sent_nodes_v1(tree jsonb) RETURNS TABLE (node_id uuid, tool text, status text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT DISTINCT ON (i.node_id) i.node_id,
           CASE WHEN i.call AND char_length(i.node ->> 'name') <= 1024 THEN i.node ->> 'name' END,
           CASE WHEN i.call AND char_length(i.node -> 'outputs' ->> 'status') <= 64
                THEN i.node -> 'outputs' ->> 'status' END
      FROM (SELECT x.node, x."position", trails.uuid_v1(x.node ->> 'node_id') AS node_id,
                   x.node ->> 'node_type' = 'TOOL_CALL'
                       AND coalesce(trails.outer_id_v1(x.node -> 'metadata')
                                    = trails.uuid_v1(x.node ->> 'node_id'), true) AS call
              FROM jsonb_path_query(tree, 'lax $[*]') WITH ORDINALITY AS x (node, "position")
            OFFSET 0) AS i
     WHERE i.node_id IS NOT NULL
     ORDER BY i.node_id, i."position" DESC
$$;

-- The calls of a tree that say they are the inner end of another one.
CREATE FUNCTION trails.marked_calls_v1(tree jsonb) RETURNS TABLE (
    "position" bigint, tool text, status text, outer_id uuid)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT i."position", i.node ->> 'name', i.node -> 'outputs' ->> 'status', i.outer_id
      FROM (SELECT x."position", x.node, trails.outer_id_v1(x.node -> 'metadata') AS outer_id
              FROM jsonb_path_query(tree, 'lax $[*]') WITH ORDINALITY AS x (node, "position")
             WHERE x.node ->> 'node_type' = 'TOOL_CALL'
            OFFSET 0) AS i
     WHERE i.outer_id IS NOT NULL AND i.outer_id::text IS DISTINCT FROM lower(i.node ->> 'node_id')
$$;

-- ------------------------------------------------------------------------------------------- the index

-- An index and no evidence: no row comes in that its record does not bear out, and trails verify looks again. It
-- holds the nodes of the sessions that have more than one record with a tree; one record alone has no other
-- sending to look for. With what the outer end of a call is known by: who asks reads no other record.
CREATE TABLE trails.sendings (
    tenant_id  uuid    NOT NULL,
    session_id uuid    NOT NULL,
    node_id    uuid    NOT NULL,
    log_uuid   uuid    NOT NULL,
    seq        bigint  NOT NULL,
    guarded    boolean NOT NULL,
    tool       text,
    status     text,
    CONSTRAINT sendings_pkey PRIMARY KEY (tenant_id, session_id, node_id, log_uuid, seq),
    CONSTRAINT sendings_seq_range CHECK (seq >= 0)
);
-- What the guard wrote stands before what was posted, in whichever order.
CREATE INDEX sendings_guarded ON trails.sendings (tenant_id, session_id, node_id, log_uuid, seq) WHERE guarded;

-- Appends of one chain follow each other, so that what its records say is complete here from the second one on.
-- Two chains that append to a session at the same moment may not see each other: a later record puts both in.
-- The guard's records that name no session (theirs is the chain's own id) are left out: nothing is posted under
-- such an id.
--
-- The settings are those of check_append_v1, for its reason: each look at the trail asks for the order that one
-- index alone has. And no compiling: what the settings make dear would set it off.
CREATE FUNCTION trails.index_sendings_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_incremental_sort = off SET jit = off
AS $$
BEGIN
    -- Most records are the only one of their session, which the index of sessions tells, before any document has
    -- to be unpacked.
    PERFORM FROM new_records AS n
      WHERE CASE WHEN n.session_id = n.log_uuid
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
REVOKE ALL ON FUNCTION trails.index_sendings_v1() FROM PUBLIC;

CREATE TRIGGER index_sendings AFTER INSERT ON trails.agent_audit_trails
    REFERENCING NEW TABLE AS new_records
    FOR EACH STATEMENT EXECUTE FUNCTION trails.index_sendings_v1();

-- A row that no record bears out would hide a node from the views: none comes in, whoever writes it.
CREATE FUNCTION trails.check_sendings_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    stray record;
BEGIN
    SELECT n.log_uuid, n.seq, n.node_id
      INTO stray
      FROM (SELECT n.tenant_id, n.session_id, n.node_id, n.log_uuid, n.seq, n.guarded, n.tool, n.status
              FROM new_sendings AS n
            EXCEPT
            SELECT t.tenant_id, t.session_id, i.node_id, t.log_uuid, t.seq, t.guarded, i.tool, i.status
              FROM (SELECT DISTINCT n.tenant_id, n.log_uuid, n.seq FROM new_sendings AS n) AS p
             CROSS JOIN LATERAL (
                   SELECT o.tenant_id, o.session_id, o.log_uuid, o.seq, o.trace_data,
                          o.kind IN ('outcome', 'action_denied', 'action_rejected') AS guarded
                     FROM trails.agent_audit_trails AS o
                    WHERE o.tenant_id = p.tenant_id AND o.log_uuid = p.log_uuid AND o.seq = p.seq
                   OFFSET 0) AS t
             CROSS JOIN LATERAL trails.sent_nodes_v1(t.trace_data -> 'trace_tree') AS i) AS n
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'record % of chain % does not hold node % as the index of sendings is to say',
                        stray.seq, stray.log_uuid, stray.node_id
            USING ERRCODE = 'TR004', CONSTRAINT = 'sendings_record',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION trails.check_sendings_v1() FROM PUBLIC;

CREATE TRIGGER check_sendings AFTER INSERT ON trails.sendings
    REFERENCING NEW TABLE AS new_sendings
    FOR EACH STATEMENT EXECUTE FUNCTION trails.check_sendings_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.sendings
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.sendings
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.agent_audit_trails ENABLE ALWAYS TRIGGER index_sendings;
ALTER TABLE trails.sendings
    ENABLE ALWAYS TRIGGER check_sendings,
    ENABLE ALWAYS TRIGGER refuse_change_statement,
    ENABLE ALWAYS TRIGGER refuse_change_row;

-- The records that are there already. The owner sees no row under its own forced row security.
ALTER TABLE trails.agent_audit_trails NO FORCE ROW LEVEL SECURITY;
INSERT INTO trails.sendings (tenant_id, session_id, node_id, log_uuid, seq, guarded, tool, status)
SELECT t.tenant_id, t.session_id, i.node_id, t.log_uuid, t.seq,
       t.kind IN ('outcome', 'action_denied', 'action_rejected'), i.tool, i.status
  FROM (SELECT o.tenant_id, o.session_id
          FROM trails.agent_audit_trails AS o
         WHERE o.trace_data ? 'trace_tree'
           AND NOT (o.session_id = o.log_uuid AND o.kind IN ('outcome', 'action_denied', 'action_rejected'))
         GROUP BY 1, 2
        HAVING count(*) > 1) AS m
  JOIN trails.agent_audit_trails AS t ON t.tenant_id = m.tenant_id AND t.session_id = m.session_id
 CROSS JOIN LATERAL trails.sent_nodes_v1(t.trace_data -> 'trace_tree') AS i
 WHERE NOT (t.session_id = t.log_uuid AND t.kind IN ('outcome', 'action_denied', 'action_rejected'));
ALTER TABLE trails.agent_audit_trails FORCE ROW LEVEL SECURITY;

ALTER TABLE trails.sendings ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY app_reads ON trails.sendings FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.sendings FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

-- ------------------------------------------------------------------------------- calls from both ends

-- A call that is marked as the inner end of another one (metadata.nested_in) is left out of the calls when that
-- one is there and says enough: a TOOL_CALL of the same tool that is not so marked itself, in the same chain, or in another one if one key of
-- a person or service, and neither agent, posted both records. An inner call that did not succeed is left out
-- only when the outer one has the same status, so that no failure is hidden.

-- Of one record alone: the places of its calls that another one of its calls is the outer end of, as an object.
CREATE FUNCTION trails.inner_ends_v1(tree jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    calls jsonb := (SELECT jsonb_object_agg(n.node_id, jsonb_build_array(n.tool, n.status))
                      FROM trails.sent_nodes_v1(tree) AS n
                     WHERE n.tool IS NOT NULL);
BEGIN
    RETURN (SELECT jsonb_object_agg(m."position", true)
              FROM trails.marked_calls_v1(tree) AS m
             WHERE calls -> m.outer_id::text ->> 0 = m.tool
               AND (m.status IS NULL OR m.status = 'success' OR m.status = calls -> m.outer_id::text ->> 1));
END
$$;

-- The same of one marked call in a session of several records: whether the index knows its outer end, in the
-- call's own chain first. Each question is answered by one look at an index, however often a node was sent; the
-- settings are those of check_append_v1.
CREATE FUNCTION trails.inner_end_v1(
    tenant uuid, session uuid, log uuid, agent text, poster text, outer_node uuid, call_tool text, call_status text)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET jit = off
AS $$
DECLARE
    chain uuid := log;
    shown record;
BEGIN
    LOOP
        SELECT s.seq, s.tool, s.status INTO shown
          FROM trails.sendings AS s
         WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = outer_node AND s.log_uuid = chain
           AND s.guarded
         ORDER BY s.seq DESC
         LIMIT 1;
        IF NOT FOUND THEN
            SELECT s.seq, s.tool, s.status INTO shown
              FROM trails.sendings AS s
             WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = outer_node AND s.log_uuid = chain
             ORDER BY s.seq DESC
             LIMIT 1;
        END IF;
        IF FOUND AND shown.tool = call_tool
           AND (call_status IS NULL OR call_status = 'success' OR call_status = shown.status)
           AND (chain = log
                OR EXISTS (SELECT FROM trails.agent_audit_trails AS t
                            WHERE t.tenant_id = tenant AND t.log_uuid = chain AND t.seq = shown.seq
                              AND t.actor = poster AND t.agent_id <> poster)) THEN
            RETURN true;
        END IF;
        -- The other chains, one after the other; none where the agent itself posted the inner end.
        IF poster = agent THEN
            RETURN false;
        END IF;
        SELECT s.log_uuid INTO chain
          FROM trails.sendings AS s
         WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = outer_node
           AND s.log_uuid > CASE WHEN chain = log THEN '00000000-0000-0000-0000-000000000000' ELSE chain END
           AND s.log_uuid <> log
         ORDER BY s.log_uuid, s.seq
         LIMIT 1;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
END
$$;

-- -------------------------------------------------------------------------------------------- the nodes

-- One row a node of a chain's part of a session: its latest sending, but what the guard wrote (an outcome, a
-- denial, a rejection) stands before whatever was posted under the same node_id, in whichever order. So a
-- posted node is left out when the index of sendings names a later record of its chain for its id, or one of
-- the guard's. That is asked once a record, and of a session with one record once at all. Of the guard's own
-- records only an outcome "unknown" can be followed by another. Neither a UNION nor a window nor a join of all
-- with all: a filter on time, session or chain, also one by a join, reaches the index.
CREATE FUNCTION trails.shown_nodes_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, name text,
    status text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb, started_at timestamptz,
    ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint, output_tokens bigint,
    total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz, clock_skew interval,
    clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid, seq bigint, hash text,
    record_id bigint, trace_data jsonb, inner_end boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.tenant_id,
           t.agent_id,
           t.session_id,
           lower(x.node ->> 'node_id'),
           lower(x.node ->> 'parent_id'),
           x.node ->> 'node_type',
           x.node ->> 'name',
           x.node -> 'outputs' ->> 'status',
           x.node ->> 'thought_process',
           x.node -> 'inputs',
           x.node -> 'outputs',
           x.node -> 'metadata',
           trails.started_at_v1(x.node -> 'metadata'),
           trails.ended_at_v1(x.node -> 'metadata'),
           trails.number_v1(x.node -> 'metadata' -> 'duration_ms'),
           x.node -> 'metadata' ->> 'model',
           trails.input_tokens_v1(x.node -> 'metadata'),
           trails.output_tokens_v1(x.node -> 'metadata'),
           trails.total_tokens_v1(x.node -> 'metadata'),
           trails.number_v1(x.node -> 'metadata' -> 'cost'),
           CASE WHEN f.guarded THEN t.trace_data ->> 'action_id' END,
           t.created_at,
           trails.started_at_v1(x.node -> 'metadata') - t.created_at,
           trails.started_at_v1(x.node -> 'metadata')
               NOT BETWEEN t.created_at - interval '24 hours' AND t.created_at + interval '5 minutes',
           coalesce((r.sendings ->> lower(x.node ->> 'node_id'))::bigint, 1),
           x."position",
           t.kind,
           t.log_uuid,
           t.seq,
           t.hash,
           t.id,
           t.trace_data,
           coalesce(r.inner_ends ? x."position"::text, false)
      FROM trails.agent_audit_trails AS t
      -- The tree is taken out of its document once a record. Each OFFSET 0 keeps what is asked once a record there,
      -- each ORDER BY with a LIMIT is what one index alone answers.
     CROSS JOIN LATERAL (
           SELECT t.trace_data -> 'trace_tree' AS tree,
                  t.kind IN ('outcome', 'action_denied', 'action_rejected') AS guarded,
                  (SELECT true
                     FROM trails.sendings AS s
                    WHERE s.tenant_id = t.tenant_id AND s.session_id = t.session_id
                    ORDER BY s.node_id, s.log_uuid, s.seq
                    LIMIT 1) AS indexed
           OFFSET 0) AS f
     CROSS JOIN LATERAL (
           SELECT replaced.ids,
                  -- Only for whom asks for sendings, or for calls: a column that is not used is not computed.
                  CASE WHEN f.indexed AND NOT f.guarded THEN (
                      SELECT jsonb_object_agg(i.node_id, (
                                 SELECT count(*)
                                   FROM trails.sendings AS s
                                  WHERE s.tenant_id = t.tenant_id AND s.session_id = t.session_id
                                    AND s.node_id = i.node_id AND s.log_uuid = t.log_uuid))
                        FROM trails.node_ids_v1(f.tree) AS i
                       WHERE NOT replaced.ids ? i.node_id::text) END AS sendings,
                  CASE WHEN NOT f.tree @? 'lax $[*].metadata.nested_in' THEN NULL
                       WHEN f.indexed THEN (
                      SELECT jsonb_object_agg(m."position", true)
                        FROM trails.marked_calls_v1(f.tree) AS m
                       WHERE trails.inner_end_v1(t.tenant_id, t.session_id, t.log_uuid, t.agent_id, t.actor,
                                                 m.outer_id, m.tool, m.status))
                       ELSE trails.inner_ends_v1(f.tree) END AS inner_ends
             FROM (SELECT coalesce(CASE WHEN f.indexed AND NOT f.guarded THEN (
                              SELECT jsonb_object_agg(i.node_id, true)
                                FROM trails.node_ids_v1(f.tree) AS i
                               WHERE (SELECT s.seq
                                        FROM trails.sendings AS s
                                       WHERE s.tenant_id = t.tenant_id AND s.session_id = t.session_id
                                         AND s.node_id = i.node_id AND s.log_uuid = t.log_uuid
                                       ORDER BY s.seq DESC
                                       LIMIT 1) > t.seq
                                  OR (SELECT s.seq
                                        FROM trails.sendings AS s
                                       WHERE s.tenant_id = t.tenant_id AND s.session_id = t.session_id
                                         AND s.node_id = i.node_id AND s.log_uuid = t.log_uuid AND s.guarded
                                       ORDER BY s.seq DESC
                                       LIMIT 1) IS NOT NULL) END, '{}') AS ids
                   OFFSET 0) AS replaced
           OFFSET 0) AS r
      -- The path uses no variable. To name the ids as its variables is what makes the planner ask for them, and for
      -- all that is asked with them, first, once a record, and never again for each node.
     CROSS JOIN LATERAL jsonb_path_query(f.tree, 'lax $[*]', r.ids) WITH ORDINALITY AS x (node, "position")
     WHERE (r.ids ? lower(x.node ->> 'node_id')) IS NOT TRUE
       AND (t.kind <> 'outcome' OR t.trace_data ->> 'status' IS DISTINCT FROM 'unknown'
            OR NOT EXISTS (
               SELECT FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = t.tenant_id AND o.log_uuid = t.log_uuid AND o.seq > t.seq
                  AND o.kind = 'outcome' AND o.trace_data ->> 'action_id' = t.trace_data ->> 'action_id'
               OFFSET 0))
$$;

CREATE OR REPLACE FUNCTION trails.trace_nodes_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, name text,
    status text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb, started_at timestamptz,
    ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint, output_tokens bigint,
    total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz, clock_skew interval,
    clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid, seq bigint, hash text,
    record_id bigint, trace_data jsonb)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT n.tenant_id, n.agent_id, n.session_id, n.node_id, n.parent_id, n.node_type, n.name, n.status,
           n.thought_process, n.inputs, n.outputs, n.metadata, n.started_at, n.ended_at, n.duration_ms, n.model,
           n.input_tokens, n.output_tokens, n.total_tokens, n.cost, n.action_id, n.recorded_at, n.clock_skew,
           n.clock_skewed, n.sendings, n."position", n.kind, n.log_uuid, n.seq, n.hash, n.record_id, n.trace_data
      FROM trails.shown_nodes_v1() AS n
$$;

-- The same choice for one session as a whole: read once, whatever its length. Who has no UUID is no other's sending.
CREATE OR REPLACE FUNCTION trails.session_nodes_v1(tenant uuid, session uuid) RETURNS TABLE (
    agent_id text, log_uuid uuid, seq bigint, kind text, recorded_at timestamptz, "position" bigint,
    node_id text, parent_id text, node_type text, name text, status text, outputs jsonb, metadata jsonb,
    guarded boolean, sendings bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT DISTINCT ON (t.log_uuid, i.id)
           t.agent_id, t.log_uuid, t.seq, t.kind, t.created_at, x."position", lower(x.node ->> 'node_id'),
           lower(x.node ->> 'parent_id'), x.node ->> 'node_type', x.node ->> 'name',
           x.node -> 'outputs' ->> 'status', x.node -> 'outputs', x.node -> 'metadata', g.guarded,
           CASE WHEN g.guarded THEN 1 ELSE count(*) OVER (PARTITION BY t.log_uuid, i.id, g.guarded) END
      FROM trails.agent_audit_trails AS t
     CROSS JOIN LATERAL (SELECT t.kind IN ('outcome', 'action_denied', 'action_rejected') AS guarded) AS g
     CROSS JOIN LATERAL trails.nodes_v1(t.trace_data) AS x
     CROSS JOIN LATERAL (
           SELECT coalesce(trails.uuid_v1(x.node ->> 'node_id')::text, t.seq || '/' || x."position") AS id) AS i
     WHERE t.tenant_id = tenant AND t.session_id = session
     ORDER BY t.log_uuid, i.id, g.guarded DESC, t.seq DESC, x."position" DESC
$$;

-- Where the inner ends of calls stand in a session, as an object of 'chain/seq/position'; NULL without marks. The
-- calls are joined with themselves, which no plan may do call by call; the records are asked for their posters
-- only where two chains meet.
CREATE FUNCTION trails.session_inner_ends_v1(tenant uuid, session uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog SET enable_nestloop = off SET jit = off
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM trails.agent_audit_trails AS t
                    WHERE t.tenant_id = tenant AND t.session_id = session
                      AND t.trace_data @? 'lax $.trace_tree[*].metadata.nested_in') THEN
        RETURN NULL;
    END IF;
    RETURN (
        WITH poster AS MATERIALIZED (
            SELECT t.log_uuid, t.seq, t.actor
              FROM trails.agent_audit_trails AS t
             WHERE t.tenant_id = tenant AND t.session_id = session
        ), node AS MATERIALIZED (
            SELECT n.log_uuid, n.seq, n.node_id, n.name, n.status, n.agent_id,
                   n.log_uuid || '/' || n.seq || '/' || n."position" AS place,
                   trails.outer_id_v1(n.metadata)::text AS outer_id
              FROM trails.session_nodes_v1(tenant, session) AS n
             WHERE n.node_type = 'TOOL_CALL'
        ), call AS MATERIALIZED (
            SELECT n.*, p.actor FROM node AS n JOIN poster AS p ON p.log_uuid = n.log_uuid AND p.seq = n.seq
        ), inner_call AS MATERIALIZED (
            SELECT * FROM call WHERE outer_id IS DISTINCT FROM node_id AND outer_id IS NOT NULL
        ), outer_call AS MATERIALIZED (
            SELECT * FROM call WHERE coalesce(outer_id = node_id, true)
        ), found AS (
            SELECT i.place
              FROM inner_call AS i
              JOIN outer_call AS o ON o.log_uuid = i.log_uuid AND o.node_id = i.outer_id AND o.name = i.name
             WHERE i.status IS NULL OR i.status IN ('success', o.status)
            UNION ALL
            -- In another chain: of all that one poster sent under one id it counts only how they ended.
            SELECT i.place
              FROM inner_call AS i
              JOIN (SELECT DISTINCT c.node_id, c.name, c.actor, c.status
                      FROM outer_call AS c WHERE c.actor <> c.agent_id) AS o
                ON o.node_id = i.outer_id AND o.name = i.name AND o.actor = i.actor
             WHERE i.actor <> i.agent_id AND (i.status IS NULL OR i.status IN ('success', o.status))
        )
        SELECT jsonb_object_agg(f.place, true) FROM found AS f);
END
$$;

-- The same nodes, and which of them are the inner end of another call. That is asked first, once a session.
CREATE FUNCTION trails.session_calls_v1(tenant uuid, session uuid) RETURNS TABLE (
    agent_id text, log_uuid uuid, seq bigint, kind text, recorded_at timestamptz, "position" bigint,
    node_id text, parent_id text, node_type text, name text, status text, outputs jsonb, metadata jsonb,
    guarded boolean, sendings bigint, inner_end boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT c.*
      FROM (SELECT trails.session_inner_ends_v1(tenant, session) AS places OFFSET 0) AS e
     CROSS JOIN LATERAL (
           SELECT n.*,
                  CASE WHEN e.places IS NULL THEN false
                       ELSE e.places ? (n.log_uuid || '/' || n.seq || '/' || n."position") END AS inner_end
             FROM trails.session_nodes_v1(tenant, session) AS n
           OFFSET 0) AS c
$$;

CREATE OR REPLACE FUNCTION trails.tool_calls_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, tool text,
    status text, error text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb,
    started_at timestamptz, ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint,
    output_tokens bigint, total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz,
    clock_skew interval, clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid,
    seq bigint, hash text, record_id bigint, trace_data jsonb)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT n.tenant_id, n.agent_id, n.session_id, n.node_id, n.parent_id, n.node_type, n.name, n.status,
           trails.error_v1(n.outputs),
           n.thought_process, n.inputs, n.outputs, n.metadata, n.started_at, n.ended_at, n.duration_ms, n.model,
           n.input_tokens, n.output_tokens, n.total_tokens, n.cost, n.action_id, n.recorded_at, n.clock_skew,
           n.clock_skewed, n.sendings, n."position", n.kind, n.log_uuid, n.seq, n.hash, n.record_id, n.trace_data
      FROM trails.shown_nodes_v1() AS n
     WHERE n.node_type = 'TOOL_CALL' AND NOT n.inner_end
$$;

-- What came after a failed call to put it right: a SELF_CORRECTION node, or the same tool called again, below the
-- failed call or later under the same parent. Two times of the callers' clock decide what is later, else the
-- order of the records. Each session with a failed call is read once.
CREATE OR REPLACE FUNCTION trails.corrections_v1() RETURNS TABLE (
    tenant_id uuid, session_id uuid, agent_id text, failed_node_id text, tool text, error text,
    failed_at timestamptz, recorded_at timestamptz, relation text, correction_node_id text,
    correction_type text, correction_name text, correction_status text, correction_at timestamptz,
    correction_agent_id text)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT s.tenant_id, s.session_id, p.*
      FROM (SELECT DISTINCT t.tenant_id, t.session_id
              FROM trails.agent_audit_trails AS t
             WHERE t.trace_data
                   @> '{"trace_tree": [{"outputs": {"status": "failed"}, "node_type": "TOOL_CALL"}]}'::jsonb) AS s
     CROSS JOIN LATERAL (
           WITH call AS MATERIALIZED (
               SELECT n.agent_id, n.log_uuid, n.seq, n."position", n.recorded_at, n.node_id, n.parent_id,
                      n.node_type, n.name, n.status, trails.started_at_v1(n.metadata) AS started_at,
                      CASE WHEN n.status = 'failed' AND n.node_type = 'TOOL_CALL'
                           THEN trails.error_v1(n.outputs) END AS error
                 FROM trails.session_calls_v1(s.tenant_id, s.session_id) AS n
                WHERE n.node_type IN ('TOOL_CALL', 'SELF_CORRECTION') AND NOT n.inner_end
           ), pair AS (
               SELECT f, c, 'child' AS relation
                 FROM call AS f JOIN call AS c ON c.parent_id = f.node_id
                UNION ALL
               SELECT f, c, 'sibling'
                 FROM call AS f JOIN call AS c ON c.parent_id = f.parent_id
                WHERE CASE WHEN c.started_at <> f.started_at THEN c.started_at > f.started_at
                           WHEN c.log_uuid = f.log_uuid THEN (c.seq, c."position") > (f.seq, f."position")
                           ELSE c.recorded_at > f.recorded_at END
           )
           SELECT (f).agent_id, (f).node_id, (f).name, (f).error, coalesce((f).started_at, (f).recorded_at),
                  (f).recorded_at, relation, (c).node_id, (c).node_type, (c).name, (c).status,
                  coalesce((c).started_at, (c).recorded_at), (c).agent_id
             FROM pair
            WHERE (f).node_type = 'TOOL_CALL' AND (f).status = 'failed' AND (c).node_id <> (f).node_id
              AND ((c).node_type = 'SELF_CORRECTION' OR (c).name = (f).name)) AS p
$$;

CREATE OR REPLACE FUNCTION trails.session_paths_v1() RETURNS TABLE (
    tenant_id uuid, session_id uuid, agent_id text, node_id text, parent_id text, node_type text, name text,
    status text, depth integer, path text[], names text[], root_id text, orphan boolean, cyclic boolean,
    sendings bigint, "order" bigint, log_uuid uuid, seq bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT f.tenant_id, f.session_id, p.agent_id, p.node_id, p.parent_id, p.node_type, p.name, p.status, p.depth,
           p.path, p.names, p.root_id, p.orphan, p.depth IS NULL, p.sendings, p.number, p.log_uuid,
           p.seq
      FROM trails.agent_audit_trails AS f
     CROSS JOIN LATERAL (
           WITH RECURSIVE node AS MATERIALIZED (
               SELECT row_number() OVER (ORDER BY n.recorded_at, n.log_uuid, n.seq, n."position") AS number,
                      n.agent_id, n.node_id, n.parent_id, n.node_type, n.name, n.status, n.log_uuid, n.seq,
                      n.guarded, n.sendings
                 FROM trails.session_nodes_v1(f.tenant_id, f.session_id) AS n
           ), linked AS MATERIALIZED (
               -- Two chains may have sent the parent: its own chain's first, then the guard's.
               SELECT DISTINCT ON (c.number) c.*, a.number AS above, a.log_uuid <> c.log_uuid AS foreign_link
                 FROM node AS c LEFT JOIN node AS a ON a.node_id = c.parent_id
                ORDER BY c.number, (a.log_uuid = c.log_uuid) DESC NULLS LAST, a.guarded DESC, a.number
           ), walk AS (
               SELECT l.number, l.node_id AS root_id, 1 AS depth, ARRAY[l.node_id] AS path, ARRAY[l.name] AS names
                 FROM linked AS l
                WHERE CASE WHEN l.above IS NULL THEN true ELSE false END
               UNION ALL
               -- The last 128 steps: a chain of 10,000 nodes would take gigabytes.
               SELECT l.number, w.root_id, w.depth + 1,
                      (w.path || l.node_id)[greatest(1, cardinality(w.path) - 126):],
                      (w.names || l.name)[greatest(1, cardinality(w.names) - 126):]
                 FROM walk AS w JOIN linked AS l ON l.above = w.number
           ), unreached AS MATERIALIZED (
               SELECT l.* FROM linked AS l WHERE l.number NOT IN (SELECT w.number FROM walk AS w)
           ), further AS (
               -- No chain closes a circle over another's nodes: what no root leads to hangs on no other chain's
               -- node, and begins a part of its own there, as an orphan does.
               SELECT l.number, l.node_id AS root_id, 1 AS depth, ARRAY[l.node_id] AS path, ARRAY[l.name] AS names
                 FROM unreached AS l
                WHERE l.foreign_link
               UNION ALL
               SELECT l.number, w.root_id, w.depth + 1,
                      (w.path || l.node_id)[greatest(1, cardinality(w.path) - 126):],
                      (w.names || l.name)[greatest(1, cardinality(w.names) - 126):]
                 FROM further AS w JOIN unreached AS l ON l.above = w.number AND NOT l.foreign_link
           )
           SELECT l.*, w.root_id, w.depth, w.path, w.names,
                  (l.above IS NULL OR u.number IS NOT NULL) AND l.parent_id IS NOT NULL AS orphan
             FROM linked AS l
             LEFT JOIN (SELECT * FROM walk UNION ALL SELECT * FROM further) AS w ON w.number = l.number
             LEFT JOIN unreached AS u ON u.number = l.number AND u.foreign_link) AS p
     WHERE NOT EXISTS (
           SELECT FROM trails.agent_audit_trails AS e
            WHERE e.tenant_id = f.tenant_id AND e.session_id = f.session_id
              AND (e.created_at, e.log_uuid, e.seq) < (f.created_at, f.log_uuid, f.seq)
           OFFSET 0)
$$;

-- A chain's own records without a session (their session_id is its log_uuid) are no session. What the guard charges
-- is units of a budget and stands in actions; cost adds up what was posted, in the senders' unit.
CREATE OR REPLACE FUNCTION trails.sessions_v1() RETURNS TABLE (
    tenant_id uuid, session_id uuid, agents text[], records bigint, nodes bigint, tool_calls bigint,
    failed_tool_calls bigint, depth integer, orphans bigint, input_tokens numeric, output_tokens numeric,
    total_tokens numeric, cost numeric, started_at timestamptz, ended_at timestamptz,
    first_recorded_at timestamptz, last_recorded_at timestamptz, has_output boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT f.tenant_id, f.session_id, r.agents, r.records, n.nodes, n.tool_calls, n.failed_tool_calls, p.depth,
           p.orphans, n.input_tokens, n.output_tokens, n.total_tokens, n.cost, n.started_at, n.ended_at,
           f.created_at, r.last_recorded_at, n.has_output
      FROM trails.agent_audit_trails AS f
      LEFT JOIN LATERAL (
           SELECT array_agg(DISTINCT t.agent_id ORDER BY t.agent_id) AS agents, count(*) AS records,
                  max(t.created_at) AS last_recorded_at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = f.tenant_id AND t.session_id = f.session_id) AS r ON true
      LEFT JOIN LATERAL (
           SELECT count(*) AS nodes,
                  count(*) FILTER (WHERE call) AS tool_calls,
                  count(*) FILTER (WHERE call AND t.status = 'failed') AS failed_tool_calls,
                  coalesce(sum(c.input) FILTER (WHERE c.own), sum(c.input)) AS input_tokens,
                  coalesce(sum(c.output) FILTER (WHERE c.own), sum(c.output)) AS output_tokens,
                  coalesce(sum(c.total) FILTER (WHERE c.own), sum(c.total)) AS total_tokens,
                  coalesce(sum(c.cost) FILTER (WHERE c.own), sum(c.cost)) AS cost,
                  min(c.started_at) AS started_at,
                  max(c.ended_at) AS ended_at,
                  coalesce(bool_or(t.node_type = 'OUTPUT'), false) AS has_output
             FROM trails.session_calls_v1(f.tenant_id, f.session_id) AS t
            -- Once a node: each of these is mentioned twice above.
            CROSS JOIN LATERAL (SELECT t.node_type IS DISTINCT FROM 'AGENT' AS own,
                                       t.node_type = 'TOOL_CALL' AND NOT t.inner_end AS call,
                                       trails.input_tokens_v1(t.metadata) AS input,
                                       trails.output_tokens_v1(t.metadata) AS output,
                                       trails.total_tokens_v1(t.metadata) AS total,
                                       CASE WHEN NOT t.guarded THEN trails.number_v1(t.metadata -> 'cost') END
                                           AS cost,
                                       trails.started_at_v1(t.metadata) AS started_at,
                                       trails.ended_at_v1(t.metadata) AS ended_at
                                OFFSET 0) AS c) AS n ON true
      LEFT JOIN LATERAL (
           SELECT max(t.depth) AS depth, count(*) FILTER (WHERE t.orphan) AS orphans
             FROM trails.session_paths_v1() AS t
            WHERE t.tenant_id = f.tenant_id AND t.session_id = f.session_id) AS p ON true
     WHERE f.session_id <> f.log_uuid
       AND NOT EXISTS (
           SELECT FROM trails.agent_audit_trails AS e
            WHERE e.tenant_id = f.tenant_id AND e.session_id = f.session_id AND e.session_id <> e.log_uuid
              AND (e.created_at, e.log_uuid, e.seq) < (f.created_at, f.log_uuid, f.seq)
           OFFSET 0)
$$;

COMMENT ON COLUMN trails.sessions.cost IS
    'Sum of the posted nodes'' cost, in whatever unit they were sent; what the guard charged stands in actions.';

-- ------------------------------------------------------------------------------------------- grants

GRANT SELECT, INSERT ON trails.sendings TO trails_app;
GRANT SELECT ON trails.sendings TO trails_auditor;
GRANT EXECUTE ON FUNCTION trails.uuid_v1(text), trails.outer_id_v1(jsonb), trails.node_ids_v1(jsonb),
    trails.sent_nodes_v1(jsonb), trails.marked_calls_v1(jsonb), trails.inner_ends_v1(jsonb),
    trails.inner_end_v1(uuid, uuid, uuid, text, text, uuid, text, text), trails.shown_nodes_v1(),
    trails.session_inner_ends_v1(uuid, uuid), trails.session_calls_v1(uuid, uuid)
    TO trails_app, trails_auditor;
