-- name: ends
-- Where these spans stand: in the caller's own chain ($5), or in another in a record that the caller's key wrote
-- ($6), which is not the agent's own. The tables are read for each row of the setting, so that row security is
-- not asked before it is made.
WITH tenant AS MATERIALIZED (
    SELECT set_config('trails.tenants', $1, true) AS named
)
SELECT s.tenant_id, s.trace_id, s.span_id, s.log_uuid, s.seq
  FROM tenant
 CROSS JOIN LATERAL (
       SELECT i.*
         FROM unnest($3::bytea[], $4::bytea[]) AS k (trace_id, span_id)
         JOIN trails.spans AS i
           ON i.tenant_id = $2 AND i.trace_id = k.trace_id AND i.span_id = k.span_id
        WHERE tenant.named IS NOT NULL
          AND (i.log_uuid = $5
               OR EXISTS (SELECT FROM trails.agent_audit_trails AS t
                           WHERE t.tenant_id = $2 AND t.log_uuid = i.log_uuid AND t.seq = i.seq
                             AND t.actor = $6 AND t.agent_id <> t.actor))
       OFFSET 0) AS s
 ORDER BY s.log_uuid, s.seq;

-- name: calls_below
-- Records of some traces, since a moment, that hold a tool call right below one of these nodes, as a span told of
-- it; those that the caller has just written itself ($6) do not count. In sight are those of ends. Nearly always
-- the trace has no others, and no record is looked at.
WITH tenant AS MATERIALIZED (
    SELECT set_config('trails.tenants', $1, true) AS named
)
SELECT b.log_uuid, b.seq
  FROM tenant
 CROSS JOIN LATERAL (
       SELECT p.log_uuid, p.seq
         FROM (SELECT DISTINCT s.log_uuid, s.seq
                 FROM unnest($3::bytea[]) AS k (trace_id)
                CROSS JOIN LATERAL (
                      -- One look at the index a trace: for ANY of them, PostgreSQL 15 may read all of it.
                      SELECT i.log_uuid, i.seq
                        FROM trails.spans AS i
                       WHERE i.tenant_id = $2 AND i.trace_id = k.trace_id AND tenant.named IS NOT NULL
                      OFFSET 0) AS s
                WHERE CASE WHEN s.log_uuid = $7 THEN s.seq <> ALL ($6::bigint[])
                           ELSE $8::text IS NOT NULL END) AS p
        CROSS JOIN LATERAL (
              SELECT r.created_at, r.actor, r.agent_id, r.trace_data -> 'trace_tree' AS tree
                FROM trails.agent_audit_trails AS r
               WHERE r.tenant_id = $2 AND r.log_uuid = p.log_uuid AND r.seq = p.seq
              OFFSET 0) AS t
        WHERE t.created_at >= $4
          AND (p.log_uuid = $7 OR t.actor = $8 AND t.agent_id <> t.actor)
          AND EXISTS (
                  SELECT FROM jsonb_array_elements(CASE jsonb_typeof(t.tree) WHEN 'array' THEN t.tree END) AS n (node)
                   WHERE n.node ->> 'node_type' = 'TOOL_CALL' AND n.node #> '{metadata,otel}' IS NOT NULL
                     -- In a CASE it is looked up in a hash: a request and a record may have thousands each.
                     AND CASE WHEN lower(n.node ->> 'parent_id') IN (SELECT unnest($5::text[])) THEN true END)
        ORDER BY p.log_uuid, p.seq
        LIMIT 200) AS b;
