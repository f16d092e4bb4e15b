-- How does each agent's budget burn down, day by day?
--
-- Parameters:
--   since  timestamptz  -  Days that end after this time.
--   until  timestamptz  -  Days that begin before this time.
--   agent  text         -  This agent alone.
--
-- Columns:
--   agent_id     The agent.
--   day          The day (UTC) on which actions were allowed.
--   actions      Actions allowed on that day.
--   spent        What they were charged together, in units of the policy's budget.
--   spent_total  Spent from the agent's beginning to the end of that day.
--   remaining    What was left of the budget then.
SELECT agent_id, day, actions, spent, spent_total, remaining
  FROM (SELECT b.agent_id, b.day, b.actions, b.spent,
               sum(b.spent) OVER total AS spent_total, s.budget - sum(b.spent) OVER total AS remaining
          FROM (SELECT tenant_id, agent_id, log_uuid, (decided_at AT TIME ZONE 'UTC')::date AS day,
                       count(*) AS actions, sum(cost) AS spent
                  FROM trails.actions
                 WHERE decision = 'allowed' AND (:agent::text IS NULL OR agent_id = :agent)
                 GROUP BY tenant_id, agent_id, log_uuid, day) AS b
          JOIN trails.agents_status AS s ON s.tenant_id = b.tenant_id AND s.log_uuid = b.log_uuid
        WINDOW total AS (PARTITION BY b.tenant_id, b.log_uuid ORDER BY b.day)) AS burnt
 WHERE day >= (coalesce(:since::timestamptz, '-infinity') AT TIME ZONE 'UTC')::date
   AND day < coalesce(:until::timestamptz, 'infinity') AT TIME ZONE 'UTC'
 ORDER BY agent_id, day;
