-- Which sessions used the most tokens, and what did they cost?
--
-- Money and budget are two columns: cost is whatever the senders of nodes call cost, budget_spent what the guard
-- charged, in units of the policies' budgets; what was denied cost nothing. What an AGENT node says again of its
-- parts is left out where the parts say it themselves; a call seen from both ends counts by its outer one.
--
-- Parameters:
--   since  timestamptz  -    Sessions that began at this time or later.
--   until  timestamptz  -    Sessions that began before this time.
--   most   integer      100  Sessions at most.
--
-- Columns:
--   session_id         The session.
--   agents             The agents that took part.
--   nodes              Nodes of its tree.
--   failed_tool_calls  Tool calls that failed.
--   input_tokens       Tokens read.
--   output_tokens      Tokens written.
--   total_tokens       All tokens.
--   cost               Costs of posted nodes together, in the unit that was sent; empty where none was.
--   budget_spent       What its allowed actions were charged, reported or not; empty where none was asked for.
--   first_recorded_at  When its first record was signed.
WITH chosen AS MATERIALIZED (
    SELECT tenant_id, session_id, agents, nodes, failed_tool_calls, first_recorded_at
      FROM trails.sessions
     WHERE first_recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND first_recorded_at < coalesce(:until::timestamptz, 'infinity')
), node AS (
    -- No node is recorded before its session began.
    SELECT tenant_id, session_id, node_type, input_tokens, output_tokens, total_tokens, cost, action_id
      FROM trails.trace_nodes
     WHERE node_type IS DISTINCT FROM 'TOOL_CALL' AND metadata ?| '{tokens,cost}'
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
    UNION ALL
    SELECT tenant_id, session_id, node_type, input_tokens, output_tokens, total_tokens, cost, action_id
      FROM trails.tool_calls
     WHERE metadata ?| '{tokens,cost}'
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
), told AS MATERIALIZED (
    SELECT tenant_id, session_id,
           coalesce(sum(input_tokens) FILTER (WHERE node_type IS DISTINCT FROM 'AGENT'), sum(input_tokens))
               AS input_tokens,
           coalesce(sum(output_tokens) FILTER (WHERE node_type IS DISTINCT FROM 'AGENT'), sum(output_tokens))
               AS output_tokens,
           coalesce(sum(total_tokens) FILTER (WHERE node_type IS DISTINCT FROM 'AGENT'), sum(total_tokens))
               AS total_tokens,
           -- The node of a guarded action says what it would have cost, in units of the budget, denied or not.
           coalesce(sum(cost) FILTER (WHERE action_id IS NULL AND node_type IS DISTINCT FROM 'AGENT'),
                    sum(cost) FILTER (WHERE action_id IS NULL)) AS cost
      FROM node
     GROUP BY tenant_id, session_id
), charged AS MATERIALIZED (
    SELECT tenant_id, session_id, coalesce(sum(cost) FILTER (WHERE decision = 'allowed'), 0) AS budget_spent
      FROM trails.actions
     WHERE session_id IS NOT NULL
     GROUP BY tenant_id, session_id
)
SELECT s.session_id, s.agents, s.nodes, s.failed_tool_calls, t.input_tokens, t.output_tokens, t.total_tokens,
       t.cost, c.budget_spent, s.first_recorded_at
  FROM chosen AS s
  LEFT JOIN told AS t ON t.tenant_id = s.tenant_id AND t.session_id = s.session_id
  LEFT JOIN charged AS c ON c.tenant_id = s.tenant_id AND c.session_id = s.session_id
 ORDER BY t.total_tokens DESC NULLS LAST, t.cost DESC NULLS LAST, c.budget_spent DESC NULLS LAST,
          s.first_recorded_at, s.session_id
 LIMIT :most::integer;
