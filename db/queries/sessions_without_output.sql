-- Which sessions ended without an OUTPUT node: cut off, given up, or still running?
--
-- Parameters:
--   since  timestamptz  -  Sessions that began at this time or later.
--   until  timestamptz  -  Sessions that began before this time.
--   quiet  integer      0  Only sessions without a record for this many minutes.
--
-- Columns:
--   session_id         The session.
--   agents             The agents that took part.
--   nodes              Nodes of its tree.
--   failed_tool_calls  Tool calls that failed.
--   first_recorded_at  When its first record was signed.
--   last_recorded_at   When its last record was signed.
SELECT session_id, agents, nodes, failed_tool_calls, first_recorded_at, last_recorded_at
  FROM trails.sessions
 WHERE NOT has_output
   AND first_recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND first_recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND last_recorded_at <= now() - make_interval(mins => :quiet::integer)
 ORDER BY first_recorded_at, session_id;
