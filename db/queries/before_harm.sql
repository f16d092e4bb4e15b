-- What had an agent done before it did harm? Each harmful action, with those that it asked for before.
--
-- Parameters:
--   since  timestamptz  -  Reported at this time or later.
--   until  timestamptz  -  Reported before this time.
--   agent  text         -  This agent alone.
--   steps  integer      5  Actions before each harmful one.
--
-- Columns:
--   agent_id         The agent.
--   harmful_action   The action that did harm.
--   steps_before     0 for the harmful action itself, 1 for the one asked for before it, and so on.
--   action_id        The action of this row.
--   tool             The tool that was asked for.
--   decision         How the guard or a person decided.
--   approved_by      Who approved; empty where no approval was needed.
--   outcome          What was reported of it.
--   outcome_detail   What was said with it.
--   thought_process  The agent's stated reason.
--   requested_at     When it was asked.
SELECT h.agent_id, h.action_id AS harmful_action, b.steps_before, b.action_id, b.tool, b.decision,
       b.approved_by, b.outcome, b.outcome_detail, b.thought_process, b.requested_at
  FROM trails.actions AS h
 CROSS JOIN LATERAL (
       SELECT a.*, row_number() OVER (ORDER BY a.seq DESC) - 1 AS steps_before
         FROM trails.actions AS a
        WHERE a.tenant_id = h.tenant_id AND a.log_uuid = h.log_uuid AND a.seq <= h.seq
        ORDER BY a.seq DESC
        LIMIT :steps::integer + 1) AS b
 WHERE h.outcome = 'harmful'
   AND h.completed_at >= coalesce(:since::timestamptz, '-infinity')
   AND h.completed_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR h.agent_id = :agent)
 ORDER BY h.completed_at, h.agent_id, h.seq, b.steps_before;
