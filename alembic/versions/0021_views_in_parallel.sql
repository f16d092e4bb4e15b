-- The views of nodes, calls and models open each document once and may be read by several processes at once. Before,
-- every record was asked for its other sendings by sub-selects of the view, which PostgreSQL runs in one process only;
-- now functions ask, which workers may call. What the views show is the same.

-- ------------------------------------------------------------------------------------ lighter casts

-- The same texts are UUIDs as before. An expression for all 36 characters is put together anew for each text that it
-- looks at; one for a single character takes a third of that (1 µs instead of 3).
CREATE OR REPLACE FUNCTION trails.uuid_v1(written text) RETURNS uuid
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN written LIKE '________-____-____-____-____________'
                     AND length(replace(written, '-', '')) = 32 AND written !~ '[^0-9a-fA-F-]'
                THEN written::uuid END;
END
$$;

-- The same instants as before. Most senders write UTC, and those of the first 28 days of a month need no look at its
-- length: PostgreSQL reads these as they stand, once they are cut to microseconds.
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
    IF right(written, 1) = 'Z' AND length(written) <= 27 AND substr(written, 9, 2) <= '28'
       AND left(written, 4) <> '0000' THEN
        RETURN left(written, -1)::timestamp AT TIME ZONE 'UTC';
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

-- The same numbers, with a call of one function for each part that there is instead of three.
CREATE OR REPLACE FUNCTION trails.total_tokens_v1(metadata jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    tokens constant jsonb := metadata -> 'tokens';
    part   jsonb;
    stated bigint;
    input  numeric;
    output numeric;
BEGIN
    IF tokens IS NULL THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(tokens) = 'number' THEN
        RETURN trails.count_v1(tokens);
    END IF;
    part := coalesce(tokens -> 'total', tokens -> 'total_tokens');
    IF part IS NOT NULL THEN
        stated := trails.count_v1(part);
        IF stated IS NOT NULL THEN
            RETURN stated;
        END IF;
    END IF;
    input := trails.count_v1(coalesce(tokens -> 'input', tokens -> 'prompt', tokens -> 'input_tokens',
                                      tokens -> 'prompt_tokens'));
    output := trails.count_v1(coalesce(tokens -> 'output', tokens -> 'completion', tokens -> 'output_tokens',
                                       tokens -> 'completion_tokens'));
    input := coalesce(input + output, input, output);
    RETURN CASE WHEN input <= 9223372036854775807 THEN input::bigint END;
END
$$;

-- -------------------------------------------------------------------------------------- one record

-- Of a record in a session that the index of sendings knows: the ids of its nodes that another record stands for, a
-- later one of its chain or one of the guard's; NULL when there are none. Each question is answered by one look at
-- one index; the settings are those of check_append_v1, and one plan for all calls: to plan anew took half of each.
CREATE FUNCTION trails.replaced_v1(tenant uuid, session uuid, log uuid, place bigint, tree jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Mostly the guard wrote nothing in a session, and one look tells.
    with_guard constant boolean := (SELECT true
                                      FROM trails.sendings AS s
                                     WHERE s.tenant_id = tenant AND s.session_id = session AND s.guarded
                                     ORDER BY s.node_id, s.log_uuid, s.seq
                                     LIMIT 1);
BEGIN
    RETURN (SELECT jsonb_object_agg(i.node_id, true)
              FROM trails.node_ids_v1(tree) AS i
             WHERE (SELECT s.seq
                      FROM trails.sendings AS s
                     WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = i.node_id
                       AND s.log_uuid = log
                     ORDER BY s.seq DESC
                     LIMIT 1) > place
                OR with_guard
                   AND (SELECT s.seq
                          FROM trails.sendings AS s
                         WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = i.node_id
                           AND s.log_uuid = log AND s.guarded
                         ORDER BY s.seq DESC
                         LIMIT 1) IS NOT NULL);
END
$$;

-- How often a node was posted in its chain's part of a session.
CREATE FUNCTION trails.sent_times_v1(tenant uuid, session uuid, log uuid, node uuid) RETURNS bigint
    LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN greatest(1, (SELECT count(*)
                          FROM trails.sendings AS s
                         WHERE s.tenant_id = tenant AND s.session_id = session AND s.node_id = node
                           AND s.log_uuid = log));
END
$$;

-- What has to be known of a record before its nodes are shown. Its tree, taken out of its document once: NULL where it
-- holds none, or where it is an outcome "unknown" that another one follows. The ids that are left out of it and the
-- places of its calls that are inner ends, as objects; NULL where there are none. And whether the index of sendings
-- knows its session: if not, no other record tells of its nodes.
--
-- Called for every record that a view reads, so it has no settings of its own: those of the functions above are asked
-- for where a session has several records. The order makes one index answer, the sequential scan of a small table
-- apart.
CREATE FUNCTION trails.shown_tree_v1(
    tenant uuid, session uuid, log uuid, place bigint, agent text, poster text, kind text, document jsonb,
    OUT tree jsonb, OUT replaced jsonb, OUT inner_ends jsonb, OUT indexed boolean)
    LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    guarded constant boolean := kind IN ('outcome', 'action_denied', 'action_rejected');
BEGIN
    tree := document -> 'trace_tree';
    IF tree IS NULL THEN
        RETURN;
    END IF;
    IF kind = 'outcome' AND document ->> 'status' = 'unknown' AND EXISTS (
           SELECT FROM trails.agent_audit_trails AS o
            WHERE o.tenant_id = tenant AND o.log_uuid = log AND o.seq > place AND o.kind = 'outcome'
              AND o.trace_data ->> 'action_id' = document ->> 'action_id'
           OFFSET 0) THEN
        tree := NULL;
        RETURN;
    END IF;
    indexed := coalesce((SELECT true
                           FROM trails.sendings AS s
                          WHERE s.tenant_id = tenant AND s.session_id = session
                          ORDER BY s.node_id, s.log_uuid, s.seq
                          LIMIT 1), false);
    IF indexed AND NOT guarded THEN
        replaced := trails.replaced_v1(tenant, session, log, place, tree);
    END IF;
    IF tree @? 'lax $[*].metadata.nested_in' THEN
        inner_ends := CASE WHEN indexed THEN (
            SELECT jsonb_object_agg(m."position", true)
              FROM trails.marked_calls_v1(tree) AS m
             WHERE trails.inner_end_v1(tenant, session, log, agent, poster, m.outer_id, m.tool, m.status))
            ELSE trails.inner_ends_v1(tree) END;
    END IF;
END
$$;

-- -------------------------------------------------------------------------------------------- the nodes

-- The nodes as before, and the tree that each is of. Every look at another record is in a function: a sub-select, or
-- a fence such as OFFSET 0, would keep all of it in one process.
CREATE FUNCTION trails.shown_nodes_v2() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, name text,
    status text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb, started_at timestamptz,
    ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint, output_tokens bigint,
    total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz, clock_skew interval,
    clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid, seq bigint, hash text,
    record_id bigint, trace_data jsonb, inner_end boolean, tree jsonb, indexed boolean)
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
           CASE WHEN t.kind IN ('outcome', 'action_denied', 'action_rejected')
                THEN t.trace_data ->> 'action_id' END,
           t.created_at,
           trails.started_at_v1(x.node -> 'metadata') - t.created_at,
           trails.started_at_v1(x.node -> 'metadata')
               NOT BETWEEN t.created_at - interval '24 hours' AND t.created_at + interval '5 minutes',
           CASE WHEN r.indexed AND t.kind NOT IN ('outcome', 'action_denied', 'action_rejected')
                THEN trails.sent_times_v1(t.tenant_id, t.session_id, t.log_uuid,
                                          trails.uuid_v1(x.node ->> 'node_id'))
                ELSE 1 END,
           x."position",
           t.kind,
           t.log_uuid,
           t.seq,
           t.hash,
           t.id,
           t.trace_data,
           coalesce(r.inner_ends ? x."position"::text, false),
           r.tree,
           r.indexed
      FROM trails.agent_audit_trails AS t
     CROSS JOIN LATERAL trails.shown_tree_v1(t.tenant_id, t.session_id, t.log_uuid, t.seq, t.agent_id, t.actor,
                                             t.kind, t.trace_data) AS r
     CROSS JOIN LATERAL jsonb_path_query(r.tree, 'lax $[*]') WITH ORDINALITY AS x (node, "position")
     WHERE CASE WHEN r.replaced IS NULL THEN true
                ELSE (r.replaced ? lower(x.node ->> 'node_id')) IS NOT TRUE END
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
      FROM trails.shown_nodes_v2() AS n
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
      FROM trails.shown_nodes_v2() AS n
     WHERE n.node_type = 'TOOL_CALL' AND NOT n.inner_end
$$;

-- ------------------------------------------------------------------------------------------- by day

-- A day at a time, as before. What is counted is taken out of each node once (OFFSET 0), and no node is sorted with it.
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
             FROM (SELECT n.agent_id, n.tool, n.status, n.session_id, n.duration_ms
                     FROM trails.tool_calls_v1() AS n
                    WHERE n.tenant_id = s.tenant_id
                      AND n.recorded_at >= d.at AT TIME ZONE 'UTC'
                      AND n.recorded_at < (d.at + interval '1 day') AT TIME ZONE 'UTC'
                   OFFSET 0) AS t
            GROUP BY t.agent_id, t.tool) AS c
$$;

-- ------------------------------------------------------------------------------------------- models

-- Whether the parts of a session tell their tokens (or their cost) themselves: a node that is no AGENT. Of a session
-- that the index of sendings does not know the one tree at hand is all of it, except that guarded nodes may stand in
-- a record of a chain without a session.
CREATE FUNCTION trails.parts_tell_v1(tenant uuid, session uuid, tree jsonb, indexed boolean, wanted text)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
    IF EXISTS (SELECT FROM jsonb_path_query(tree, 'lax $[*]') AS x (node)
                WHERE NOT indexed AND wanted = 'tokens' AND x.node ->> 'node_type' IS DISTINCT FROM 'AGENT'
                  AND trails.total_tokens_v1(x.node -> 'metadata') IS NOT NULL) THEN
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM trails.shown_nodes_v2() AS n
                    WHERE n.tenant_id = tenant AND n.session_id = session
                      AND n.node_type IS DISTINCT FROM 'AGENT'
                      AND CASE wanted WHEN 'tokens' THEN n.total_tokens IS NOT NULL
                                      ELSE n.cost IS NOT NULL AND n.action_id IS NULL END
                    OFFSET 0);
END
$$;

-- The same figures. What the parts tell is asked for nodes of agents alone.
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
      FROM trails.shown_nodes_v2() AS u
     CROSS JOIN LATERAL (
           SELECT CASE WHEN u.node_type IS DISTINCT FROM 'AGENT' THEN true
                       ELSE NOT trails.parts_tell_v1(u.tenant_id, u.session_id, u.tree, u.indexed, 'tokens')
                       END AS tokens,
                  CASE WHEN u.node_type IS DISTINCT FROM 'AGENT' THEN true
                       ELSE NOT trails.parts_tell_v1(u.tenant_id, u.session_id, u.tree, u.indexed, 'cost')
                       END AS cost) AS r
     WHERE u.metadata ?| '{model,tokens}'
       AND (u.node_type IS DISTINCT FROM 'TOOL_CALL' OR u.action_id IS NULL AND NOT u.inner_end)
       AND (u.model IS NOT NULL OR u.total_tokens IS NOT NULL)
       AND (r.tokens OR u.cost IS NOT NULL AND r.cost)
$$;

-- --------------------------------------------------------------------------------------- failed calls

-- The calls of tool_calls that failed, by the definition of before: of the few records that the index names each is
-- looked at by itself, and looks that stand in the query cost half of what they cost in a function.
CREATE OR REPLACE FUNCTION trails.failed_tool_calls_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, parent_id text, node_type text, tool text,
    status text, error text, thought_process text, inputs jsonb, outputs jsonb, metadata jsonb,
    started_at timestamptz, ended_at timestamptz, duration_ms numeric, model text, input_tokens bigint,
    output_tokens bigint, total_tokens bigint, cost numeric, action_id text, recorded_at timestamptz,
    clock_skew interval, clock_skewed boolean, sendings bigint, "position" bigint, kind text, log_uuid uuid,
    seq bigint, hash text, record_id bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT n.tenant_id, n.agent_id, n.session_id, n.node_id, n.parent_id, n.node_type, n.name, n.status,
           trails.error_v1(n.outputs),
           n.thought_process, n.inputs, n.outputs, n.metadata, n.started_at, n.ended_at, n.duration_ms, n.model,
           n.input_tokens, n.output_tokens, n.total_tokens, n.cost, n.action_id, n.recorded_at, n.clock_skew,
           n.clock_skewed, n.sendings, n."position", n.kind, n.log_uuid, n.seq, n.hash, n.record_id
      FROM trails.shown_nodes_v1() AS n
     WHERE n.node_type = 'TOOL_CALL' AND NOT n.inner_end AND n.status = 'failed'
       AND n.trace_data @> '{"trace_tree": [{"outputs": {"status": "failed"}, "node_type": "TOOL_CALL"}]}'::jsonb
$$;

-- ------------------------------------------------------------------------------------------- grants

GRANT EXECUTE ON FUNCTION trails.replaced_v1(uuid, uuid, uuid, bigint, jsonb),
    trails.sent_times_v1(uuid, uuid, uuid, uuid),
    trails.shown_tree_v1(uuid, uuid, uuid, bigint, text, text, text, jsonb), trails.shown_nodes_v2(),
    trails.parts_tell_v1(uuid, uuid, jsonb, boolean, text)
    TO trails_app, trails_auditor;
