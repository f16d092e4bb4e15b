DROP INDEX trails.trail_snapshots;
