-- Which failed calls did nobody try to put right?
--
-- A try that was denied is a try: corrected_failures shows how each ended.
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Calls of this agent alone.
--
-- Columns:
--   recorded_at  When the call's record was signed.
--   agent_id     Who called.
--   tool         The tool's name, exactly as called.
--   error        Why it failed, as far as the call says so.
--   session_id   The session; of a guarded action without one its agent's log_uuid.
--   node_id      The call's node in the session's tree.
WITH corrected AS MATERIALIZED (
    -- Once and not for each failure, however few of these the planner expects.
    SELECT DISTINCT tenant_id, session_id, agent_id, failed_node_id
      FROM trails.corrections
     WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
       AND recorded_at < coalesce(:until::timestamptz, 'infinity')
)
SELECT f.recorded_at, f.agent_id, f.tool, f.error, f.session_id, f.node_id
  FROM trails.failed_tool_calls AS f
  LEFT JOIN corrected AS c
    ON c.tenant_id = f.tenant_id AND c.session_id = f.session_id AND c.agent_id = f.agent_id
       AND c.failed_node_id = f.node_id
 WHERE f.recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND f.recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR f.agent_id = :agent)
   AND c.failed_node_id IS NULL
 ORDER BY f.recorded_at, f.agent_id, f.seq, f."position";
