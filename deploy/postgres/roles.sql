-- The administrator's role, the service's login and the database, made by hand: once, as a superuser, on PostgreSQL
-- 15 or newer.
--
--   export TRAILS_ADMIN_PASSWORD=… TRAILS_APP_PASSWORD=…
--   psql --dbname=postgres < deploy/postgres/roles.sql
--
-- Then, as the administrator: TRAILS_DATABASE_URL=postgresql://trails_admin:…@db.example/trails trails migrate
-- It makes the roles that own (trails_owner) and that read (trails_auditor), neither of which logs in.
\set ON_ERROR_STOP on
\getenv admin_password TRAILS_ADMIN_PASSWORD
\getenv app_password TRAILS_APP_PASSWORD

-- Passwords are in the statements below: not in the log, and kept as SCRAM verifiers.
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';
SET password_encryption = 'scram-sha-256';

-- Makes roles and tables and nothing else; what it makes of logins it may change, and those of others not
-- (PostgreSQL 16 and newer). No superuser, and bound by row security like everybody.
CREATE ROLE trails_admin LOGIN CREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS
    CONNECTION LIMIT 10 PASSWORD :'admin_password';

-- Made by the administrator, who may give it another password later: trails migrate --app-password-file.
SET ROLE trails_admin;
CREATE ROLE trails_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD :'app_password';
-- Administrators' commands (trails verify, key, tenant, sql-login) act as the service's role.
GRANT trails_app TO trails_admin;
RESET ROLE;

CREATE DATABASE trails OWNER trails_admin TEMPLATE template0 ENCODING 'UTF8';
REVOKE ALL ON DATABASE trails FROM PUBLIC;
GRANT CONNECT ON DATABASE trails TO trails_app;
