-- name: rows
-- The records of one session after a place and up to a time, in the order in which they were recorded: about
-- the bytes in $8 at a time, as for a chain. A chain's own records without a session are no session.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM (SELECT page.*,
               sum(octet_length(signed_text)) OVER (ORDER BY created_at, log_uuid, seq)
                   - octet_length(signed_text) AS before
          FROM (SELECT *
                  FROM trails.agent_audit_trails
                 WHERE tenant_id = $1 AND session_id = $2 AND session_id <> log_uuid
                   AND (created_at, log_uuid, seq) > ($3, $4, $5) AND created_at <= $6
                 ORDER BY created_at, log_uuid, seq
                 LIMIT $7) AS page) AS measured
 WHERE before < $8
 ORDER BY created_at, log_uuid, seq;

-- name: extent
-- How many records a session has and the time of the last one, from the index alone: whether it is still the one
-- that was read a moment ago.
SELECT count(*) AS records, max(created_at) AS last
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND session_id = $2 AND session_id <> log_uuid;

-- name: candidates
-- Where sessions begin, newest first, among the next $6 records: a session is found at its first record alone,
-- which the index of sessions tells. The last place that was looked at comes too, so that the next page goes on
-- there. Ties are never cut, since the next page begins behind them.
SELECT p.created_at, p.session_id,
       p.own IS NOT TRUE AND (SELECT e.created_at
                                FROM trails.agent_audit_trails AS e
                               WHERE e.tenant_id = $1 AND e.session_id = p.session_id
                                 AND e.session_id <> e.log_uuid
                               ORDER BY e.created_at, e.log_uuid, e.seq
                               LIMIT 1) = p.created_at AS begins,
       p.looked_at
  FROM (SELECT r.created_at, r.session_id, bool_and(r.session_id = r.log_uuid) AS own,
               sum(count(*)) OVER () AS looked_at,
               lead(r.created_at) OVER (ORDER BY r.created_at DESC, r.session_id DESC) IS NULL AS last
          FROM (SELECT t.created_at, t.session_id, t.log_uuid
                  FROM trails.agent_audit_trails AS t
                 WHERE t.tenant_id = $1 AND t.created_at >= $2 AND t.created_at < $3
                   AND t.created_at <= $4 AND (t.created_at, t.session_id) < ($4, $5)
                 ORDER BY t.created_at DESC, t.session_id DESC
                 FETCH FIRST $6 ROWS WITH TIES) AS r
         GROUP BY r.created_at, r.session_id) AS p
 WHERE p.last OR NOT p.own
 ORDER BY p.created_at DESC, p.session_id DESC;

-- name: sizes
-- How much signed text each of these sessions has: what looking into it costs. The length of a long text is told
-- without reading it.
SELECT s.session_id,
       (SELECT coalesce(sum(octet_length(t.signed_text)), 0)
          FROM trails.agent_audit_trails AS t
         WHERE t.tenant_id = $1 AND t.session_id = s.session_id AND t.session_id <> t.log_uuid)::bigint AS size
  FROM unnest($2::uuid[]) AS s (session_id);

-- name: matching
-- Which of these sessions are wanted, in the order given, at most $7: an agent took part, and one node has all
-- of the status, the tool and the type that are asked for. Containment first: it is cheap, and what it leaves
-- out has no such node in any sending.
SELECT s.session_id
  FROM unnest($2::uuid[]) WITH ORDINALITY AS s (session_id, place)
 WHERE ($3::text IS NULL OR EXISTS (
           SELECT FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = $1 AND t.session_id = s.session_id AND t.session_id <> t.log_uuid
              AND t.agent_id = $3))
   AND ($4::text IS NULL AND $5::text IS NULL AND $6::text IS NULL
        OR EXISTS (
           SELECT FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = $1 AND t.session_id = s.session_id AND t.session_id <> t.log_uuid
              AND t.trace_data @> jsonb_build_object('trace_tree', jsonb_build_array(jsonb_strip_nulls(
                      jsonb_build_object('outputs', CASE WHEN $4::text IS NOT NULL
                                                         THEN jsonb_build_object('status', $4::text) END,
                                         'name', $5::text, 'node_type', $6::text)))))
       AND EXISTS (
           SELECT FROM trails.session_nodes_v1($1, s.session_id) AS n
            WHERE n.log_uuid <> s.session_id
              AND ($4::text IS NULL OR n.status = $4)
              AND ($5::text IS NULL OR n.name = $5 AND n.node_type = 'TOOL_CALL')
              AND ($6::text IS NULL OR n.node_type = $6)))
 ORDER BY s.place
 LIMIT $7;

-- name: entries
-- What a list says of sessions, as the view trails.sessions counts it; reading one of them verifies it. Each is
-- asked for by itself: as a filter on the view it takes a bad plan on a table without statistics, such as a
-- young one.
SELECT i.session_id, r.agents, r.records, n.nodes, n.tool_calls, n.failed_tool_calls,
       r.first_recorded_at, r.last_recorded_at
  FROM unnest($2::uuid[]) AS i (session_id)
 CROSS JOIN LATERAL (
       SELECT array_agg(DISTINCT t.agent_id ORDER BY t.agent_id) AS agents, count(*) AS records,
              min(t.created_at) AS first_recorded_at, max(t.created_at) AS last_recorded_at
         FROM trails.agent_audit_trails AS t
        WHERE t.tenant_id = $1 AND t.session_id = i.session_id AND t.session_id <> t.log_uuid) AS r
 CROSS JOIN LATERAL (
       SELECT count(*) AS nodes,
              count(*) FILTER (WHERE m.node_type = 'TOOL_CALL' AND NOT m.inner_end) AS tool_calls,
              count(*) FILTER (WHERE m.node_type = 'TOOL_CALL' AND NOT m.inner_end AND m.status = 'failed')
                  AS failed_tool_calls
         FROM trails.session_calls_v1($1, i.session_id) AS m
        WHERE m.log_uuid <> i.session_id) AS n
 WHERE r.records > 0;

-- name: sums
-- Calls of these sessions, what they used and when their senders say that they ran, as the view trails.sessions counts it.
SELECT i.session_id, n.tool_calls, n.failed_tool_calls, n.total_tokens, n.cost, n.started_at, n.ended_at
  FROM unnest($2::uuid[]) AS i (session_id)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE c.call) AS tool_calls,
              count(*) FILTER (WHERE c.call AND t.status = 'failed') AS failed_tool_calls,
              coalesce(sum(c.total) FILTER (WHERE c.own), sum(c.total)) AS total_tokens,
              coalesce(sum(c.cost) FILTER (WHERE c.own), sum(c.cost)) AS cost,
              min(c.started_at) AS started_at, max(c.ended_at) AS ended_at
         FROM trails.session_calls_v1($1, i.session_id) AS t
        -- Once a node: each of these is mentioned twice above.
        CROSS JOIN LATERAL (SELECT t.node_type IS DISTINCT FROM 'AGENT' AS own,
                                   t.node_type = 'TOOL_CALL' AND NOT t.inner_end AS call,
                                   trails.total_tokens_v1(t.metadata) AS total,
                                   CASE WHEN NOT t.guarded THEN trails.number_v1(t.metadata -> 'cost') END AS cost,
                                   trails.started_at_v1(t.metadata) AS started_at,
                                   trails.ended_at_v1(t.metadata) AS ended_at
                            OFFSET 0) AS c
        WHERE t.log_uuid <> i.session_id) AS n;

-- name: models
-- Tokens and cost of one session by model: the rule of the auditors' query tokens_and_cost_by_model.
WITH node AS MATERIALIZED (
    SELECT t.node_type, t.metadata ->> 'model' AS model, t.guarded, t.inner_end,
           trails.input_tokens_v1(t.metadata) AS input_tokens, trails.output_tokens_v1(t.metadata) AS output_tokens,
           trails.total_tokens_v1(t.metadata) AS total_tokens,
           CASE WHEN NOT t.guarded THEN trails.number_v1(t.metadata -> 'cost') END AS cost
      FROM trails.session_calls_v1($1, $2) AS t
     WHERE t.log_uuid <> $2
), parts AS MATERIALIZED (
    SELECT bool_or(total_tokens IS NOT NULL) AS tokens, bool_or(cost IS NOT NULL) AS cost
      FROM node WHERE node_type IS DISTINCT FROM 'AGENT'
)
SELECT u.model,
       count(*) FILTER (WHERE r.tokens) AS calls,
       sum(u.input_tokens) FILTER (WHERE r.tokens) AS input_tokens,
       sum(u.output_tokens) FILTER (WHERE r.tokens) AS output_tokens,
       sum(u.total_tokens) FILTER (WHERE r.tokens) AS total_tokens,
       sum(u.cost) FILTER (WHERE r.cost) AS cost
  FROM node AS u
 CROSS JOIN parts AS p
 CROSS JOIN LATERAL (SELECT u.node_type IS DISTINCT FROM 'AGENT' OR p.tokens IS NOT TRUE AS tokens,
                            u.node_type IS DISTINCT FROM 'AGENT' OR p.cost IS NOT TRUE AS cost) AS r
 WHERE NOT u.guarded AND NOT u.inner_end AND (u.model IS NOT NULL OR u.total_tokens IS NOT NULL)
   AND (r.tokens OR (r.cost AND u.cost IS NOT NULL))
 GROUP BY u.model
 ORDER BY total_tokens DESC NULLS LAST, u.model
 LIMIT 50;
