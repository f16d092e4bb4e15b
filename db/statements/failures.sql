-- name: bounded
-- The server gives up after this many milliseconds; days and hours are UTC whatever the database was set to.
SELECT set_config('statement_timeout', $1, true), set_config('TimeZone', 'UTC', true);

-- name: over_time
-- Failed calls by hour, day or month ($5) and tool. Tools beyond the $6 that failed most are one, without a name:
-- whoever sends names chooses how many there are.
WITH failed AS MATERIALIZED (
    SELECT date_trunc($5, recorded_at, 'UTC') AS at, tool
      FROM trails.failed_tool_calls
     WHERE recorded_at >= $1 AND recorded_at < $2
       AND ($3::text IS NULL OR agent_id = $3) AND ($4::text IS NULL OR tool = $4)
), worst AS (
    SELECT tool FROM failed GROUP BY tool ORDER BY count(*) DESC, tool LIMIT $6
)
SELECT f.at, w.tool, count(*) AS failed
  FROM failed AS f LEFT JOIN worst AS w ON w.tool = f.tool
 GROUP BY f.at, w.tool
 ORDER BY f.at, w.tool;

-- name: by_tool
-- How reliable and how fast each tool is: the auditors' query tool_reliability, for one tool or all. The kinds are
-- those that hold nodes: said here, no other record is opened to look for some.
SELECT tool, count(*) AS calls,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       round(100.0 * count(*) FILTER (WHERE status = 'failed')
             / nullif(count(*) FILTER (WHERE status IN ('success', 'failed', 'harmful')), 0), 1)
           AS failed_percent,
       count(*) FILTER (WHERE status = 'denied') AS denied,
       percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS median_ms,
       percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS p95_ms
  FROM trails.tool_calls
 WHERE recorded_at >= $1 AND recorded_at < $2
   AND kind IN ('trace', 'outcome', 'action_denied', 'action_rejected')
   AND ($3::text IS NULL OR agent_id = $3) AND ($4::text IS NULL OR tool = $4)
 GROUP BY tool
 ORDER BY failed DESC, calls DESC, tool
 LIMIT $5;

-- name: newest
-- The failed calls that were recorded last. A guarded action that named no session has its chain's id for one,
-- and is found in its agent's log alone.
SELECT recorded_at, agent_id, tool, left(error, 400) AS error, session_id, node_id, seq, action_id, clock_skewed,
       session_id = log_uuid AS without_session
  FROM trails.failed_tool_calls
 WHERE recorded_at >= $1 AND recorded_at < $2
   AND ($3::text IS NULL OR agent_id = $3) AND ($4::text IS NULL OR tool = $4)
 ORDER BY recorded_at DESC, agent_id, seq DESC, "position"
 LIMIT $5;
