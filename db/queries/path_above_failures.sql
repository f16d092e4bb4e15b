-- What was each failed call part of? The path from the root of its session's tree down to it.
--
-- Parameters:
--   since    timestamptz  -  Recorded at this time or later.
--   until    timestamptz  -  Recorded before this time.
--   session  uuid         -  This session alone.
--
-- Columns:
--   recorded_at  When the call's record was signed.
--   session_id   The session.
--   agent_id     Who called.
--   depth        Level of the call in the tree, 1 at a root; empty in a cycle.
--   path         Names from the root to the call.
--   error        Why it failed.
SELECT f.recorded_at, f.session_id, f.agent_id, p.depth, array_to_string(p.names, ' > ', '?') AS path, f.error
  FROM trails.failed_tool_calls AS f
  JOIN trails.session_paths AS p
    ON p.tenant_id = f.tenant_id AND p.session_id = f.session_id AND p.log_uuid = f.log_uuid
       AND p.node_id = f.node_id
 WHERE f.recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND f.recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:session::uuid IS NULL OR f.session_id = :session)
 ORDER BY f.recorded_at, f.session_id, p."order";
