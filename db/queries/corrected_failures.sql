-- How did agents put failed calls right?
--
-- Parameters:
--   since  timestamptz  -  Failed call recorded at this time or later.
--   until  timestamptz  -  Failed call recorded before this time.
--   tool   text         -  Failed calls of this tool alone.
--
-- Columns:
--   failed_at          When the failed call began, by its sender's clock.
--   agent_id           Whose call failed.
--   tool               The tool that failed.
--   error              Why it failed.
--   relation           Where the correction stands: child (below the call) or sibling (later, beside it).
--   correction_type    SELF_CORRECTION, or TOOL_CALL when the same tool was called again.
--   correction_name    What the correction is called.
--   correction_status  How it ended: success means that it worked.
--   session_id         The session of both.
SELECT failed_at, agent_id, tool, error, relation, correction_type, correction_name, correction_status,
       session_id
  FROM trails.corrections
 WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:tool::text IS NULL OR tool = :tool)
 ORDER BY failed_at, session_id, agent_id, failed_node_id, correction_at, correction_agent_id, correction_node_id;
