-- name: name_tenants
-- Row security shows and takes the rows of these tenants, until the transaction ends.
SELECT set_config('trails.tenants', $1, true);

-- name: name_slug
-- Row security shows the one tenant of this slug, until the transaction ends.
SELECT set_config('trails.slug', $1, true);
