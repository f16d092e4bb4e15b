-- How reliable and how fast is each tool?
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Calls of this agent alone.
--
-- Columns:
--   tool            The tool's name, exactly as called.
--   calls           All its calls, denied ones too; an action of the guard once it has ended.
--   failed          Calls that failed.
--   failed_percent  Of the calls known to have been carried out (success, failed, harmful), with one decimal.
--   denied          Calls that the guard or a person denied.
--   median_ms       Duration that half of the calls stay below, in milliseconds.
--   p95_ms          Duration that 95 of 100 calls stay below, in milliseconds.
SELECT tool, count(*) AS calls,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       round(100.0 * count(*) FILTER (WHERE status = 'failed')
             / nullif(count(*) FILTER (WHERE status IN ('success', 'failed', 'harmful')), 0), 1)
           AS failed_percent,
       count(*) FILTER (WHERE status = 'denied') AS denied,
       percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS median_ms,
       percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS p95_ms
  FROM trails.tool_calls
 WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 GROUP BY tool
 ORDER BY failed DESC, calls DESC, tool;
