-- The views for auditors and dashboards, and the functions that they are made of.
--
-- A view here is only a list of columns; what it says is in the function of its name. The server inlines such
-- a function as it inlines a view, so that filters and indexes work the same. The text of a function is kept
-- byte for byte, while each version of PostgreSQL spells a view's definition anew: so the start-up check can
-- compare what the views say exactly, on every version.
--
-- One malformed document never breaks a query: every cast is guarded, what does not fit reads as NULL. All of
-- it runs with the rights of whoever asks (security_invoker views, SECURITY INVOKER functions), so that row
-- security decides.

-- ---------------------------------------------------------------------------------------- guarded casts

-- The SQL twin of app.trace.instant: the same texts are instants, cut to microseconds, never rounded.
CREATE FUNCTION trails.instant_v1(written text) RETURNS timestamptz
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

-- A JSON number that sums and averages can hold; JSONB itself takes numbers of 131,072 digits. Here and below
-- in PL/pgSQL, since an inlined body would take the value out of its document once for each mention.
CREATE FUNCTION trails.number_v1(value jsonb) RETURNS numeric
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        RETURN CASE WHEN abs(value::numeric) < 1e309 THEN value::numeric END;
    END IF;
    RETURN NULL;
END
$$;

-- A JSON number that counts something: whole, not negative, at most 2^63-1.
CREATE FUNCTION trails.count_v1(value jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        RETURN CASE WHEN value::numeric BETWEEN 0 AND 9223372036854775807 AND value::numeric = trunc(value::numeric)
                    THEN value::numeric::bigint END;
    END IF;
    RETURN NULL;
END
$$;

-- Nanoseconds since 1970 as OpenTelemetry writes them: a decimal string or a number; 0 means unknown.
CREATE FUNCTION trails.unix_nano_v1(value jsonb) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    nanos  numeric;
    micros numeric;
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        nanos := value::numeric;
    ELSIF jsonb_typeof(value) = 'string' AND value #>> '{}' ~ '^[0-9]{1,21}$' THEN
        nanos := (value #>> '{}')::numeric;
    END IF;
    IF nanos IS NULL OR nanos <= 0 OR nanos >= 253402300800000000000 THEN
        RETURN NULL;
    END IF;
    micros := div(nanos, 1000);
    -- In whole days and a rest: as one double it would lose microseconds, and time zones have days of 23 hours.
    RETURN (timestamp '1970-01-01 00:00:00'
            + make_interval(days => div(micros, 86400000000)::integer,
                            secs => (mod(micros, 86400000000) / 1000000)::double precision)) AT TIME ZONE 'UTC';
END
$$;

-- ------------------------------------------------------------------- what the metadata of a node say

CREATE FUNCTION trails.input_tokens_v1(metadata jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    tokens jsonb := metadata -> 'tokens';
BEGIN
    RETURN trails.count_v1(coalesce(tokens -> 'input', tokens -> 'prompt', tokens -> 'input_tokens',
                                    tokens -> 'prompt_tokens'));
END
$$;

CREATE FUNCTION trails.output_tokens_v1(metadata jsonb) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    tokens jsonb := metadata -> 'tokens';
BEGIN
    RETURN trails.count_v1(coalesce(tokens -> 'output', tokens -> 'completion', tokens -> 'output_tokens',
                                    tokens -> 'completion_tokens'));
END
$$;

-- One number, a stated total, or the sum of what was read and written.
CREATE FUNCTION trails.total_tokens_v1(metadata jsonb) RETURNS bigint
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

CREATE FUNCTION trails.started_at_v1(metadata jsonb) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN coalesce(trails.instant_v1(metadata ->> 'timestamp'),
                    trails.unix_nano_v1(metadata -> 'start_time_unix_nano'));
END
$$;

CREATE FUNCTION trails.ended_at_v1(metadata jsonb) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    ended  timestamptz := trails.unix_nano_v1(metadata -> 'end_time_unix_nano');
    millis numeric;
BEGIN
    IF ended IS NULL THEN
        millis := trails.number_v1(metadata -> 'duration_ms');
        -- At most thirty years; whole microseconds, since a numeric smaller than every double is an error as one.
        IF millis BETWEEN 0 AND 1e12 THEN
            ended := trails.started_at_v1(metadata)
                     + make_interval(secs => (round(millis * 1000) / 1000000)::double precision);
        END IF;
    END IF;
    -- Beyond the year 9999 many clients cannot read a time.
    RETURN CASE WHEN ended < timestamptz '10000-01-01 00:00:00+00' THEN ended END;
END
$$;

-- Why a call did not succeed, in words; NULL when it did or nothing was said.
CREATE FUNCTION trails.error_v1(outputs jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE WHEN outputs ->> 'status' IS DISTINCT FROM 'success'
                THEN coalesce(outputs -> 'error' ->> 'message', outputs ->> 'error',
                              nullif(outputs ->> 'detail', ''), outputs -> 'reason' ->> 'code',
                              outputs ->> 'reason') END;
END
$$;

-- ---------------------------------------------------------------------------------------------- records

-- A text as JSONB; NULL where it is none. For chain_check, which reads what somebody may have written by hand.
CREATE FUNCTION trails.json_v1(written text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE PARALLEL UNSAFE
AS $$
BEGIN
    RETURN written::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- The nodes of one record, in the order of its fragment. The path takes whatever trace_tree is without an error.
CREATE FUNCTION trails.nodes_v1(trace_data jsonb) RETURNS TABLE (node jsonb, "position" bigint)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT x.node, x."position"
      FROM jsonb_path_query(trace_data, 'lax $.trace_tree[*]') WITH ORDINALITY AS x (node, "position")
$$;

-- -------------------------------------------------------------------------------------------- the nodes

-- One row a node of a chain's part of a session: its latest sending, but what the guard wrote (an outcome, a
-- denial, a rejection) stands before whatever was posted under the same node_id, in whichever order. So a
-- posted node is left out when a later record of its session and chain, or one of the guard's, holds its id.
-- That is asked once a record, and answered by the index alone where the session has no other record. Of the
-- guard's own records only an outcome "unknown" can be followed by another. Neither a UNION nor a window
-- nor a join of all with all: a filter on time, session or chain, also one by a join, reaches the index.
CREATE FUNCTION trails.trace_nodes_v1() RETURNS TABLE (
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

-- The same choice for one session as a whole: read once, whatever its length.
CREATE FUNCTION trails.session_nodes_v1(tenant uuid, session uuid) RETURNS TABLE (
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

CREATE FUNCTION trails.tool_calls_v1() RETURNS TABLE (
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

-- States the predicate of the index trail_failed_tool_calls, so that only records with a failed call are read.
CREATE FUNCTION trails.failed_tool_calls_v1() RETURNS TABLE (
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

-- What came after a failed call to put it right: a SELF_CORRECTION node, or the same tool called again, below the
-- failed call or later under the same parent. Two times of the callers' clock decide what is later, else the
-- order of the records. Each session with a failed call is read once.
CREATE FUNCTION trails.corrections_v1() RETURNS TABLE (
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

-- ----------------------------------------------------------------------------------------- the sessions

-- The nodes of each session in their tree. A session is found by its first record, which the index tells
-- (OFFSET 0 keeps that question at the record, before the tree is built); its tree is built by itself, so
-- that a filter on session_id, also one by a join, builds no other. Who is not reached from a root stands
-- in a cycle or below one.
CREATE FUNCTION trails.session_paths_v1() RETURNS TABLE (
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

-- A chain's own records without a session (their session_id is its log_uuid) are no session.
CREATE FUNCTION trails.sessions_v1() RETURNS TABLE (
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

-- -------------------------------------------------------------------------------------------- the guard

-- One row an action that was requested, folded from the records that carry its id.
CREATE FUNCTION trails.actions_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, input jsonb, cost numeric,
    status text, decision text, reason_code text, reason jsonb, approved_by text, note text, rejected_by text,
    outcome text, outcome_detail text, late boolean, session_id uuid, parent_id text, thought_process text,
    requested_by text, requested_at timestamptz, decided_at timestamptz, completed_at timestamptz, seq bigint,
    held boolean, joins bigint, decider text)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.action_id,
           a.asked ->> 'tool', a.asked -> 'input', trails.number_v1(a.asked -> 'cost'),
           CASE WHEN a.reported IS NOT NULL THEN 'completed'
                WHEN a.allowed IS NOT NULL THEN 'allowed'
                WHEN coalesce(a.denied, a.rejected) IS NOT NULL THEN 'denied'
                WHEN a.held THEN 'pending_approval'
                ELSE 'requested' END,
           CASE WHEN a.allowed IS NOT NULL THEN 'allowed'
                WHEN a.rejected IS NOT NULL THEN 'rejected'
                WHEN a.denied IS NOT NULL THEN 'denied'
                WHEN a.held THEN 'pending_approval' END,
           CASE WHEN a.rejected IS NOT NULL THEN 'rejected' ELSE a.denied -> 'reason' ->> 'code' END,
           CASE WHEN a.rejected IS NOT NULL
                THEN jsonb_build_object('code', 'rejected', 'by', a.rejected -> 'by',
                                        'reason', a.rejected -> 'reason')
                ELSE a.denied -> 'reason' END,
           a.allowed ->> 'approved_by', a.allowed ->> 'note', a.rejected ->> 'by',
           a.reported ->> 'status', a.reported ->> 'detail', coalesce(a.reported -> 'late' = 'true'::jsonb, false),
           nullif(a.session_id, a.log_uuid), lower(a.asked ->> 'parent_id'), a.asked ->> 'thought_process',
           a.requested_by, a.requested_at, a.decided_at, a.completed_at, a.seq, a.held, a.joins, a.decider
      FROM (SELECT t.tenant_id, t.agent_id, t.log_uuid, t.trace_data ->> 'action_id' AS action_id,
                   (array_agg(t.trace_data ORDER BY t.seq) FILTER (WHERE t.kind = 'action_requested'))[1] AS asked,
                   (array_agg(t.trace_data ORDER BY t.seq) FILTER (WHERE t.kind = 'action_allowed'))[1] AS allowed,
                   (array_agg(t.trace_data ORDER BY t.seq) FILTER (WHERE t.kind = 'action_denied'))[1] AS denied,
                   (array_agg(t.trace_data ORDER BY t.seq) FILTER (WHERE t.kind = 'action_rejected'))[1] AS rejected,
                   (array_agg(t.trace_data ORDER BY t.seq DESC) FILTER (WHERE t.kind = 'outcome'))[1] AS reported,
                   (array_agg(t.session_id ORDER BY t.seq) FILTER (WHERE t.kind = 'action_requested'))[1]
                       AS session_id,
                   (array_agg(t.actor ORDER BY t.seq) FILTER (WHERE t.kind = 'action_requested'))[1]
                       AS requested_by,
                   (array_agg(t.actor ORDER BY t.seq) FILTER (
                       WHERE t.kind IN ('action_allowed', 'action_denied', 'action_rejected')))[1] AS decider,
                   min(t.created_at) FILTER (WHERE t.kind = 'action_requested') AS requested_at,
                   min(t.created_at) FILTER (
                       WHERE t.kind IN ('action_allowed', 'action_denied', 'action_rejected')) AS decided_at,
                   max(t.created_at) FILTER (WHERE t.kind = 'outcome') AS completed_at,
                   min(t.seq) FILTER (WHERE t.kind = 'action_requested') AS seq,
                   bool_or(t.kind = 'approval_required') AS held,
                   count(*) FILTER (WHERE t.kind = 'approval_required' AND t.trace_data -> 'joined' = 'true'::jsonb)
                       AS joins
              FROM trails.agent_audit_trails AS t
             WHERE t.kind IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                              'action_rejected', 'outcome')
             GROUP BY 1, 2, 3, 4) AS a
     WHERE a.asked IS NOT NULL AND a.action_id IS NOT NULL
$$;

CREATE FUNCTION trails.approvals_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, input jsonb, cost numeric,
    session_id uuid, requested_at timestamptz, decided_at timestamptz, waited interval, decision text,
    decided_by text, note text, joins bigint, seq bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.action_id, a.tool, a.input, a.cost, a.session_id,
           a.requested_at, a.decided_at, coalesce(a.decided_at, now()) - a.requested_at,
           CASE a.decision WHEN 'allowed' THEN 'approved' WHEN 'pending_approval' THEN 'pending'
                           ELSE a.decision END,
           coalesce(a.approved_by, a.rejected_by, a.decider),
           coalesce(a.note, a.reason ->> 'reason', a.reason_code),
           a.joins, a.seq
      FROM trails.actions_v1() AS a
     WHERE a.held
$$;

CREATE FUNCTION trails.scars_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, seq bigint, severity text, weight bigint, score_after bigint,
    reason text, action_id text, actor text, scarred_at timestamptz)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq, t.trace_data ->> 'severity', w.weight,
           least(sum(w.weight) OVER (PARTITION BY t.tenant_id, t.agent_id, t.log_uuid ORDER BY t.seq),
                 4294967295)::bigint,
           t.trace_data ->> 'reason', t.trace_data ->> 'action_id', t.actor, t.created_at
      FROM trails.agent_audit_trails AS t
     CROSS JOIN LATERAL (SELECT CASE t.trace_data ->> 'severity' WHEN 'minor' THEN 1::bigint WHEN 'moderate' THEN 3
                                     WHEN 'severe' THEN 10 WHEN 'fatal' THEN 4294967295 END AS weight) AS w
     WHERE t.kind = 'scar'
$$;

-- The fold of app.guard.state in SQL.
CREATE FUNCTION trails.agents_status_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, guarded boolean, alive boolean, termination_reason text,
    terminated_at timestamptz, budget numeric, spent numeric, remaining numeric, scar_score bigint,
    scar_limit bigint, actions_requested bigint, actions_allowed bigint, actions_denied bigint,
    actions_pending bigint, head_seq bigint, head_hash text, created_at timestamptz, last_record_at timestamptz)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.guarded, e.created_at IS NULL, e.reason, e.created_at,
           p.budget, c.spent, CASE WHEN p.budget IS NOT NULL THEN greatest(p.budget - c.spent, 0) END, s.score,
           p.scar_limit, c.requested, c.allowed, c.denied, c.pending, h.seq, h.hash, a.created_at, h.created_at
      FROM trails.agents AS a
      LEFT JOIN LATERAL (
           SELECT trails.number_v1(t.trace_data -> 'policy' -> 'budget') AS budget,
                  trails.count_v1(t.trace_data -> 'policy' -> 'scar_limit') AS scar_limit
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid AND t.seq = 1 AND t.kind = 'policy'
           ) AS p ON true
      LEFT JOIN LATERAL (
           SELECT t.trace_data ->> 'reason' AS reason, t.created_at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid AND t.kind = 'terminated'
            ORDER BY t.seq
            LIMIT 1) AS e ON true
      LEFT JOIN LATERAL (
           SELECT count(*) AS requested,
                  count(*) FILTER (WHERE t.decision = 'allowed') AS allowed,
                  count(*) FILTER (WHERE t.decision IN ('denied', 'rejected')) AS denied,
                  count(*) FILTER (WHERE t.decision = 'pending_approval') AS pending,
                  coalesce(sum(t.cost) FILTER (WHERE t.decision = 'allowed'), 0) AS spent
             FROM trails.actions_v1() AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid) AS c ON true
      LEFT JOIN LATERAL (
           SELECT coalesce(max(t.score_after), 0) AS score
             FROM trails.scars_v1() AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid) AS s ON true
      LEFT JOIN LATERAL (
           SELECT t.seq, t.hash, t.created_at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid
            ORDER BY t.seq DESC
            LIMIT 1) AS h ON true
$$;

-- --------------------------------------------------------------------------------------------- evidence

-- Everything that SQL can find out about the rows themselves; signatures are beyond it (trails verify).
CREATE FUNCTION trails.chain_check_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, seq bigint, hash_ok boolean, link_ok boolean, seq_ok boolean,
    mirror_ok boolean, ok boolean, problem text)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT c.tenant_id, c.agent_id, c.log_uuid, c.seq, c.hash_ok, c.link_ok, c.seq_ok, c.mirror_ok,
           c.hash_ok AND c.link_ok AND c.seq_ok AND c.mirror_ok,
           nullif(concat_ws('; ',
               CASE WHEN NOT c.hash_ok THEN 'hash is not the SHA-256 of the signed text' END,
               CASE WHEN NOT c.link_ok THEN 'prev_hash is not the hash of the record before' END,
               CASE WHEN NOT c.seq_ok THEN 'seq does not follow on the record before' END,
               CASE WHEN NOT c.mirror_ok THEN 'columns or trace_data are not what the signed text says' END), '')
      FROM (SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq,
                   coalesce(t.hash = encode(sha256(convert_to(E'lineage-audit-v1\n' || t.signed_text, 'UTF8')),
                                            'hex'), false) AS hash_ok,
                   coalesce(t.prev_hash = coalesce(lag(t.hash) OVER chain, repeat('0', 64)), false) AS link_ok,
                   coalesce(t.seq = coalesce(lag(t.seq) OVER chain + 1, 0), false) AS seq_ok,
                   coalesce(j.record @> jsonb_build_object(
                                'seq', t.seq, 'kind', t.kind, 'actor', t.actor, 'prev_hash', t.prev_hash, 'timestamp',
                                to_char(t.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
                            AND t.trace_data = j.record -> 'payload'
                            AND t.session_id::text
                                = lower(coalesce(j.record -> 'payload' ->> 'session_id', t.log_uuid::text))
                            AND t.idempotency_key IS NOT DISTINCT FROM
                                (j.record -> 'payload' -> 'idempotency' ->> 'key'), false) AS mirror_ok
              FROM trails.agent_audit_trails AS t
             CROSS JOIN LATERAL (SELECT trails.json_v1(t.signed_text) AS record OFFSET 0) AS j
            WINDOW chain AS (PARTITION BY t.tenant_id, t.agent_id, t.log_uuid ORDER BY t.seq)) AS c
$$;

-- -------------------------------------------------------------------------------------------- the views

CREATE VIEW trails.trace_nodes WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.session_id, v.node_id, v.parent_id, v.node_type, v.name, v.status,
           v.thought_process, v.inputs, v.outputs, v.metadata, v.started_at, v.ended_at, v.duration_ms,
           v.model, v.input_tokens, v.output_tokens, v.total_tokens, v.cost, v.action_id, v.recorded_at,
           v.clock_skew, v.clock_skewed, v.sendings, v."position", v.kind, v.log_uuid, v.seq, v.hash,
           v.record_id
      FROM trails.trace_nodes_v1() AS v;
COMMENT ON VIEW trails.trace_nodes IS
    'Nodes of all trace trees: one row a node that a chain sent to a session, by its latest sending; what'
    ' the guard recorded stands before what was posted under the same node_id.';
COMMENT ON COLUMN trails.trace_nodes.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.trace_nodes.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.trace_nodes.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.trace_nodes.node_id IS 'The node''s UUID, in lower case.';
COMMENT ON COLUMN trails.trace_nodes.parent_id IS 'node_id of the node above, in lower case; NULL at a root.';
COMMENT ON COLUMN trails.trace_nodes.node_type IS
    'PLANNING, TOOL_CALL, LLM_CALL, SELF_CORRECTION, OUTPUT and so on.';
COMMENT ON COLUMN trails.trace_nodes.name IS 'The node''s name; of a TOOL_CALL the tool''s.';
COMMENT ON COLUMN trails.trace_nodes.status IS
    'outputs.status: success, failed, harmful, unknown, denied, or whatever was sent.';
COMMENT ON COLUMN trails.trace_nodes.thought_process IS 'The agent''s stated reasoning.';
COMMENT ON COLUMN trails.trace_nodes.inputs IS 'What the node was given, any JSON.';
COMMENT ON COLUMN trails.trace_nodes.outputs IS 'What it gave back; status and error stand in it.';
COMMENT ON COLUMN trails.trace_nodes.metadata IS 'All that was sent beside: times, model, tokens, cost.';
COMMENT ON COLUMN trails.trace_nodes.started_at IS
    'When it began by the sender''s clock: metadata.timestamp, else start_time_unix_nano; cut to '
    'microseconds.';
COMMENT ON COLUMN trails.trace_nodes.ended_at IS
    'When it ended by the sender''s clock: metadata.end_time_unix_nano, else start and duration.';
COMMENT ON COLUMN trails.trace_nodes.duration_ms IS 'metadata.duration_ms, milliseconds.';
COMMENT ON COLUMN trails.trace_nodes.model IS 'metadata.model: the language model that was used.';
COMMENT ON COLUMN trails.trace_nodes.input_tokens IS
    'Tokens read: metadata.tokens.input, prompt, input_tokens or prompt_tokens.';
COMMENT ON COLUMN trails.trace_nodes.output_tokens IS
    'Tokens written: metadata.tokens.output, completion, output_tokens or completion_tokens.';
COMMENT ON COLUMN trails.trace_nodes.total_tokens IS
    'metadata.tokens as one number, its total, or the sum of both.';
COMMENT ON COLUMN trails.trace_nodes.cost IS
    'metadata.cost as sent; of a guarded action its cost in units of the policy''s budget.';
COMMENT ON COLUMN trails.trace_nodes.action_id IS
    'The guarded action whose end this node is, such as act-7; NULL for posted nodes.';
COMMENT ON COLUMN trails.trace_nodes.recorded_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.trace_nodes.clock_skew IS
    'started_at minus recorded_at: how far the sender''s clock, or its delivery, is off.';
COMMENT ON COLUMN trails.trace_nodes.clock_skewed IS
    'Whether started_at is more than 5 minutes ahead of the record or more than a day behind; NULL '
    'without started_at.';
COMMENT ON COLUMN trails.trace_nodes.sendings IS
    'How often its chain sent the node to the session; the latest is shown. Of a node that the guard '
    'wrote always 1.';
COMMENT ON COLUMN trails.trace_nodes."position" IS 'Place of the node in its record, from 1.';
COMMENT ON COLUMN trails.trace_nodes.kind IS
    'Kind of the record: trace for a posted node; outcome, action_denied or action_rejected for one that '
    'the guard wrote.';
COMMENT ON COLUMN trails.trace_nodes.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.trace_nodes.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.trace_nodes.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.trace_nodes.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.tool_calls WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.session_id, v.node_id, v.parent_id, v.node_type, v.tool, v.status,
           v.error, v.thought_process, v.inputs, v.outputs, v.metadata, v.started_at, v.ended_at,
           v.duration_ms, v.model, v.input_tokens, v.output_tokens, v.total_tokens, v.cost, v.action_id,
           v.recorded_at, v.clock_skew, v.clock_skewed, v.sendings, v."position", v.kind, v.log_uuid, v.seq,
           v.hash, v.record_id
      FROM trails.tool_calls_v1() AS v;
COMMENT ON VIEW trails.tool_calls IS
    'Calls of tools, guarded and observed: trace_nodes of type TOOL_CALL, without the second end of calls'
    ' that were seen from both (metadata.nested_in).';
COMMENT ON COLUMN trails.tool_calls.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.tool_calls.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.tool_calls.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.tool_calls.node_id IS 'The node''s UUID, in lower case.';
COMMENT ON COLUMN trails.tool_calls.parent_id IS 'node_id of the node above, in lower case; NULL at a root.';
COMMENT ON COLUMN trails.tool_calls.node_type IS 'Always TOOL_CALL.';
COMMENT ON COLUMN trails.tool_calls.tool IS 'The tool''s name, exactly as called.';
COMMENT ON COLUMN trails.tool_calls.status IS
    'outputs.status: success, failed, harmful, unknown, denied, or whatever was sent.';
COMMENT ON COLUMN trails.tool_calls.error IS
    'Why the call did not succeed: outputs.error.message, outputs.error, outputs.detail or '
    'outputs.reason; NULL when status is success.';
COMMENT ON COLUMN trails.tool_calls.thought_process IS 'The agent''s stated reasoning.';
COMMENT ON COLUMN trails.tool_calls.inputs IS 'What the node was given, any JSON.';
COMMENT ON COLUMN trails.tool_calls.outputs IS 'What it gave back; status and error stand in it.';
COMMENT ON COLUMN trails.tool_calls.metadata IS 'All that was sent beside: times, model, tokens, cost.';
COMMENT ON COLUMN trails.tool_calls.started_at IS
    'When it began by the sender''s clock: metadata.timestamp, else start_time_unix_nano; cut to '
    'microseconds.';
COMMENT ON COLUMN trails.tool_calls.ended_at IS
    'When it ended by the sender''s clock: metadata.end_time_unix_nano, else start and duration.';
COMMENT ON COLUMN trails.tool_calls.duration_ms IS 'metadata.duration_ms, milliseconds.';
COMMENT ON COLUMN trails.tool_calls.model IS 'metadata.model: the language model that was used.';
COMMENT ON COLUMN trails.tool_calls.input_tokens IS
    'Tokens read: metadata.tokens.input, prompt, input_tokens or prompt_tokens.';
COMMENT ON COLUMN trails.tool_calls.output_tokens IS
    'Tokens written: metadata.tokens.output, completion, output_tokens or completion_tokens.';
COMMENT ON COLUMN trails.tool_calls.total_tokens IS
    'metadata.tokens as one number, its total, or the sum of both.';
COMMENT ON COLUMN trails.tool_calls.cost IS
    'metadata.cost as sent; of a guarded action its cost in units of the policy''s budget.';
COMMENT ON COLUMN trails.tool_calls.action_id IS
    'The guarded action whose end this node is, such as act-7; NULL for posted nodes.';
COMMENT ON COLUMN trails.tool_calls.recorded_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.tool_calls.clock_skew IS
    'started_at minus recorded_at: how far the sender''s clock, or its delivery, is off.';
COMMENT ON COLUMN trails.tool_calls.clock_skewed IS
    'Whether started_at is more than 5 minutes ahead of the record or more than a day behind; NULL '
    'without started_at.';
COMMENT ON COLUMN trails.tool_calls.sendings IS
    'How often its chain sent the node to the session; the latest is shown. Of a node that the guard '
    'wrote always 1.';
COMMENT ON COLUMN trails.tool_calls."position" IS 'Place of the node in its record, from 1.';
COMMENT ON COLUMN trails.tool_calls.kind IS
    'Kind of the record: trace for a posted node; outcome, action_denied or action_rejected for one that '
    'the guard wrote.';
COMMENT ON COLUMN trails.tool_calls.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.tool_calls.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.tool_calls.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.tool_calls.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.failed_tool_calls WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.session_id, v.node_id, v.parent_id, v.node_type, v.tool, v.status,
           v.error, v.thought_process, v.inputs, v.outputs, v.metadata, v.started_at, v.ended_at,
           v.duration_ms, v.model, v.input_tokens, v.output_tokens, v.total_tokens, v.cost, v.action_id,
           v.recorded_at, v.clock_skew, v.clock_skewed, v.sendings, v."position", v.kind, v.log_uuid, v.seq,
           v.hash, v.record_id
      FROM trails.failed_tool_calls_v1() AS v;
COMMENT ON VIEW trails.failed_tool_calls IS
    'Calls of tools that failed and were not sent again with another end. Reads only records with a '
    'failed call (index trail_failed_tool_calls).';
COMMENT ON COLUMN trails.failed_tool_calls.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.failed_tool_calls.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.failed_tool_calls.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.failed_tool_calls.node_id IS 'The node''s UUID, in lower case.';
COMMENT ON COLUMN trails.failed_tool_calls.parent_id IS
    'node_id of the node above, in lower case; NULL at a root.';
COMMENT ON COLUMN trails.failed_tool_calls.node_type IS 'Always TOOL_CALL.';
COMMENT ON COLUMN trails.failed_tool_calls.tool IS 'The tool''s name, exactly as called.';
COMMENT ON COLUMN trails.failed_tool_calls.status IS 'Always failed.';
COMMENT ON COLUMN trails.failed_tool_calls.error IS
    'Why the call did not succeed: outputs.error.message, outputs.error, outputs.detail or '
    'outputs.reason; NULL when status is success.';
COMMENT ON COLUMN trails.failed_tool_calls.thought_process IS 'The agent''s stated reasoning.';
COMMENT ON COLUMN trails.failed_tool_calls.inputs IS 'What the node was given, any JSON.';
COMMENT ON COLUMN trails.failed_tool_calls.outputs IS 'What it gave back; status and error stand in it.';
COMMENT ON COLUMN trails.failed_tool_calls.metadata IS
    'All that was sent beside: times, model, tokens, cost.';
COMMENT ON COLUMN trails.failed_tool_calls.started_at IS
    'When it began by the sender''s clock: metadata.timestamp, else start_time_unix_nano; cut to '
    'microseconds.';
COMMENT ON COLUMN trails.failed_tool_calls.ended_at IS
    'When it ended by the sender''s clock: metadata.end_time_unix_nano, else start and duration.';
COMMENT ON COLUMN trails.failed_tool_calls.duration_ms IS 'metadata.duration_ms, milliseconds.';
COMMENT ON COLUMN trails.failed_tool_calls.model IS 'metadata.model: the language model that was used.';
COMMENT ON COLUMN trails.failed_tool_calls.input_tokens IS
    'Tokens read: metadata.tokens.input, prompt, input_tokens or prompt_tokens.';
COMMENT ON COLUMN trails.failed_tool_calls.output_tokens IS
    'Tokens written: metadata.tokens.output, completion, output_tokens or completion_tokens.';
COMMENT ON COLUMN trails.failed_tool_calls.total_tokens IS
    'metadata.tokens as one number, its total, or the sum of both.';
COMMENT ON COLUMN trails.failed_tool_calls.cost IS
    'metadata.cost as sent; of a guarded action its cost in units of the policy''s budget.';
COMMENT ON COLUMN trails.failed_tool_calls.action_id IS
    'The guarded action whose end this node is, such as act-7; NULL for posted nodes.';
COMMENT ON COLUMN trails.failed_tool_calls.recorded_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.failed_tool_calls.clock_skew IS
    'started_at minus recorded_at: how far the sender''s clock, or its delivery, is off.';
COMMENT ON COLUMN trails.failed_tool_calls.clock_skewed IS
    'Whether started_at is more than 5 minutes ahead of the record or more than a day behind; NULL '
    'without started_at.';
COMMENT ON COLUMN trails.failed_tool_calls.sendings IS
    'How often its chain sent the node to the session; the latest is shown. Of a node that the guard '
    'wrote always 1.';
COMMENT ON COLUMN trails.failed_tool_calls."position" IS 'Place of the node in its record, from 1.';
COMMENT ON COLUMN trails.failed_tool_calls.kind IS
    'Kind of the record: trace for a posted node; outcome, action_denied or action_rejected for one that '
    'the guard wrote.';
COMMENT ON COLUMN trails.failed_tool_calls.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.failed_tool_calls.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.failed_tool_calls.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.failed_tool_calls.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.corrections WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.session_id, v.agent_id, v.failed_node_id, v.tool, v.error, v.failed_at,
           v.recorded_at, v.relation, v.correction_node_id, v.correction_type, v.correction_name,
           v.correction_status, v.correction_at, v.correction_agent_id
      FROM trails.corrections_v1() AS v;
COMMENT ON VIEW trails.corrections IS
    'Failed calls with what came after to put them right: a SELF_CORRECTION node or the same tool again, '
    'below the failed call or later under the same parent. One row a pair.';
COMMENT ON COLUMN trails.corrections.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.corrections.session_id IS 'The session of both nodes.';
COMMENT ON COLUMN trails.corrections.agent_id IS 'The agent whose call failed.';
COMMENT ON COLUMN trails.corrections.failed_node_id IS 'node_id of the failed call.';
COMMENT ON COLUMN trails.corrections.tool IS 'The tool''s name, exactly as called.';
COMMENT ON COLUMN trails.corrections.error IS 'Why the call failed.';
COMMENT ON COLUMN trails.corrections.failed_at IS
    'When the failed call began by the sender''s clock, else when it was recorded.';
COMMENT ON COLUMN trails.corrections.recorded_at IS
    'Time of the failed call''s record, by the server''s clock: filter by this.';
COMMENT ON COLUMN trails.corrections.relation IS
    'child (below the failed call) or sibling (later under the same parent).';
COMMENT ON COLUMN trails.corrections.correction_node_id IS 'node_id of the correcting node.';
COMMENT ON COLUMN trails.corrections.correction_type IS 'Its node_type: SELF_CORRECTION or TOOL_CALL.';
COMMENT ON COLUMN trails.corrections.correction_name IS 'Its name.';
COMMENT ON COLUMN trails.corrections.correction_status IS
    'Its outputs.status: success means that the correction worked.';
COMMENT ON COLUMN trails.corrections.correction_at IS
    'When it began by the sender''s clock, else when it was recorded.';
COMMENT ON COLUMN trails.corrections.correction_agent_id IS 'The agent that corrected.';

CREATE VIEW trails.session_paths WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.session_id, v.agent_id, v.node_id, v.parent_id, v.node_type, v.name, v.status,
           v.depth, v.path, v.names, v.root_id, v.orphan, v.cyclic, v.sendings, v."order", v.log_uuid, v.seq
      FROM trails.session_paths_v1() AS v;
COMMENT ON VIEW trails.session_paths IS
    'Each node with its way down from the root of its session''s tree, over all agents that took part. '
    'Filter on session_id: every session''s tree is built by itself.';
COMMENT ON COLUMN trails.session_paths.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.session_paths.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.session_paths.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.session_paths.node_id IS 'The node''s UUID, in lower case.';
COMMENT ON COLUMN trails.session_paths.parent_id IS
    'node_id of the node above, in lower case; NULL at a root.';
COMMENT ON COLUMN trails.session_paths.node_type IS
    'PLANNING, TOOL_CALL, LLM_CALL, SELF_CORRECTION, OUTPUT and so on.';
COMMENT ON COLUMN trails.session_paths.name IS 'The node''s name; of a TOOL_CALL the tool''s.';
COMMENT ON COLUMN trails.session_paths.status IS
    'outputs.status: success, failed, harmful, unknown, denied, or whatever was sent.';
COMMENT ON COLUMN trails.session_paths.depth IS
    'Levels from the root (1) to the node; an orphan counts as a root; NULL for nodes in or below a '
    'cycle.';
COMMENT ON COLUMN trails.session_paths.path IS
    'node_ids from the root to the node itself, of deep nodes the last 128; NULL where depth is.';
COMMENT ON COLUMN trails.session_paths.names IS 'Names along path.';
COMMENT ON COLUMN trails.session_paths.root_id IS
    'node_id of the root, or of the orphan, that the path begins at.';
COMMENT ON COLUMN trails.session_paths.orphan IS 'Whether the node names a parent that never came.';
COMMENT ON COLUMN trails.session_paths.cyclic IS
    'Whether the node stands in a cycle of parents, or below one.';
COMMENT ON COLUMN trails.session_paths.sendings IS
    'How often its chain sent the node to the session; the latest is shown. Of a node that the guard '
    'wrote always 1.';
COMMENT ON COLUMN trails.session_paths."order" IS
    'Order within the session by time and place of recording, from 1.';
COMMENT ON COLUMN trails.session_paths.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.session_paths.seq IS 'Place of the record in its chain.';

CREATE VIEW trails.sessions WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.session_id, v.agents, v.records, v.nodes, v.tool_calls, v.failed_tool_calls,
           v.depth, v.orphans, v.input_tokens, v.output_tokens, v.total_tokens, v.cost, v.started_at,
           v.ended_at, v.first_recorded_at, v.last_recorded_at, v.has_output
      FROM trails.sessions_v1() AS v;
COMMENT ON VIEW trails.sessions IS
    'Sessions with their sizes, sums and times. Tokens and cost are summed without AGENT nodes, which '
    'repeat the sums of what is below them, unless only these have any.';
COMMENT ON COLUMN trails.sessions.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.sessions.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.sessions.agents IS 'The agents that took part, in order.';
COMMENT ON COLUMN trails.sessions.records IS 'Records of the session.';
COMMENT ON COLUMN trails.sessions.nodes IS 'Nodes of the session (rows of trace_nodes).';
COMMENT ON COLUMN trails.sessions.tool_calls IS 'Calls of tools (rows of tool_calls).';
COMMENT ON COLUMN trails.sessions.failed_tool_calls IS 'Calls of tools that failed.';
COMMENT ON COLUMN trails.sessions.depth IS 'Levels of the tree; NULL without nodes.';
COMMENT ON COLUMN trails.sessions.orphans IS 'Nodes whose parent never came.';
COMMENT ON COLUMN trails.sessions.input_tokens IS 'Sum of the nodes'' input_tokens.';
COMMENT ON COLUMN trails.sessions.output_tokens IS 'Sum of the nodes'' output_tokens.';
COMMENT ON COLUMN trails.sessions.total_tokens IS 'Sum of the nodes'' total_tokens.';
COMMENT ON COLUMN trails.sessions.cost IS 'Sum of the nodes'' cost, in whatever unit they were sent.';
COMMENT ON COLUMN trails.sessions.started_at IS 'First start of a node by the senders'' clocks.';
COMMENT ON COLUMN trails.sessions.ended_at IS 'Last end of a node by the senders'' clocks.';
COMMENT ON COLUMN trails.sessions.first_recorded_at IS
    'Time of the session''s first record, by the server''s clock.';
COMMENT ON COLUMN trails.sessions.last_recorded_at IS
    'Time of the session''s last record, by the server''s clock.';
COMMENT ON COLUMN trails.sessions.has_output IS 'Whether any node is of type OUTPUT.';

CREATE VIEW trails.actions WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.status, v.decision,
           v.reason_code, v.reason, v.approved_by, v.note, v.rejected_by, v.outcome, v.outcome_detail, v.late,
           v.session_id, v.parent_id, v.thought_process, v.requested_by, v.requested_at, v.decided_at,
           v.completed_at, v.seq
      FROM trails.actions_v1() AS v;
COMMENT ON VIEW trails.actions IS
    'Actions that were asked of the guard: what was asked, what was decided and by whom, and how it '
    'ended.';
COMMENT ON COLUMN trails.actions.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.actions.agent_id IS 'The agent that asked.';
COMMENT ON COLUMN trails.actions.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.actions.action_id IS 'The action''s id within its agent''s chain, such as act-7.';
COMMENT ON COLUMN trails.actions.tool IS 'The tool that was asked for.';
COMMENT ON COLUMN trails.actions.input IS 'What the tool was to be called with, as asked.';
COMMENT ON COLUMN trails.actions.cost IS 'What is or would be charged, in units of the policy''s budget.';
COMMENT ON COLUMN trails.actions.status IS 'requested, pending_approval, allowed, denied or completed.';
COMMENT ON COLUMN trails.actions.decision IS
    'allowed, denied (by the policy), rejected (by a person) or pending_approval; NULL while undecided.';
COMMENT ON COLUMN trails.actions.reason_code IS
    'Why it was denied: terminated, tool_not_allowed, tool_call_limit, rate_limited, insufficient_budget,'
    ' rejected.';
COMMENT ON COLUMN trails.actions.reason IS 'The reason in full, with the figures that decided.';
COMMENT ON COLUMN trails.actions.approved_by IS 'Who approved; NULL when no approval was needed.';
COMMENT ON COLUMN trails.actions.note IS 'What the approver noted.';
COMMENT ON COLUMN trails.actions.rejected_by IS 'Who rejected.';
COMMENT ON COLUMN trails.actions.outcome IS 'success, failure, harmful or unknown; NULL until reported.';
COMMENT ON COLUMN trails.actions.outcome_detail IS 'What was reported with the outcome.';
COMMENT ON COLUMN trails.actions.late IS 'Whether the outcome was reported after the agent''s termination.';
COMMENT ON COLUMN trails.actions.session_id IS 'The session that the request named; NULL for none.';
COMMENT ON COLUMN trails.actions.parent_id IS 'The node that the action was asked under, in lower case.';
COMMENT ON COLUMN trails.actions.thought_process IS 'The agent''s stated reason.';
COMMENT ON COLUMN trails.actions.requested_by IS 'Actor of the request: the agent, or the API key used.';
COMMENT ON COLUMN trails.actions.requested_at IS 'When it was asked.';
COMMENT ON COLUMN trails.actions.decided_at IS 'When it was allowed, denied or rejected.';
COMMENT ON COLUMN trails.actions.completed_at IS 'When the outcome was reported; the last one after unknown.';
COMMENT ON COLUMN trails.actions.seq IS 'Place of the request in its chain.';

CREATE VIEW trails.approvals WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.session_id,
           v.requested_at, v.decided_at, v.waited, v.decision, v.decided_by, v.note, v.joins, v.seq
      FROM trails.approvals_v1() AS v;
COMMENT ON VIEW trails.approvals IS
    'Actions that were held for a person: what waits, who decided and how long it took.';
COMMENT ON COLUMN trails.approvals.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.approvals.agent_id IS 'The agent that asked.';
COMMENT ON COLUMN trails.approvals.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.approvals.action_id IS 'The action''s id within its agent''s chain.';
COMMENT ON COLUMN trails.approvals.tool IS 'The tool that was asked for.';
COMMENT ON COLUMN trails.approvals.input IS 'What the tool was to be called with, as asked.';
COMMENT ON COLUMN trails.approvals.cost IS 'What is or would be charged, in units of the policy''s budget.';
COMMENT ON COLUMN trails.approvals.session_id IS 'The session that the request named; NULL for none.';
COMMENT ON COLUMN trails.approvals.requested_at IS 'When it was asked.';
COMMENT ON COLUMN trails.approvals.decided_at IS 'When it was decided; NULL while it waits.';
COMMENT ON COLUMN trails.approvals.waited IS 'From the request to the decision, or to now.';
COMMENT ON COLUMN trails.approvals.decision IS
    'approved, rejected (by the person), denied (by the policy, when it was to be approved) or pending.';
COMMENT ON COLUMN trails.approvals.decided_by IS 'Who decided.';
COMMENT ON COLUMN trails.approvals.note IS 'The approver''s note, or the reason of a rejection or denial.';
COMMENT ON COLUMN trails.approvals.joins IS 'How often the same was asked again while it waited.';
COMMENT ON COLUMN trails.approvals.seq IS 'Place of the request in its chain.';

CREATE VIEW trails.scars WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.seq, v.severity, v.weight, v.score_after, v.reason,
           v.action_id, v.actor, v.scarred_at
      FROM trails.scars_v1() AS v;
COMMENT ON VIEW trails.scars IS 'Scars of guarded agents, each with the score that it led to.';
COMMENT ON COLUMN trails.scars.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.scars.agent_id IS 'The scarred agent.';
COMMENT ON COLUMN trails.scars.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.scars.seq IS 'Place of the scar in its chain.';
COMMENT ON COLUMN trails.scars.severity IS 'minor, moderate, severe or fatal.';
COMMENT ON COLUMN trails.scars.weight IS 'What it adds to the score: 1, 3, 10, 4294967295.';
COMMENT ON COLUMN trails.scars.score_after IS
    'The agent''s score with this scar; it saturates at 4294967295.';
COMMENT ON COLUMN trails.scars.reason IS 'Why.';
COMMENT ON COLUMN trails.scars.action_id IS 'The action that left it; NULL when none did.';
COMMENT ON COLUMN trails.scars.actor IS 'Who caused it: the agent, or the API key used.';
COMMENT ON COLUMN trails.scars.scarred_at IS 'When.';

CREATE VIEW trails.agents_status WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.guarded, v.alive, v.termination_reason, v.terminated_at,
           v.budget, v.spent, v.remaining, v.scar_score, v.scar_limit, v.actions_requested, v.actions_allowed,
           v.actions_denied, v.actions_pending, v.head_seq, v.head_hash, v.created_at, v.last_record_at
      FROM trails.agents_status_v1() AS v;
COMMENT ON VIEW trails.agents_status IS
    'Agents and where they stand: alive or not, budget, scars, actions, and the head of their chain.';
COMMENT ON COLUMN trails.agents_status.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.agents_status.agent_id IS 'The agent.';
COMMENT ON COLUMN trails.agents_status.log_uuid IS 'Its chain.';
COMMENT ON COLUMN trails.agents_status.guarded IS
    'Whether it has a policy; an observed agent has traces and events only.';
COMMENT ON COLUMN trails.agents_status.alive IS 'Whether no termination is on record.';
COMMENT ON COLUMN trails.agents_status.termination_reason IS 'Why it was terminated.';
COMMENT ON COLUMN trails.agents_status.terminated_at IS 'When it was terminated.';
COMMENT ON COLUMN trails.agents_status.budget IS 'The policy''s budget; NULL for an observed agent.';
COMMENT ON COLUMN trails.agents_status.spent IS 'Sum of the costs of allowed actions.';
COMMENT ON COLUMN trails.agents_status.remaining IS 'What is left of the budget.';
COMMENT ON COLUMN trails.agents_status.scar_score IS
    'Sum of the scars'' weights; it saturates at 4294967295.';
COMMENT ON COLUMN trails.agents_status.scar_limit IS 'The score at which the agent is terminated.';
COMMENT ON COLUMN trails.agents_status.actions_requested IS 'Actions asked for.';
COMMENT ON COLUMN trails.agents_status.actions_allowed IS 'Actions allowed.';
COMMENT ON COLUMN trails.agents_status.actions_denied IS 'Actions denied or rejected.';
COMMENT ON COLUMN trails.agents_status.actions_pending IS 'Actions that wait for a person.';
COMMENT ON COLUMN trails.agents_status.head_seq IS 'seq of the chain''s last record.';
COMMENT ON COLUMN trails.agents_status.head_hash IS
    'Hash of the chain''s last record: keep it elsewhere, a cut tail shows by it alone.';
COMMENT ON COLUMN trails.agents_status.created_at IS 'When the agent was created.';
COMMENT ON COLUMN trails.agents_status.last_record_at IS 'Time of its last record.';

CREATE VIEW trails.chain_check WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.seq, v.hash_ok, v.link_ok, v.seq_ok, v.mirror_ok, v.ok,
           v.problem
      FROM trails.chain_check_v1() AS v;
COMMENT ON VIEW trails.chain_check IS
    'Every record with what SQL can check of it: hash, link, order, and that the columns say what the '
    'signed text says. Signatures and cut tails need trails verify.';
COMMENT ON COLUMN trails.chain_check.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.chain_check.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.chain_check.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.chain_check.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.chain_check.hash_ok IS 'Whether hash is the SHA-256 of the signed text.';
COMMENT ON COLUMN trails.chain_check.link_ok IS 'Whether prev_hash is the hash of the record before.';
COMMENT ON COLUMN trails.chain_check.seq_ok IS 'Whether seq follows on the record before; the first is 0.';
COMMENT ON COLUMN trails.chain_check.mirror_ok IS
    'Whether columns and trace_data say what the signed text says.';
COMMENT ON COLUMN trails.chain_check.ok IS 'Whether all of this holds.';
COMMENT ON COLUMN trails.chain_check.problem IS 'What is wrong; NULL when ok.';

-- ------------------------------------------------------------------------------------------- grants

GRANT SELECT ON trails.trace_nodes, trails.tool_calls, trails.failed_tool_calls, trails.corrections,
                trails.session_paths, trails.sessions, trails.actions, trails.approvals, trails.scars,
                trails.agents_status, trails.chain_check
    TO trails_app, trails_auditor;
GRANT EXECUTE ON FUNCTION trails.instant_v1(text), trails.number_v1(jsonb), trails.count_v1(jsonb),
    trails.unix_nano_v1(jsonb), trails.input_tokens_v1(jsonb), trails.output_tokens_v1(jsonb),
    trails.total_tokens_v1(jsonb), trails.started_at_v1(jsonb), trails.ended_at_v1(jsonb),
    trails.error_v1(jsonb), trails.json_v1(text), trails.nodes_v1(jsonb), trails.trace_nodes_v1(),
    trails.session_nodes_v1(uuid, uuid), trails.tool_calls_v1(), trails.failed_tool_calls_v1(),
    trails.corrections_v1(), trails.session_paths_v1(), trails.sessions_v1(), trails.actions_v1(),
    trails.approvals_v1(), trails.scars_v1(), trails.agents_status_v1(), trails.chain_check_v1()
    TO trails_app, trails_auditor;
