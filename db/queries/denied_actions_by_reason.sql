-- What did the guard deny, and why?
--
-- Parameters:
--   since  timestamptz  -  Decided at this time or later.
--   until  timestamptz  -  Decided before this time.
--   agent  text         -  Actions of this agent alone.
--
-- Columns:
--   reason_code  The guard's code, such as tool_not_allowed or approval_expired; rejected: by a person.
--   tool         The tool that was asked for.
--   denied       Actions denied.
--   agents       Agents that asked.
--   last_at      When the last of them was denied.
SELECT reason_code, tool, count(*) AS denied, count(DISTINCT agent_id) AS agents, max(decided_at) AS last_at
  FROM trails.actions
 WHERE decision IN ('denied', 'rejected')
   AND decided_at >= coalesce(:since::timestamptz, '-infinity')
   AND decided_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 GROUP BY reason_code, tool
 ORDER BY denied DESC, reason_code, tool;
