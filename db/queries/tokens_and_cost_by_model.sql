-- How many tokens did each model use, and what did it cost?
--
-- What an AGENT node says again of its parts is left out where its session's parts say it themselves, also when
-- these were recorded at another time or by another agent than asked for; a call seen from both ends counts by
-- its outer one. Guarded actions are not in it: what they cost is charged to a budget (see budget_burn).
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Nodes of this agent alone.
--
-- Columns:
--   model          The model's name as sent; empty where tokens were sent without one.
--   calls          Nodes that name it or its tokens.
--   input_tokens   Tokens read.
--   output_tokens  Tokens written.
--   total_tokens   All tokens.
--   cost           Costs together, in the unit that was sent; empty where none was.
WITH used AS MATERIALIZED (
    SELECT tenant_id, session_id, node_type, model, input_tokens, output_tokens, total_tokens, cost
      FROM trails.trace_nodes
     WHERE node_type IS DISTINCT FROM 'TOOL_CALL'
       AND metadata ?| '{model,tokens}' AND (model IS NOT NULL OR total_tokens IS NOT NULL)
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
       AND (:agent::text IS NULL OR agent_id = :agent)
    UNION ALL
    SELECT tenant_id, session_id, node_type, model, input_tokens, output_tokens, total_tokens, cost
      FROM trails.tool_calls
     WHERE action_id IS NULL
       AND metadata ?| '{model,tokens}' AND (model IS NOT NULL OR total_tokens IS NOT NULL)
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
       AND (:agent::text IS NULL OR agent_id = :agent)
), parts AS MATERIALIZED (
    -- Of each session with an AGENT node: what do its other nodes tell, all of them?
    SELECT s.tenant_id, s.session_id, bool_or(n.total_tokens IS NOT NULL) AS tokens,
           bool_or(n.cost IS NOT NULL AND n.action_id IS NULL) AS cost
      FROM (SELECT DISTINCT tenant_id, session_id FROM used WHERE node_type = 'AGENT') AS s
      JOIN trails.trace_nodes AS n ON n.tenant_id = s.tenant_id AND n.session_id = s.session_id
     WHERE n.node_type IS DISTINCT FROM 'AGENT'
     GROUP BY s.tenant_id, s.session_id
)
SELECT u.model,
       count(*) FILTER (WHERE r.tokens) AS calls,
       sum(u.input_tokens) FILTER (WHERE r.tokens) AS input_tokens,
       sum(u.output_tokens) FILTER (WHERE r.tokens) AS output_tokens,
       sum(u.total_tokens) FILTER (WHERE r.tokens) AS total_tokens,
       sum(u.cost) FILTER (WHERE r.cost) AS cost
  FROM used AS u
  LEFT JOIN parts AS p ON p.tenant_id = u.tenant_id AND p.session_id = u.session_id
 CROSS JOIN LATERAL (SELECT u.node_type IS DISTINCT FROM 'AGENT' OR p.tokens IS NOT TRUE AS tokens,
                            u.node_type IS DISTINCT FROM 'AGENT' OR p.cost IS NOT TRUE AS cost) AS r
 WHERE r.tokens OR (r.cost AND u.cost IS NOT NULL)
 GROUP BY u.model
 ORDER BY total_tokens DESC NULLS LAST, u.model;
