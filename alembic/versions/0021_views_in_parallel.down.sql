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

DROP FUNCTION trails.parts_tell_v1(uuid, uuid, jsonb, boolean, text), trails.shown_nodes_v2(),
              trails.shown_tree_v1(uuid, uuid, uuid, bigint, text, text, text, jsonb),
              trails.sent_times_v1(uuid, uuid, uuid, uuid), trails.replaced_v1(uuid, uuid, uuid, bigint, jsonb);

CREATE OR REPLACE FUNCTION trails.failed_tool_calls_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, tool text,
    status text, error text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb,
    started_at timestamptz, ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint,
    output_tokens bigint, total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz,
    clock_skew interval, clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid,
    seq bigint, hash text, record_id bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT c.tenant_id, c.agent_id, c.session_id, c.node_id, c.parent_id, c.node_type, c.tool, c.status, c.error,
           c.thought_process, c.inputs, c.outputs, c.metadata, c.started_at, c.ended_at, c.duration_ms, c.model,
           c.input_tokens, c.output_tokens, c.total_tokens, c.cost, c.action_id, c.recorded_at, c.clock_skew,
           c.clock_skewed, c.sendings, c."position", c.kind, c.log_uuid, c.seq, c.hash, c.record_id
      FROM trails.tool_calls_v1() AS c
     WHERE c.status = 'failed'
       AND c.trace_data @> '{"trace_tree": [{"outputs": {"status": "failed"}, "node_type": "TOOL_CALL"}]}'::jsonb
$$;
