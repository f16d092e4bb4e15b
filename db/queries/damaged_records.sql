-- Which records does SQL itself find damaged? (trails verify also checks signatures and keys.)
--
-- Parameters:
--   agent  text  -  The chain of this agent alone.
--
-- Columns:
--   agent_id  The agent.
--   seq       The record's position in the agent's chain.
--   problem   What is wrong: hash, link, order, or columns that are not what was signed.
SELECT agent_id, seq, problem
  FROM trails.chain_check
 WHERE NOT ok
   AND (:agent::text IS NULL OR agent_id = :agent)
 ORDER BY agent_id, seq;
