-- name: name_tenants
-- Row security shows and takes the rows of these tenants, until the transaction ends. Plans are made anew
-- for these reads: one that was cached on a young table may go by the wrong index for as long as it lives.
SELECT set_config('trails.tenants', $1, true), set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: name_slug
-- Row security shows the one tenant of this slug, until the transaction ends.
SELECT set_config('trails.slug', $1, true);

-- name: knows_lz4
-- Whether this server was built with lz4. To ask for what it was built without is an error.
SELECT EXISTS (SELECT FROM pg_catalog.pg_settings
                WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals));
