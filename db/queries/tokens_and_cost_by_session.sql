-- Which sessions used the most tokens, and what did they cost?
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
--   cost               Costs together, in the unit that was sent.
--   first_recorded_at  When its first record was signed.
SELECT session_id, agents, nodes, failed_tool_calls, input_tokens, output_tokens, total_tokens, cost,
       first_recorded_at
  FROM trails.sessions
 WHERE first_recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND first_recorded_at < coalesce(:until::timestamptz, 'infinity')
 ORDER BY total_tokens DESC NULLS LAST, cost DESC NULLS LAST, first_recorded_at, session_id
 LIMIT :most::integer;
