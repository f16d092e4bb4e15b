-- Which allowed actions has nobody reported an outcome of, and which outcomes are unknown?
--
-- Parameters:
--   since  timestamptz  -  Allowed at this time or later.
--   until  timestamptz  -  Allowed before this time.
--   agent  text         -  Actions of this agent alone.
--
-- Columns:
--   decided_at   When it was allowed.
--   agent_id     The agent.
--   action_id    The action.
--   tool         The tool.
--   cost         What was charged.
--   outcome      Empty, or unknown: nobody can tell whether it happened.
--   approved_by  Who approved; empty where no approval was needed.
SELECT decided_at, agent_id, action_id, tool, cost, outcome, approved_by
  FROM trails.actions
 WHERE decision = 'allowed'
   AND (outcome IS NULL OR outcome = 'unknown')
   AND decided_at >= coalesce(:since::timestamptz, '-infinity')
   AND decided_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 ORDER BY decided_at, agent_id, seq;
