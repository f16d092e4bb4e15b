-- name: add_api_key
-- A new key; its id was drawn at random and is not used twice.
INSERT INTO trails.api_keys
    (tenant_id, key_id, role, agent_id, name, secret_hash, created_at, expires_at, seal)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: api_key
-- One key, and whether it was revoked: all that a request asks of it. Times that no client can hold are none
-- that the service wrote: such rows are passed over here and below, and named by trails verify.
SELECT k.tenant_id, k.key_id, k.role, k.agent_id, k.name, k.secret_hash, k.created_at, k.expires_at,
       k.seal, r.revoked_at,
       (SELECT max(u.used_at) FROM trails.api_key_uses AS u
         WHERE u.tenant_id = k.tenant_id AND u.key_id = k.key_id
           AND u.used_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00') AS used_at
  FROM trails.api_keys AS k
  LEFT JOIN trails.api_key_revocations AS r ON r.tenant_id = k.tenant_id AND r.key_id = k.key_id
   AND r.revoked_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00'
 WHERE k.tenant_id = $1 AND k.key_id = $2
   AND k.created_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00'
   AND (k.expires_at IS NULL OR k.expires_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00');

-- name: api_keys
-- The tenant's keys in the order of their making, with what became of them.
SELECT k.tenant_id, k.key_id, k.role, k.agent_id, k.name, k.secret_hash, k.created_at, k.expires_at,
       k.seal, r.revoked_at,
       (SELECT max(u.used_at) FROM trails.api_key_uses AS u
         WHERE u.tenant_id = k.tenant_id AND u.key_id = k.key_id
           AND u.used_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00') AS used_at
  FROM trails.api_keys AS k
  LEFT JOIN trails.api_key_revocations AS r ON r.tenant_id = k.tenant_id AND r.key_id = k.key_id
   AND r.revoked_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00'
 WHERE k.tenant_id = $1 AND k.created_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00'
   AND (k.expires_at IS NULL OR k.expires_at BETWEEN '1970-01-01 00:00+00' AND '9999-01-01 00:00+00')
 ORDER BY k.created_at, k.key_id;

-- name: revoke_api_key
-- A key that is no key from now on; once.
INSERT INTO trails.api_key_revocations (tenant_id, key_id, revoked_at)
VALUES ($1, $2, $3)
ON CONFLICT (tenant_id, key_id) DO NOTHING;

-- name: use_api_key
-- That a key was used about then; whoever is first says it.
INSERT INTO trails.api_key_uses (tenant_id, key_id, used_at)
VALUES ($1, $2, date_bin('10 minutes', $3::timestamptz, timestamptz '2000-01-01 00:00:00+00'))
ON CONFLICT (tenant_id, key_id, used_at) DO NOTHING;

-- name: suspended
-- Whether a tenant is suspended: its newest row says so, and without one it is not.
SELECT coalesce((SELECT s.suspended FROM trails.tenant_suspensions AS s
                  WHERE s.tenant_id = $1 AND s.changed_at < '9999-01-01 00:00+00'
                  ORDER BY s.changed_at DESC LIMIT 1), false);

-- name: server_time
-- The one clock that all processes share.
SELECT clock_timestamp();

-- name: suspend
-- A tenant is suspended, or goes on; always later than what was said of it before, whatever the clocks say.
INSERT INTO trails.tenant_suspensions (tenant_id, changed_at, suspended)
SELECT $1, greatest($2::timestamptz, max(s.changed_at) + interval '1 microsecond'), $3
  FROM trails.tenant_suspensions AS s
 WHERE s.tenant_id = $1 AND s.changed_at < '9999-01-01 00:00+00';

-- name: list_all_tenants
-- Lets this transaction see the registry of tenants as a whole.
SELECT set_config('trails.all_tenants', 'listed', true);

-- name: tenants
-- Who shares this database, in the order of their making; after a slug, at most so many.
SELECT tenant_id, slug, name,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.tenants
 WHERE slug > $1
 ORDER BY slug
 LIMIT $2;

-- name: suspended_among
-- Those of the named tenants whose newest row says that they are suspended.
SELECT s.tenant_id
  FROM (SELECT DISTINCT ON (t.tenant_id) t.tenant_id, t.suspended
          FROM trails.tenant_suspensions AS t
         WHERE t.changed_at < '9999-01-01 00:00+00'
         ORDER BY t.tenant_id, t.changed_at DESC) AS s
 WHERE s.suspended;

-- name: add_visit
-- Somebody signs in to the console.
INSERT INTO trails.console_visits (tenant_id, visit_hash, created_at, expires_at)
VALUES ($1, $2, $3, $4);

-- name: end_visit
-- A visit that is none any more; once.
INSERT INTO trails.console_visit_ends (tenant_id, visit_hash, ended_at)
VALUES ($1, $2, $3)
ON CONFLICT (tenant_id, visit_hash) DO NOTHING;

-- name: visit_is_open
-- Whether a visit was begun and not ended. Its time the cookie tells, which nobody can change.
SELECT EXISTS (SELECT FROM trails.console_visits WHERE tenant_id = $1 AND visit_hash = $2)
   AND NOT EXISTS (SELECT FROM trails.console_visit_ends WHERE tenant_id = $1 AND visit_hash = $2);
