-- Large objects belong to no table and to no tenant: what PostgreSQL lets everyone do with them is taken away in
-- this database. Reading functions stay, since without these nobody has one to read.
REVOKE EXECUTE ON FUNCTION
    pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea),
    pg_catalog.lo_put(oid, bigint, bytea), pg_catalog.lowrite(integer, bytea), pg_catalog.lo_unlink(oid),
    pg_catalog.lo_truncate(integer, integer), pg_catalog.lo_truncate64(integer, bigint)
    FROM PUBLIC;
