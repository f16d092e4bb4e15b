-- What belongs to the database itself. Neither CREATE DATABASE … TEMPLATE nor a dump (without --create)
-- carries it, so that it is said again at every bootstrap.
CREATE SCHEMA IF NOT EXISTS trails AUTHORIZATION trails_owner;
-- A dump that was restored without its owners (pg_restore --no-owner) belongs to whoever restored it.
DO $$
DECLARE
    owner oid := 'trails_owner'::pg_catalog.regrole;
    given text;
BEGIN
    FOR given IN
        SELECT 'SCHEMA trails' FROM pg_catalog.pg_namespace WHERE nspname = 'trails' AND nspowner <> owner
        UNION ALL
        SELECT format('TABLE trails.%I', relname) FROM pg_catalog.pg_class
         WHERE relnamespace = 'trails'::pg_catalog.regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
           AND relowner <> owner
        UNION ALL
        SELECT format('ROUTINE %s', oid::pg_catalog.regprocedure) FROM pg_catalog.pg_proc
         WHERE pronamespace = 'trails'::pg_catalog.regnamespace AND proowner <> owner
    LOOP
        EXECUTE format('ALTER %s OWNER TO trails_owner', given);
    END LOOP;
END
$$;
REVOKE ALL ON SCHEMA trails FROM PUBLIC;
GRANT USAGE ON SCHEMA trails TO trails_app, trails_auditor;
DO $$
DECLARE
    here text := pg_catalog.current_database();
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', here);
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO trails_owner, trails_app, trails_auditor', here);
    -- For the database, not for single roles: a login does not inherit the settings of its group, and the
    -- auditors' queries name their tables without the schema.
    EXECUTE format('ALTER DATABASE %I SET search_path = trails', here);
    -- Compiling a query of the views takes longer than most of them run, and gains nothing on JSONB.
    EXECUTE format('ALTER DATABASE %I SET jit = off', here);
END
$$;
