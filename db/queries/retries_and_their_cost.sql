-- How often was a failed call tried again, did it help, and what did it cost?
--
-- Parameters:
--   since  timestamptz  -  Failed call recorded at this time or later.
--   until  timestamptz  -  Failed call recorded before this time.
--
-- Columns:
--   tool          The tool that failed.
--   failed        Its failed calls that were tried again.
--   retries       Calls of the same tool that followed; one that follows several failed calls counts once.
--   worked        Retries that ended in success.
--   retry_cost    What the retries cost together, in the unit that was sent (of guarded actions: the budget's).
--   retry_tokens  Tokens of the retries together.
WITH followed AS (
    SELECT DISTINCT tenant_id, session_id, tool, correction_agent_id, correction_node_id
      FROM trails.corrections
     WHERE correction_type = 'TOOL_CALL'
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
), failures AS (
    SELECT tool, count(DISTINCT (session_id, agent_id, failed_node_id)) AS failed
      FROM trails.corrections
     WHERE correction_type = 'TOOL_CALL'
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
     GROUP BY tool
)
SELECT f.tool, f.failed, count(*) AS retries, count(*) FILTER (WHERE n.status = 'success') AS worked,
       sum(n.cost) AS retry_cost, sum(n.total_tokens) AS retry_tokens
  FROM failures AS f
  JOIN followed AS r ON r.tool = f.tool
  JOIN trails.trace_nodes AS n
    ON n.tenant_id = r.tenant_id AND n.session_id = r.session_id AND n.agent_id = r.correction_agent_id
       AND n.node_id = r.correction_node_id
 GROUP BY f.tool, f.failed
 ORDER BY retries DESC, f.tool;
