-- name: login
-- Who asks, whether the views are there, and whether this login may take the service's role.
SELECT current_user::text AS role,
       to_regclass('trails.trace_nodes') IS NOT NULL AS migrated,
       EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = $1 AND pg_has_role(current_user, r.oid, 'MEMBER'))
           AS may_serve;

-- name: bounded
-- The server gives up after this many milliseconds; dates are UTC whatever the database was set to.
SELECT set_config('statement_timeout', $1, true), set_config('TimeZone', 'UTC', true);
