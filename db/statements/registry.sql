-- name: add_tenant
-- Replicas that start together all add the default tenant: one does, the others find it.
INSERT INTO trails.tenants (tenant_id, slug, name, created_at)
VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant_id) DO NOTHING;

-- name: tenant
-- One tenant by its id. A time that no client can hold is none that the service wrote; here and below it must
-- not keep anybody from the other rows.
SELECT tenant_id, slug, name,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.tenants
 WHERE tenant_id = $1;

-- name: tenant_by_slug
-- One tenant by its slug; the transaction must name the slug (session.sql).
SELECT tenant_id, slug, name,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.tenants
 WHERE slug = $1;

-- name: add_signing_key
-- A key of a tenant; the same key twice is one key.
INSERT INTO trails.signing_keys (tenant_id, key_id, public_key, sealed_secret, created_at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant_id, key_id) DO NOTHING;

-- name: signing_keys
-- All keys of a tenant, oldest first.
SELECT tenant_id, key_id, public_key, sealed_secret, created_at
  FROM trails.signing_keys
 WHERE tenant_id = $1
 ORDER BY created_at, key_id;

-- name: chain
-- The chain of one agent.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1 AND agent_id = $2;

-- name: agent_called
-- An agent of this name, given in lower case, in whatever case its id has; ids are ASCII.
SELECT agent_id
  FROM trails.agents
 WHERE tenant_id = $1 AND lower(agent_id) = $2
 ORDER BY agent_id
 LIMIT 1;

-- name: chains
-- All chains of a tenant: the list of its agents, and where verification starts.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1
 ORDER BY agent_id;

-- name: chains_after
-- The same, so many at a time.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1 AND agent_id > $2
 ORDER BY agent_id
 LIMIT $3;

-- name: logs
-- Which chains the rows of the table name, from $2 on, and whether the registry has them: from the first row of
-- one chain to that of the next by the primary key, whatever their length.
WITH RECURSIVE named AS (
    (SELECT log_uuid, 1 AS place
       FROM trails.agent_audit_trails
      WHERE tenant_id = $1 AND log_uuid >= $2
      ORDER BY log_uuid
      LIMIT 1)
    UNION ALL
    SELECT (SELECT t.log_uuid
              FROM trails.agent_audit_trails AS t
             WHERE t.tenant_id = $1 AND t.log_uuid > n.log_uuid
             ORDER BY t.log_uuid
             LIMIT 1), n.place + 1
      FROM named AS n
     WHERE n.log_uuid IS NOT NULL AND n.place < $3
)
SELECT n.log_uuid,
       (SELECT a.log_uuid
          FROM trails.agents AS a
         WHERE a.tenant_id = $1 AND a.log_uuid = n.log_uuid
         LIMIT 1) IS NOT NULL AS registered
  FROM named AS n
 WHERE n.log_uuid IS NOT NULL
 ORDER BY n.place;

-- name: chains_among
-- The chains of some agents: which of them exist.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1 AND agent_id = ANY ($2::text[])
 ORDER BY agent_id;
