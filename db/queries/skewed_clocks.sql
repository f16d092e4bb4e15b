-- Whose clocks cannot be believed? What says that it began or happened long before or after it was recorded.
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--
-- Columns:
--   agent_id          The agent.
--   nodes             Nodes that say when they began, and events that say when they happened.
--   skewed            Of these, more than 5 minutes ahead of their record or more than a day behind it.
--   most_ahead_secs   Furthest ahead of its record, in seconds; negative when all are behind.
--   most_behind_secs  Furthest behind its record, in seconds; negative when all are ahead.
SELECT agent_id, count(*) AS nodes, count(*) FILTER (WHERE clock_skewed) AS skewed,
       extract(epoch FROM max(clock_skew)) AS most_ahead_secs,
       -extract(epoch FROM min(clock_skew)) AS most_behind_secs
  FROM (SELECT agent_id, recorded_at, clock_skew, clock_skewed FROM trails.trace_nodes
        UNION ALL
        SELECT agent_id, recorded_at, clock_skew, clock_skewed FROM trails.events) AS said
 WHERE clock_skew IS NOT NULL
   AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
 GROUP BY agent_id
HAVING bool_or(clock_skewed)
 ORDER BY skewed DESC, agent_id;
