-- Whose clocks cannot be believed? Nodes that say they began long before or after they were recorded.
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--
-- Columns:
--   agent_id          The agent.
--   nodes             Nodes that say when they began.
--   skewed            Of these, more than 5 minutes ahead of their record or more than a day behind it.
--   most_ahead_secs   Furthest ahead of its record, in seconds; negative when all are behind.
--   most_behind_secs  Furthest behind its record, in seconds; negative when all are ahead.
SELECT agent_id, count(*) AS nodes, count(*) FILTER (WHERE clock_skewed) AS skewed,
       extract(epoch FROM max(clock_skew)) AS most_ahead_secs,
       -extract(epoch FROM min(clock_skew)) AS most_behind_secs
  FROM trails.trace_nodes
 WHERE started_at IS NOT NULL
   AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
 GROUP BY agent_id
HAVING bool_or(clock_skewed)
 ORDER BY skewed DESC, agent_id;
