-- What PostgreSQL lets everyone do and nobody here has to, taken away on a server that is the trail's own: as a
-- superuser, after trails migrate, in the trail's database. It may be run again at any time.
--
--   psql --dbname=trails < deploy/postgres/hardening.sql
\set ON_ERROR_STOP on

-- Logins of auditors, and the service's, enter the trail's database and no other. Owners and superusers still do.
REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;

-- The service has as many sessions as its processes have connections, and some while they change over.
ALTER ROLE trails_app CONNECTION LIMIT 200;

-- Nobody reads the server's files or starts its programs through these, whatever is granted by mistake.
SET client_min_messages = error;  -- PostgreSQL warns of whatever was not granted
REVOKE pg_read_server_files, pg_write_server_files, pg_execute_server_program
    FROM trails_admin, trails_owner, trails_app, trails_auditor;
RESET client_min_messages;

-- Auditors' logins that an administrator made who is no superuser lack two limits that only one can give: each of
-- their queries is logged, and none fills the disk. Run this again when a login was added.
DO $$
DECLARE
    login record;
BEGIN
    FOR login IN
        SELECT m.member::regrole AS role
          FROM pg_catalog.pg_auth_members AS m JOIN pg_catalog.pg_roles AS r ON r.oid = m.member
         WHERE m.roleid = 'trails_auditor'::regrole AND r.rolcanlogin AND r.rolname LIKE 'trails\_auditor\_%'
    LOOP
        EXECUTE format('ALTER ROLE %s SET log_statement = %L', login.role, 'all');
        EXECUTE format('ALTER ROLE %s SET temp_file_limit = %L', login.role, '1GB');
    END LOOP;
END
$$;
