-- name: calls_below
-- Records of some sessions, since a moment, that hold a tool call right below one of these nodes; those that the
-- caller has just written itself ($5, $6) are passed over before their trees are read.
SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq, t.kind, t.actor, t.session_id, t.created_at,
       t.prev_hash, t.hash, t.signature, t.key_id, t.idempotency_key, t.signed_text
  FROM trails.agent_audit_trails AS t
 WHERE t.tenant_id = $1 AND t.session_id = ANY ($2::uuid[]) AND t.created_at >= $3 AND t.kind = 'trace'
   AND CASE WHEN t.agent_id = $5 AND t.seq = ANY ($6::bigint[]) THEN false
            ELSE jsonb_path_exists(
                t.trace_data,
                'lax $.trace_tree[*] ? (@.node_type == "TOOL_CALL" && @.parent_id == $parents[*])',
                jsonb_build_object('parents', to_jsonb($4::text[]))) END
 ORDER BY t.created_at, t.log_uuid, t.seq
 LIMIT 200;
