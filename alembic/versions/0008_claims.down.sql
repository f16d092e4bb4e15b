DROP INDEX trails.trail_claims;
