-- Who decided on held actions, how, and how long did agents wait?
--
-- Parameters:
--   since  timestamptz  -  Decided at this time or later.
--   until  timestamptz  -  Decided before this time.
--
-- Columns:
--   person             Who decided: the name of the key that was used.
--   approved           Actions approved; of several approvals that an action needs, the last.
--   approved_in_part   Approvals before the last, of actions that need several.
--   rejected           Actions rejected.
--   denied             Actions that the policy denied when they were to be approved.
--   approved_cost      What the approved actions were charged together, in units of their agents' budgets.
--   median_wait_secs   Half of the actions waited less than this, in seconds.
--   longest_wait_secs  The longest wait, in seconds.
WITH decided AS (
    SELECT decided_by AS person, decision, cost, waited, decided_at
      FROM trails.approvals
     WHERE decision <> 'pending'
     UNION ALL
    SELECT given.trace_data ->> 'approved_by', 'in part', 0, given.created_at - held.requested_at, given.created_at
      FROM trails.agent_audit_trails AS given
      JOIN trails.approvals AS held
        ON held.log_uuid = given.log_uuid AND held.action_id = given.trace_data ->> 'action_id'
     WHERE given.kind = 'approval_given'
)
SELECT person,
       count(*) FILTER (WHERE decision = 'approved') AS approved,
       count(*) FILTER (WHERE decision = 'in part') AS approved_in_part,
       count(*) FILTER (WHERE decision = 'rejected') AS rejected,
       count(*) FILTER (WHERE decision = 'denied') AS denied,
       coalesce(sum(cost) FILTER (WHERE decision = 'approved'), 0) AS approved_cost,
       extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY waited)) AS median_wait_secs,
       extract(epoch FROM max(waited)) AS longest_wait_secs
  FROM decided
 WHERE decided_at >= coalesce(:since::timestamptz, '-infinity')
   AND decided_at < coalesce(:until::timestamptz, 'infinity')
 GROUP BY person
 ORDER BY approved DESC, rejected DESC, person;
