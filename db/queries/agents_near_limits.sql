-- Which living agents have used up most of their budget or of their scar limit?
--
-- Parameters:
--   percent  numeric  80  Agents that have used this much of either, in per cent.
--
-- Columns:
--   agent_id        The agent.
--   budget_percent  Of the budget, spent, with one decimal; empty where the budget is 0.
--   spent           Spent so far.
--   remaining       What is left of the budget.
--   scar_percent    Of the scar limit, reached, with one decimal.
--   scar_score      Weights of its scars together; at scar_limit the agent is terminated.
--   scar_limit      The policy's limit.
--   pending         Actions that wait for a person.
SELECT agent_id, round(100 * spent / nullif(budget, 0), 1) AS budget_percent, spent, remaining,
       round(100.0 * scar_score / nullif(scar_limit, 0), 1) AS scar_percent, scar_score, scar_limit,
       actions_pending AS pending
  FROM trails.agents_status
 WHERE alive AND guarded
   AND (100 * spent >= :percent::numeric * budget OR 100.0 * scar_score >= :percent::numeric * scar_limit)
 ORDER BY greatest(100 * spent / nullif(budget, 0), 100.0 * scar_score / nullif(scar_limit, 0)) DESC NULLS LAST,
          agent_id;
