-- Who decided on held actions, how, and how long did agents wait?
--
-- Parameters:
--   since  timestamptz  -  Decided at this time or later.
--   until  timestamptz  -  Decided before this time.
--
-- Columns:
--   person             Who decided, as given with the decision.
--   approved           Actions approved.
--   rejected           Actions rejected.
--   denied             Actions that the policy denied when they were to be approved.
--   approved_cost      What the approved actions were charged together, in units of their agents' budgets.
--   median_wait_secs   Half of the actions waited less than this, in seconds.
--   longest_wait_secs  The longest wait, in seconds.
SELECT decided_by AS person,
       count(*) FILTER (WHERE decision = 'approved') AS approved,
       count(*) FILTER (WHERE decision = 'rejected') AS rejected,
       count(*) FILTER (WHERE decision = 'denied') AS denied,
       coalesce(sum(cost) FILTER (WHERE decision = 'approved'), 0) AS approved_cost,
       extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY waited)) AS median_wait_secs,
       extract(epoch FROM max(waited)) AS longest_wait_secs
  FROM trails.approvals
 WHERE decision <> 'pending'
   AND decided_at >= coalesce(:since::timestamptz, '-infinity')
   AND decided_at < coalesce(:until::timestamptz, 'infinity')
 GROUP BY decided_by
 ORDER BY approved DESC, rejected DESC, person;
