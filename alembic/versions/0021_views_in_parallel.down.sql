-- The views and casts as they were; no record is touched.
CREATE OR REPLACE FUNCTION trails.uuid_v1(written text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN written ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$'
                THEN written::uuid END;
END
$$;

CREATE OR REPLACE FUNCTION trails.instant_v1(written text) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    year     integer;
    month    integer;
    day      integer;
    longest  integer;
    fraction text;
    instant  timestamp;
BEGIN
    IF written IS NULL OR written !~ ('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])'
        'T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$') THEN
        RETURN NULL;
    END IF;
    year := substr(written, 1, 4)::integer;
    month := substr(written, 6, 2)::integer;
    day := substr(written, 9, 2)::integer;
    longest := CASE WHEN month IN (4, 6, 9, 11) THEN 30
                    WHEN month <> 2 THEN 31
                    WHEN year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0) THEN 29
                    ELSE 28 END;
    IF year = 0 OR day > longest THEN
        RETURN NULL;
    END IF;
    fraction := rpad(left(coalesce(substring(written FROM '\.([0-9]+)'), ''), 6), 6, '0');
    instant := make_timestamp(year, month, day, substr(written, 12, 2)::integer, substr(written, 15, 2)::integer,
                              (substr(written, 18, 2) || '.' || fraction)::double precision);
    IF right(written, 1) <> 'Z' THEN
        instant := instant - make_interval(hours => left(right(written, 6), 3)::integer,
                                           mins => (left(right(written, 6), 1) || right(written, 2))::integer);
        IF instant < timestamp '0001-01-01 00:00:00' OR instant >= timestamp '10000-01-01 00:00:00' THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN instant AT TIME ZONE 'UTC';
END
$$;

CREATE OR REPLACE FUNCTION trails.total_tokens_v1(metadata jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    tokens jsonb := metadata -> 'tokens';
    stated bigint;
    input  numeric;
    output numeric;
BEGIN
    IF jsonb_typeof(tokens) = 'number' THEN
        RETURN trails.count_v1(tokens);
    END IF;
    stated := trails.count_v1(coalesce(tokens -> 'total', tokens -> 'total_tokens'));
    IF stated IS NOT NULL THEN
        RETURN stated;
    END IF;
    input := trails.input_tokens_v1(metadata);
    output := trails.output_tokens_v1(metadata);
    RETURN trails.count_v1(to_jsonb(coalesce(input + output, input, output)));
END
$$;

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

CREATE OR REPLACE FUNCTION trails.daily_tool_calls_v1() RETURNS TABLE (
    tenant_id uuid, day date, agent_id text, tool text, calls bigint, succeeded bigint, failed bigint,
    harmful bigint, unknown bigint, denied bigint, sessions bigint, timed bigint, total_ms numeric,
    median_ms numeric, p95_ms numeric, max_ms numeric)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT s.tenant_id, d.at::date, c.agent_id, c.tool, c.calls, c.succeeded, c.failed, c.harmful, c.unknown,
           c.denied, c.sessions, c.timed, c.total_ms, c.median_ms, c.p95_ms, c.max_ms
      FROM (SELECT DISTINCT a.tenant_id FROM trails.agents AS a) AS s
     CROSS JOIN LATERAL (
           SELECT date_trunc('day', t.created_at AT TIME ZONE 'UTC') AS day
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = s.tenant_id
            ORDER BY t.created_at
            LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT t.created_at AT TIME ZONE 'UTC' AS at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = s.tenant_id
            ORDER BY t.created_at DESC
            LIMIT 1) AS last
     CROSS JOIN LATERAL generate_series(first.day, last.at, interval '1 day') AS d (at)
     CROSS JOIN LATERAL (
           SELECT t.agent_id, t.tool, count(*) AS calls,
                  count(*) FILTER (WHERE t.status = 'success') AS succeeded,
                  count(*) FILTER (WHERE t.status = 'failed') AS failed,
                  count(*) FILTER (WHERE t.status = 'harmful') AS harmful,
                  count(*) FILTER (WHERE t.status = 'unknown') AS unknown,
                  count(*) FILTER (WHERE t.status = 'denied') AS denied,
                  count(DISTINCT t.session_id) AS sessions,
                  count(t.duration_ms) AS timed, sum(t.duration_ms) AS total_ms,
                  percentile_disc(0.5) WITHIN GROUP (ORDER BY t.duration_ms) AS median_ms,
                  percentile_disc(0.95) WITHIN GROUP (ORDER BY t.duration_ms) AS p95_ms,
                  max(t.duration_ms) AS max_ms
             FROM trails.tool_calls_v1() AS t
            WHERE t.tenant_id = s.tenant_id
              AND t.recorded_at >= d.at AT TIME ZONE 'UTC'
              AND t.recorded_at < (d.at + interval '1 day') AT TIME ZONE 'UTC'
            GROUP BY t.agent_id, t.tool) AS c
$$;

CREATE OR REPLACE FUNCTION trails.model_usage_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, node_type text, name text, model text,
    calls bigint, input_tokens bigint, output_tokens bigint, total_tokens bigint, cost numeric,
    recorded_at timestamptz, log_uuid uuid, seq bigint, "position" bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT u.tenant_id, u.agent_id, u.session_id, u.node_id, u.node_type, u.name, u.model,
           CASE WHEN r.tokens THEN 1 ELSE 0 END::bigint,
           CASE WHEN r.tokens THEN u.input_tokens END, CASE WHEN r.tokens THEN u.output_tokens END,
           CASE WHEN r.tokens THEN u.total_tokens END, CASE WHEN r.cost THEN u.cost END,
           u.recorded_at, u.log_uuid, u.seq, u."position"
      FROM trails.shown_nodes_v1() AS u
     CROSS JOIN LATERAL (
           SELECT u.node_type IS DISTINCT FROM 'AGENT' OR NOT EXISTS (
                      SELECT FROM trails.shown_nodes_v1() AS n
                       WHERE n.tenant_id = u.tenant_id AND n.session_id = u.session_id
                         AND n.node_type IS DISTINCT FROM 'AGENT' AND n.total_tokens IS NOT NULL
                       OFFSET 0) AS tokens,
                  u.node_type IS DISTINCT FROM 'AGENT' OR NOT EXISTS (
                      SELECT FROM trails.shown_nodes_v1() AS n
                       WHERE n.tenant_id = u.tenant_id AND n.session_id = u.session_id
                         AND n.node_type IS DISTINCT FROM 'AGENT' AND n.cost IS NOT NULL AND n.action_id IS NULL
                       OFFSET 0) AS cost
           OFFSET 0) AS r
     WHERE u.metadata ?| '{model,tokens}'
       AND (u.node_type IS DISTINCT FROM 'TOOL_CALL' OR u.action_id IS NULL AND NOT u.inner_end)
       AND (u.model IS NOT NULL OR u.total_tokens IS NOT NULL)
       AND (r.tokens OR r.cost AND u.cost IS NOT NULL)
$$;

GRANT EXECUTE ON FUNCTION trails.shown_nodes_v1() TO trails_app, trails_auditor;
DROP FUNCTION trails.parts_tell_v1(uuid, uuid, jsonb, boolean, text), trails.shown_nodes_v2(),
              trails.shown_tree_v1(uuid, uuid, uuid, bigint, text, text, text, jsonb),
              trails.sent_times_v1(uuid, uuid, uuid, uuid), trails.replaced_v1(uuid, uuid, uuid, bigint, jsonb);
