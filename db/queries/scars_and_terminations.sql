-- What marked the agents, and what ended them?
--
-- Parameters:
--   since  timestamptz  -  At this time or later.
--   until  timestamptz  -  Before this time.
--   agent  text         -  This agent alone.
--
-- Columns:
--   at           When.
--   agent_id     The agent.
--   event        scar, or terminated.
--   severity     Of a scar: minor, moderate, severe or fatal.
--   score_after  Of a scar: the agent's score with it.
--   reason       Why.
--   action_id    The action that left the scar; empty when none did.
--   actor        Who caused it: the agent, or the API key used.
SELECT at, agent_id, event, severity, score_after, reason, action_id, actor
  FROM (SELECT scarred_at AS at, agent_id, 'scar' AS event, severity, score_after, reason, action_id, actor, seq
          FROM trails.scars
        UNION ALL
        SELECT created_at, agent_id, 'terminated', NULL, NULL, trace_data ->> 'reason', NULL, actor, seq
          FROM trails.agent_audit_trails
         WHERE kind = 'terminated') AS marks
 WHERE at >= coalesce(:since::timestamptz, '-infinity')
   AND at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 ORDER BY at, agent_id, seq;
