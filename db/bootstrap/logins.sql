-- What PostgreSQL lets everyone do and no auditor has to, taken away in this database.

-- Large objects belong to no table and to no tenant: what PostgreSQL lets everyone do with them is taken away in
-- this database. Reading functions stay, since without these nobody has one to read.
REVOKE EXECUTE ON FUNCTION
    pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea),
    pg_catalog.lo_put(oid, bigint, bytea), pg_catalog.lowrite(integer, bytea), pg_catalog.lo_unlink(oid),
    pg_catalog.lo_truncate(integer, integer), pg_catalog.lo_truncate64(integer, bigint)
    FROM PUBLIC;

-- One session can fill the table of locks that all sessions share, and then nobody appends. The service takes no
-- advisory lock; who migrates takes one, as a member of the owner.
DO $$
DECLARE
    named regprocedure;
BEGIN
    FOR named IN
        SELECT p.oid FROM pg_catalog.pg_proc AS p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace
           AND (p.proname ~ '^pg_(try_)?advisory_(xact_)?lock' OR p.proname = 'pg_logical_emit_message')
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', named);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO trails_owner', named);
    END LOOP;
END
$$;
