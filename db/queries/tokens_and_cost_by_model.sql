-- How many tokens did each model use, and what did it cost?
--
-- What an AGENT node says again of its parts is left out where the parts say it themselves.
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
SELECT n.model, count(*) AS calls, sum(n.input_tokens) AS input_tokens, sum(n.output_tokens) AS output_tokens,
       sum(n.total_tokens) AS total_tokens, sum(n.cost) AS cost
  FROM (SELECT n.*, bool_or(n.node_type IS DISTINCT FROM 'AGENT' AND n.total_tokens IS NOT NULL)
                        OVER (PARTITION BY n.tenant_id, n.session_id) AS told_by_parts
          FROM trails.trace_nodes AS n
         WHERE n.recorded_at >= coalesce(:since::timestamptz, '-infinity')
           AND n.recorded_at < coalesce(:until::timestamptz, 'infinity')
           AND (:agent::text IS NULL OR n.agent_id = :agent)) AS n
 WHERE (n.model IS NOT NULL OR n.total_tokens IS NOT NULL)
   AND NOT (n.node_type IS NOT DISTINCT FROM 'AGENT' AND n.told_by_parts)
 GROUP BY n.model
 ORDER BY total_tokens DESC NULLS LAST, n.model;
