-- name: name_tenants
-- Row security shows and takes the rows of these tenants, until the transaction ends. Plans are made anew
-- for these reads: one that was cached on a young table may go by the wrong index for as long as it lives.
SELECT set_config('trails.tenants', $1, true), set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: name_slug
-- Row security shows the one tenant of this slug, until the transaction ends.
SELECT set_config('trails.slug', $1, true);

-- name: suiting_settings
-- What sessions that append large records set, where it is not so yet. A record is compressed twice, as text and
-- as JSONB: with pglz, the default, that is a third of what the database spends on a tree of 6 kB, and lz4 takes
-- a third of that for a tenth more disk; to ask for it where the server was built without it is an error. The
-- new rows of one statement are kept for its triggers, both forms of them, on disk beyond work_mem.
SELECT name, 'lz4' AS value
  FROM pg_catalog.pg_settings
 WHERE name = 'default_toast_compression' AND setting = 'pglz' AND 'lz4' = ANY (enumvals)
UNION ALL
SELECT name, '16MB'
  FROM pg_catalog.pg_settings
 WHERE name = 'work_mem' AND setting::integer < 16 * 1024;
