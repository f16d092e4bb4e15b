-- name: calls_below
-- Trace records of some traces, since a moment, that hold a tool call right below one of these nodes; those that
-- the caller has just written itself ($5, $6) do not count. Nearly always there are no others, and no record is
-- looked at.
WITH own AS MATERIALIZED (
    SELECT a.log_uuid FROM trails.agents AS a WHERE a.tenant_id = $1 AND a.agent_id = $5
), places AS MATERIALIZED (
    SELECT DISTINCT s.log_uuid, s.seq
      FROM trails.spans AS s
     WHERE s.tenant_id = $1 AND s.trace_id = ANY ($2::bytea[])
       AND NOT (s.seq = ANY ($6::bigint[]) AND s.log_uuid = (SELECT own.log_uuid FROM own))
)
SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq, t.kind, t.actor, t.session_id, t.created_at,
       t.prev_hash, t.hash, t.signature, t.key_id, t.idempotency_key, t.signed_text
  FROM places AS p
 CROSS JOIN LATERAL (
       SELECT * FROM trails.agent_audit_trails AS r
        WHERE r.tenant_id = $1 AND r.log_uuid = p.log_uuid AND r.seq = p.seq
       OFFSET 0) AS t
 WHERE t.created_at >= $3
   AND jsonb_path_exists(
           t.trace_data,
           'lax $.trace_tree[*] ? (@.node_type == "TOOL_CALL" && @.parent_id == $parents[*])',
           jsonb_build_object('parents', to_jsonb($4::text[])))
 ORDER BY t.log_uuid, t.seq
 LIMIT 200;
