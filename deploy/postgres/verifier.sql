-- A login that reads the records of all tenants, to verify them and to back them up, and writes nothing: as a superuser,
-- in the trail's database, before or after trails migrate. Row security binds the administrator, who sees one tenant at a
-- time. What it may is said of the role and of no table, so that no upgrade asks for this again and no dump names it.
--
--   export TRAILS_VERIFIER_PASSWORD=…
--   psql --dbname=trails < deploy/postgres/verifier.sql
\set ON_ERROR_STOP on
\getenv verifier_password TRAILS_VERIFIER_PASSWORD

-- As in roles.sql: the password is not in the log, and kept as a SCRAM verifier.
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';
SET password_encryption = 'scram-sha-256';

SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'trails_verifier') AS is_new \gset
\if :is_new
CREATE ROLE trails_verifier LOGIN;
\endif
ALTER ROLE trails_verifier NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION BYPASSRLS CONNECTION LIMIT 10
    PASSWORD :'verifier_password';
ALTER ROLE trails_verifier SET default_transaction_read_only = on;

GRANT CONNECT ON DATABASE trails TO trails_verifier;
GRANT pg_read_all_data TO trails_verifier;

-- What an earlier form of this file granted table by table, and what a restore would ask for.
SELECT to_regnamespace('trails') IS NOT NULL AS is_migrated \gset
\if :is_migrated
REVOKE ALL ON SCHEMA trails FROM trails_verifier;
REVOKE ALL ON ALL TABLES IN SCHEMA trails FROM trails_verifier;
\endif
