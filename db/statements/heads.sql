-- name: heads
-- The newest record of each chain of a tenant, by agent id after $2, at most $3 chains; one without any is among them.
SELECT a.agent_id, a.log_uuid, h.seq, h.hash
  FROM trails.agents AS a
  LEFT JOIN LATERAL (
        SELECT t.seq, t.hash
          FROM trails.agent_audit_trails AS t
         WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid
         ORDER BY t.seq DESC
         LIMIT 1) AS h ON true
 WHERE a.tenant_id = $1 AND a.agent_id > $2
 ORDER BY a.agent_id
 LIMIT $3;

-- name: hashes_at
-- The hashes of records at their places; one that is missing is left out.
SELECT t.log_uuid, t.seq, t.hash
  FROM unnest($2::uuid[], $3::bigint[]) AS p (log_uuid, seq)
  JOIN trails.agent_audit_trails AS t ON t.tenant_id = $1 AND t.log_uuid = p.log_uuid AND t.seq = p.seq;
