-- What waits for a person now, longest first?
--
-- Parameters:
--   agent  text  -  Actions of this agent alone.
--
-- Columns:
--   requested_at  When it was asked.
--   waited_secs   How long it has waited, in seconds.
--   agent_id      Who asked.
--   action_id     The action to approve or reject.
--   tool          The tool that was asked for.
--   cost          What would be charged.
--   input         What the tool is to be called with.
--   joins         How often the same was asked again meanwhile.
SELECT requested_at, round(extract(epoch FROM waited)) AS waited_secs, agent_id, action_id, tool, cost, input,
       joins
  FROM trails.approvals
 WHERE decision = 'pending'
   AND (:agent::text IS NULL OR agent_id = :agent)
 ORDER BY requested_at, agent_id, seq;
