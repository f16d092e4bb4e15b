-- name: scope
-- Who is asking, and whether row security hides rows from it.
SELECT current_user::text AS role,
       to_regclass('trails.agent_audit_trails') IS NOT NULL AS migrated,
       CASE WHEN to_regclass('trails.agent_audit_trails') IS NOT NULL
            THEN row_security_active(to_regclass('trails.agent_audit_trails')::oid) END AS bound;

-- name: read_tables
-- An index may be damaged, or built to hide rows: the table itself is read. Dates in one spelling, and as
-- long as it takes.
SELECT set_config('enable_indexscan', 'off', true),
       set_config('enable_indexonlyscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('DateStyle', 'ISO, YMD', true),
       set_config('TimeZone', 'UTC', true),
       set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true);

-- name: tenants
-- The tenants that this role may see.
SELECT tenant_id, slug FROM trails.tenants ORDER BY slug, tenant_id;

-- name: keys
-- All signing keys that this role may see, sealed.
SELECT tenant_id, key_id, public_key, sealed_secret, created_at
  FROM trails.signing_keys
 ORDER BY tenant_id, created_at, key_id;

-- name: registry
-- All chains of the registry that this role may see: what must be in the trail.
SELECT tenant_id, agent_id, log_uuid, guarded, created_at
  FROM trails.agents
 ORDER BY tenant_id, agent_id;

-- name: rows
-- Every row, or those of some tenants or chains, chain by chain in order. Times and payload as text: a time
-- that no client can hold and a number beyond a double must be compared, not refused.
SELECT id, tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at::text AS created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text, trace_data::text AS trace_data
  FROM trails.agent_audit_trails
 WHERE ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
   AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
 ORDER BY tenant_id, log_uuid, seq, hash;

-- name: chain_rows
-- The records of one chain after a position: export and show.
SELECT seq, hash, signature, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq > $3
 ORDER BY seq;

-- name: find_chain
-- The chain of one agent, in the tenants that are visible.
SELECT a.tenant_id, t.slug, a.log_uuid
  FROM trails.agents AS a LEFT JOIN trails.tenants AS t USING (tenant_id)
 WHERE a.agent_id = $1 AND ($2::text IS NULL OR t.slug = $2)
 ORDER BY t.slug, a.tenant_id;
