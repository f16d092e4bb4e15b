-- name: refresh
-- Gathers the statistics of one table that lacks them; its name, or NULL.
SELECT trails.refresh_statistics_v1();
