-- A login that reads the records of all tenants, to verify them, and writes nothing: as a superuser, after trails migrate,
-- in the trail's database, and again after an upgrade. Row security binds the administrator, who sees one tenant at a time.
--
--   export TRAILS_VERIFIER_PASSWORD=…
--   psql "postgresql://postgres@db.example/trails" --file deploy/postgres/verifier.sql
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
GRANT USAGE ON SCHEMA trails TO trails_verifier;
GRANT SELECT ON ALL TABLES IN SCHEMA trails TO trails_verifier;
