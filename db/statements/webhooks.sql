-- name: add
-- A webhook, as it was set up.
INSERT INTO trails.webhooks (tenant_id, webhook_id, name, kinds, agents, sealed, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: begin
-- Where its telling begins.
INSERT INTO trails.webhook_progress (tenant_id, webhook_id, cursor, told_at, delivered, failures, next_at, lease_until)
VALUES ($1, $2, $3, $4, 0, 0, clock_timestamp(), timestamptz '1970-01-01 00:00:00+00');

-- name: webhooks
-- All that a tenant has had, oldest first, each with how far it is.
SELECT w.tenant_id, w.webhook_id, w.name, w.kinds, w.agents, w.sealed,
       least(greatest(w.created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at,
       coalesce(p.delivered, 0) AS delivered, coalesce(p.failures, 0) AS failures,
       CASE WHEN p.failing_since IS NOT NULL
            THEN least(greatest(p.failing_since, '1970-01-01 00:00+00'), '9999-01-01 00:00+00')
       END AS failing_since, p.problem
  FROM trails.webhooks AS w
  LEFT JOIN trails.webhook_progress AS p ON p.tenant_id = w.tenant_id AND p.webhook_id = w.webhook_id
 WHERE w.tenant_id = $1 AND ($2::text IS NULL OR w.webhook_id = $2)
 ORDER BY w.created_at, w.webhook_id;

-- name: due
-- Those that wait for somebody to deliver; the transaction must say that it lists all tenants'.
SELECT p.tenant_id, p.webhook_id
  FROM trails.webhook_progress AS p
 WHERE p.next_at <= clock_timestamp() AND p.lease_until < clock_timestamp()
 ORDER BY p.next_at
 LIMIT $1;

-- name: claim
-- One of them is held by $3 for $4 seconds, unless somebody else was faster.
UPDATE trails.webhook_progress
   SET holder = $3, lease_until = clock_timestamp() + make_interval(secs => $4)
 WHERE tenant_id = $1 AND webhook_id = $2 AND next_at <= clock_timestamp() AND lease_until < clock_timestamp()
RETURNING cursor, least(greatest(told_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS told_at, failures;

-- name: keep
-- Its holder is this far, and goes on; nothing where it holds it no longer.
UPDATE trails.webhook_progress
   SET cursor = $4, told_at = $5, delivered = delivered + $6, lease_until = clock_timestamp() + make_interval(secs => $7),
       failures = CASE WHEN $6 > 0 THEN 0 ELSE failures END,
       failing_since = CASE WHEN $6 > 0 THEN NULL ELSE failing_since END,
       problem = CASE WHEN $6 > 0 THEN NULL ELSE problem END
 WHERE tenant_id = $1 AND webhook_id = $2 AND holder = $3 AND lease_until >= clock_timestamp()
RETURNING true;

-- name: fail
-- An event was not taken: it is tried again after $5 seconds, by whoever comes first.
UPDATE trails.webhook_progress
   SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()), problem = $4,
       next_at = clock_timestamp() + make_interval(secs => $5), holder = NULL,
       lease_until = timestamptz '1970-01-01 00:00:00+00'
 WHERE tenant_id = $1 AND webhook_id = $2 AND holder = $3
RETURNING extract(epoch FROM clock_timestamp() - failing_since)::float8;

-- name: release
-- Its holder lets go of it; it is looked at again after $4 seconds.
UPDATE trails.webhook_progress
   SET next_at = clock_timestamp() + make_interval(secs => $4), holder = NULL,
       lease_until = timestamptz '1970-01-01 00:00:00+00'
 WHERE tenant_id = $1 AND webhook_id = $2 AND holder = $3;

-- name: resume
-- One that was switched off and on is due at once, without its failures.
UPDATE trails.webhook_progress
   SET next_at = clock_timestamp(), failures = 0, failing_since = NULL, problem = NULL
 WHERE tenant_id = $1 AND webhook_id = $2;
