-- How many calls of each tool failed on each day?
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Calls of this agent alone.
--
-- Columns:
--   day       The day (UTC) on which the call was recorded.
--   tool      The tool's name, exactly as called.
--   failed    Calls that failed.
--   agents    Agents that had such a call.
--   sessions  Sessions that had one.
SELECT (recorded_at AT TIME ZONE 'UTC')::date AS day, tool, count(*) AS failed,
       count(DISTINCT agent_id) AS agents, count(DISTINCT session_id) AS sessions
  FROM trails.failed_tool_calls
 WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 GROUP BY day, tool
 ORDER BY day, failed DESC, tool;
