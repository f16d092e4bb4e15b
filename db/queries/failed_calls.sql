-- Which tool calls failed, when, and why?
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Calls of this agent alone.
--   tool   text         -  Calls of this tool alone.
--
-- Columns:
--   recorded_at  When the call's record was signed.
--   agent_id     Who called.
--   tool         The tool's name, exactly as called.
--   error        Why it failed, as far as the call says so.
--   session_id   The session; of a guarded action without one its agent's log_uuid.
--   node_id      The call's node in the session's tree.
SELECT recorded_at, agent_id, tool, error, session_id, node_id
  FROM trails.failed_tool_calls
 WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
   AND (:tool::text IS NULL OR tool = :tool)
 ORDER BY recorded_at, agent_id, seq, "position";
