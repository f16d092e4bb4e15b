-- Which nodes hang on a parent that never came, or in a cycle?
--
-- Parameters:
--   since    timestamptz  -  Sessions that began at this time or later.
--   until    timestamptz  -  Sessions that began before this time.
--   session  uuid         -  This session alone.
--
-- Columns:
--   session_id  The session.
--   agent_id    Who sent the node.
--   node_id     The node.
--   parent_id   The parent that it names.
--   node_type   Its type.
--   name        Its name.
--   problem     missing parent, or cycle.
SELECT p.session_id, p.agent_id, p.node_id, p.parent_id, p.node_type, p.name,
       CASE WHEN p.cyclic THEN 'cycle' ELSE 'missing parent' END AS problem
  FROM trails.sessions AS s
  JOIN trails.session_paths AS p ON p.tenant_id = s.tenant_id AND p.session_id = s.session_id
 WHERE s.first_recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND s.first_recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:session::uuid IS NULL OR s.session_id = :session)
   AND (p.orphan OR p.cyclic)
 ORDER BY s.first_recorded_at, p.session_id, p."order";
