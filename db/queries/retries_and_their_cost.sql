-- How often was a failed call tried again, did it help, and what did it cost?
--
-- A retry that was denied did not happen: it is counted as denied and costs nothing. Money and budget are two
-- columns: retry_cost is what posted calls say in whatever unit was sent, retry_budget what the guard charged.
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
--   denied        Retries that were denied.
--   retry_cost    Costs of posted retries together, in the unit that was sent; empty where none was.
--   retry_budget  What guarded retries were charged together, in units of the policy's budget.
--   retry_tokens  Tokens of the retries together.
WITH pair AS MATERIALIZED (
    SELECT tenant_id, session_id, tool, agent_id, failed_node_id, correction_agent_id, correction_node_id
      FROM trails.corrections
     WHERE correction_type = 'TOOL_CALL'
       AND recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
), failures AS (
    SELECT tool, count(DISTINCT (tenant_id, session_id, agent_id, failed_node_id)) AS failed
      FROM pair
     GROUP BY tool
), retry AS (
    SELECT DISTINCT tenant_id, session_id, tool, correction_agent_id, correction_node_id
      FROM pair
)
SELECT f.tool, f.failed, count(*) AS retries, count(*) FILTER (WHERE n.status = 'success') AS worked,
       count(*) FILTER (WHERE n.status = 'denied') AS denied,
       sum(n.cost) FILTER (WHERE n.action_id IS NULL AND n.status IS DISTINCT FROM 'denied') AS retry_cost,
       sum(n.cost) FILTER (WHERE n.action_id IS NOT NULL AND n.status IS DISTINCT FROM 'denied') AS retry_budget,
       sum(n.total_tokens) AS retry_tokens
  FROM failures AS f
  JOIN retry AS r ON r.tool = f.tool
  JOIN trails.trace_nodes AS n
    ON n.tenant_id = r.tenant_id AND n.session_id = r.session_id AND n.agent_id = r.correction_agent_id
       AND n.node_id = r.correction_node_id
 GROUP BY f.tool, f.failed
 ORDER BY retries DESC, f.tool;
