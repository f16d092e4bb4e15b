-- The functions of the views as they were, without the index.
DROP TRIGGER index_sendings ON trails.agent_audit_trails;
DROP TABLE trails.sendings;
DROP FUNCTION trails.index_sendings_v1(), trails.check_sendings_v1();

CREATE OR REPLACE FUNCTION trails.trace_nodes_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, name text,
    status text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb, started_at timestamptz,
    ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint, output_tokens bigint,
    total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz, clock_skew interval,
    clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid, seq bigint, hash text,
    record_id bigint, trace_data jsonb)
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
           CASE WHEN g.guarded THEN t.trace_data ->> 'action_id' END,
           t.created_at,
           trails.started_at_v1(x.node -> 'metadata') - t.created_at,
           trails.started_at_v1(x.node -> 'metadata')
               NOT BETWEEN t.created_at - interval '24 hours' AND t.created_at + interval '5 minutes',
           coalesce((replaced.counts ->> lower(x.node ->> 'node_id'))::bigint, 1),
           x."position",
           t.kind,
           t.log_uuid,
           t.seq,
           t.hash,
           t.id,
           t.trace_data
      FROM trails.agent_audit_trails AS t
     CROSS JOIN LATERAL (SELECT t.kind IN ('outcome', 'action_denied', 'action_rejected') AS guarded) AS g
     CROSS JOIN LATERAL (
           SELECT coalesce(CASE WHEN NOT g.guarded THEN (
                      SELECT jsonb_object_agg(lower(i.id #>> '{}'), true)
                        FROM (SELECT jsonb_path_query(l.trace_data, 'lax $.trace_tree[*].node_id ? (@ != null)')
                                FROM trails.agent_audit_trails AS l
                               WHERE l.tenant_id = t.tenant_id AND l.session_id = t.session_id
                                 AND l.log_uuid = t.log_uuid
                                 AND (l.seq > t.seq OR l.kind IN ('outcome', 'action_denied', 'action_rejected'))
                             ) AS i (id)) END, '{}') AS ids,
                  -- Only for whom asks for sendings: a column that is not used is not computed.
                  CASE WHEN NOT g.guarded THEN (
                      SELECT jsonb_object_agg(c.id, c.sendings)
                        FROM (SELECT lower(i.id #>> '{}') AS id, count(*) AS sendings
                                FROM (SELECT jsonb_path_query(r.trace_data,
                                                              'lax $.trace_tree[*].node_id ? (@ != null)')
                                        FROM trails.agent_audit_trails AS r
                                       WHERE r.tenant_id = t.tenant_id AND r.session_id = t.session_id
                                         AND r.log_uuid = t.log_uuid
                                         AND r.kind NOT IN ('outcome', 'action_denied', 'action_rejected')
                                     ) AS i (id)
                               GROUP BY 1) AS c) END AS counts
           OFFSET 0) AS replaced
      -- The path uses no variable. To name the ids as its variables is what makes the planner ask for them
      -- first, once a record, and never again for each node.
     CROSS JOIN LATERAL jsonb_path_query(t.trace_data, 'lax $.trace_tree[*]', replaced.ids)
                        WITH ORDINALITY AS x (node, "position")
     WHERE (replaced.ids ? lower(x.node ->> 'node_id')) IS NOT TRUE
       AND (t.kind <> 'outcome' OR t.trace_data ->> 'status' IS DISTINCT FROM 'unknown'
            OR NOT EXISTS (
               SELECT FROM trails.agent_audit_trails AS o
                WHERE o.tenant_id = t.tenant_id AND o.log_uuid = t.log_uuid AND o.seq > t.seq
                  AND o.kind = 'outcome' AND o.trace_data ->> 'action_id' = t.trace_data ->> 'action_id'
               OFFSET 0))
$$;

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
     CROSS JOIN LATERAL (SELECT coalesce(lower(x.node ->> 'node_id'), t.seq || '/' || x."position") AS id) AS i
     WHERE t.tenant_id = tenant AND t.session_id = session
     ORDER BY t.log_uuid, i.id, g.guarded DESC, t.seq DESC, x."position" DESC
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
      FROM trails.trace_nodes_v1() AS n
     WHERE n.node_type = 'TOOL_CALL' AND n.metadata ->> 'nested_in' IS NULL
$$;

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
                 FROM trails.session_nodes_v1(s.tenant_id, s.session_id) AS n
                WHERE n.node_type IN ('TOOL_CALL', 'SELF_CORRECTION') AND n.metadata ->> 'nested_in' IS NULL
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
               SELECT DISTINCT ON (c.number) c.*, a.number AS above
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
           )
           SELECT l.*, w.root_id, w.depth, w.path, w.names,
                  l.above IS NULL AND l.parent_id IS NOT NULL AS orphan
             FROM linked AS l LEFT JOIN walk AS w ON w.number = l.number) AS p
     WHERE NOT EXISTS (
           SELECT FROM trails.agent_audit_trails AS e
            WHERE e.tenant_id = f.tenant_id AND e.session_id = f.session_id
              AND (e.created_at, e.log_uuid, e.seq) < (f.created_at, f.log_uuid, f.seq)
           OFFSET 0)
$$;

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
             FROM trails.session_nodes_v1(f.tenant_id, f.session_id) AS t
            -- Once a node: each of these is mentioned twice above.
            CROSS JOIN LATERAL (SELECT t.node_type IS DISTINCT FROM 'AGENT' AS own,
                                       t.node_type = 'TOOL_CALL' AND t.metadata ->> 'nested_in' IS NULL AS call,
                                       trails.input_tokens_v1(t.metadata) AS input,
                                       trails.output_tokens_v1(t.metadata) AS output,
                                       trails.total_tokens_v1(t.metadata) AS total,
                                       trails.number_v1(t.metadata -> 'cost') AS cost,
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

DROP FUNCTION trails.session_calls_v1(uuid, uuid), trails.session_inner_ends_v1(uuid, uuid),
              trails.shown_nodes_v1(),
              trails.inner_end_v1(uuid, uuid, uuid, text, text, uuid, text, text), trails.inner_ends_v1(jsonb),
              trails.marked_calls_v1(jsonb), trails.sent_nodes_v1(jsonb), trails.node_ids_v1(jsonb),
              trails.outer_id_v1(jsonb), trails.uuid_v1(text);

COMMENT ON COLUMN trails.sessions.cost IS 'Sum of the nodes'' cost, in whatever unit they were sent.';
