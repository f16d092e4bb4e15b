-- name: name_nothing
-- Definitions are spelled with qualified names, and no object of ours hides one of PostgreSQL's.
SELECT pg_catalog.set_config('search_path', 'pg_catalog', true);

-- name: powers
-- What the connected role could do against the trail, one reason a row, that from which others follow first;
-- the service must have none.
SELECT power.rank, format(power.says, r.rolname) AS reason
  FROM pg_roles AS r,
       LATERAL (VALUES (1, 'role %s is a superuser', r.rolsuper),
                       (2, 'role %s passes by row security (BYPASSRLS)', r.rolbypassrls),
                       (2, 'role %s may make roles (CREATEROLE)', r.rolcreaterole),
                       (2, 'role %s may replicate the whole cluster (REPLICATION)', r.rolreplication))
           AS power (rank, says, held)
 WHERE power.held
   AND (r.rolname IN (current_user, session_user) OR pg_has_role(session_user, r.oid, 'MEMBER'))
UNION ALL
SELECT 3, format('it is a member of %s', r.rolname)
  FROM pg_roles AS r
 WHERE r.rolname IN ('pg_write_all_data', 'pg_execute_server_program', 'pg_write_server_files',
                     'pg_read_server_files')
   AND pg_has_role(session_user, r.oid, 'MEMBER')
UNION ALL
SELECT 4, format('it owns %I.%I, or may become its owner', n.nspname, c.relname)
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = 'trails' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND (pg_has_role(current_user, c.relowner, 'MEMBER') OR pg_has_role(session_user, c.relowner, 'MEMBER'))
UNION ALL
SELECT 5, 'it owns the schema trails, may become its owner, or may create objects in it'
  FROM pg_namespace AS n
 WHERE n.nspname = 'trails'
   AND (pg_has_role(session_user, n.nspowner, 'MEMBER') OR has_schema_privilege(current_user, n.oid, 'CREATE'))
UNION ALL
SELECT 6, format('it has the privilege %s on %I.%I', p.privilege, n.nspname, c.relname)
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace,
       (VALUES ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('TRIGGER')) AS p (privilege)
 WHERE n.nspname = 'trails' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   -- From the index of what waits a trigger takes what was decided, with the rights of whoever records that.
   AND (c.relname, p.privilege) <> ('waiting_actions', 'DELETE')
   -- How far webhooks are is a note in pencil, and no evidence of anything.
   AND NOT (c.relname = 'webhook_progress' AND p.privilege = 'UPDATE')
   AND (has_table_privilege(current_user, c.oid, p.privilege)
        OR (p.privilege = 'UPDATE' AND has_any_column_privilege(current_user, c.oid, 'UPDATE')))
 ORDER BY 1, 2;

-- name: server
-- What the server promises: durability, UTF-8, and triggers that are not switched off for this session.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_encoding') AS encoding,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       coalesce(current_setting('trails.disposable', true), '') AS disposable,
       current_setting('session_replication_role') AS session_replication_role,
       current_setting('row_security') AS row_security;

-- name: catalog
-- Everything in the catalog that keeps the trail honest, as pairs of a name and a definition.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity, c.relacl,
           c.relowner, c.relowner = n.nspowner AS owned_as_schema, c.reloptions
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = 'trails' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
)
SELECT 'relation ' || o.relname AS name,
       format('kind %s, persistence %s, row security %s, forced %s, owner of the schema %s', o.relkind,
              o.relpersistence, o.relrowsecurity, o.relforcerowsecurity, o.owned_as_schema)
           || CASE o.relkind WHEN 'v' THEN format(', options %s', o.reloptions) ELSE '' END AS definition
  FROM ours AS o
UNION ALL
-- A view selects columns of one function, whose text is compared byte for byte below. What is left of its own
-- definition differs between versions of PostgreSQL in the columns' prefix and in white space alone.
SELECT 'view ' || o.relname,
       btrim(regexp_replace(regexp_replace(pg_get_viewdef(o.oid), '\mv\.', '', 'g'), '\s+', ' ', 'g'))
  FROM ours AS o
 WHERE o.relkind = 'v'
UNION ALL
SELECT format('column %s.%s', o.relname, a.attname),
       concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                 'collate ' || nullif(l.collname, 'default'),
                 CASE WHEN a.attnotnull THEN 'not null' END,
                 CASE a.attgenerated WHEN '' THEN 'default' ELSE 'generated ' || a.attgenerated::text END
                     || ' ' || pg_get_expr(d.adbin, d.adrelid))
  FROM ours AS o
  JOIN pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
  LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE o.relkind <> 'S'
UNION ALL
SELECT format('constraint %s.%s', o.relname, k.conname),
       format('%s, validated %s', pg_get_constraintdef(k.oid), k.convalidated)
  FROM ours AS o JOIN pg_constraint AS k ON k.conrelid = o.oid
 WHERE k.contype IN ('c', 'p', 'u', 'f', 'x')
UNION ALL
-- Keys are enforced by these indexes; one that no append keeps up enforces nothing and hides rows. Any other
-- index is the administrator's.
SELECT format('index %s.%s', o.relname, i.relname),
       format('%s, unique %s, valid %s, ready %s', pg_get_indexdef(x.indexrelid), x.indisunique, x.indisvalid,
              x.indisready AND x.indislive)
  FROM ours AS o
  JOIN pg_index AS x ON x.indrelid = o.oid
  JOIN pg_class AS i ON i.oid = x.indexrelid
 WHERE x.indisunique OR x.indisexclusion OR x.indisvalid AND NOT (x.indisready AND x.indislive)
UNION ALL
SELECT format('trigger %s.%s', o.relname, t.tgname),
       format('%s, enabled %s', pg_get_triggerdef(t.oid), t.tgenabled)
  FROM ours AS o JOIN pg_trigger AS t ON t.tgrelid = o.oid
 WHERE NOT t.tgisinternal
UNION ALL
SELECT format('policy %s.%s', p.tablename, p.policyname),
       format('%s for %s to %s using (%s) with check (%s)', p.permissive, p.cmd, p.roles, p.qual, p.with_check)
  FROM pg_policies AS p
 WHERE p.schemaname = 'trails'
UNION ALL
SELECT format('function %s(%s)', f.proname, pg_get_function_identity_arguments(f.oid)),
       format('%s %s, security definer %s, settings %s, owner of the schema %s, leakproof %s, volatility %s, '
              'strict %s, returns %s, source sha256 %s', l.lanname,
              f.prokind, f.prosecdef, f.proconfig, f.proowner = n.nspowner, f.proleakproof, f.provolatile,
              f.proisstrict, pg_get_function_result(f.oid), encode(sha256(convert_to(f.prosrc, 'UTF8')), 'hex'))
  FROM pg_proc AS f
  JOIN pg_namespace AS n ON n.oid = f.pronamespace
  JOIN pg_language AS l ON l.oid = f.prolang
 WHERE n.nspname = 'trails'
UNION ALL
SELECT format('rule %s.%s', o.relname, r.rulename), pg_get_ruledef(r.oid)
  FROM ours AS o JOIN pg_rewrite AS r ON r.ev_class = o.oid
 WHERE o.relkind <> 'v' OR r.rulename <> '_RETURN'
UNION ALL
SELECT format('inheritance %s of %s', i.inhrelid::regclass, i.inhparent::regclass), 'present'
  FROM pg_inherits AS i
 WHERE i.inhparent IN (SELECT o.oid FROM ours AS o) OR i.inhrelid IN (SELECT o.oid FROM ours AS o)
UNION ALL
-- What the service and the auditors must be able to ask: a view is of no use without its functions.
SELECT format('grant SELECT on %s to %s', o.relname, r.rolname), 'present'
  FROM ours AS o, pg_roles AS r
 WHERE o.relkind = 'v' AND r.rolname IN ('trails_app', 'trails_auditor')
   AND has_table_privilege(r.oid, o.oid, 'SELECT')
UNION ALL
SELECT format('grant EXECUTE on %s(%s) to %s', f.proname, pg_get_function_identity_arguments(f.oid), r.rolname),
       'present'
  FROM pg_proc AS f JOIN pg_namespace AS n ON n.oid = f.pronamespace, pg_roles AS r
 WHERE n.nspname = 'trails' AND f.prorettype <> 'trigger'::regtype
   AND r.rolname IN ('trails_app', 'trails_auditor') AND has_function_privilege(r.oid, f.oid, 'EXECUTE')
UNION ALL
-- Reading may be granted to anybody (row security still decides); any other right may not.
SELECT format('grant %s on %s to %s', x.privilege_type, o.relname,
              CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END),
       CASE WHEN x.is_grantable THEN 'with grant option' ELSE 'without grant option' END
  FROM ours AS o, LATERAL aclexplode(o.relacl) AS x
 WHERE x.grantee <> o.relowner AND x.privilege_type <> 'SELECT'
UNION ALL
SELECT format('grant %s on %s.%s to %s', x.privilege_type, o.relname, a.attname,
              CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END),
       CASE WHEN x.is_grantable THEN 'with grant option' ELSE 'without grant option' END
  FROM ours AS o JOIN pg_attribute AS a ON a.attrelid = o.oid, LATERAL aclexplode(a.attacl) AS x
 WHERE x.grantee <> o.relowner AND x.privilege_type <> 'SELECT'
UNION ALL
SELECT format('grant %s on schema trails to %s', x.privilege_type,
              CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END),
       CASE WHEN x.is_grantable THEN 'with grant option' ELSE 'without grant option' END
  FROM pg_namespace AS n, LATERAL aclexplode(n.nspacl) AS x
 WHERE n.nspname = 'trails' AND x.grantee <> n.nspowner AND x.privilege_type <> 'USAGE'
UNION ALL
SELECT 'role ' || r.rolname,
       format('superuser %s, bypassrls %s, createrole %s, replication %s', r.rolsuper, r.rolbypassrls,
              r.rolcreaterole, r.rolreplication)
  FROM pg_roles AS r
 WHERE r.rolname IN ('trails_app', 'trails_auditor')
UNION ALL
-- By way of other roles too. A superuser is a member of every role, which says nothing new.
SELECT format('membership of %s in %s', r.rolname, power.rolname), 'present'
  FROM pg_roles AS r
  JOIN pg_roles AS power ON power.oid <> r.oid AND pg_has_role(r.oid, power.oid, 'MEMBER')
 WHERE r.rolname IN ('trails_app', 'trails_auditor') AND NOT r.rolsuper
   AND (power.rolsuper OR power.rolbypassrls OR power.rolcreaterole OR power.rolreplication
        OR power.oid = (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'trails')
        OR power.oid IN (SELECT o.relowner FROM ours AS o)
        OR power.rolname IN ('trails_owner', 'pg_write_all_data', 'pg_execute_server_program',
                             'pg_write_server_files', 'pg_read_server_files'))
UNION ALL
-- Settings that a session starts with. Of the service's role all but those that only bound or log its work;
-- for everybody those by which a commit or a check counts for less, or something hides PostgreSQL's own functions
-- from those of the views (its schema comes first unless a search path names it).
SELECT format('setting %s of %s in %s', given.name, coalesce(r.rolname, 'every role'),
              CASE s.setdatabase WHEN 0 THEN 'every database' ELSE 'this database' END),
       given.value
  FROM pg_db_role_setting AS s
  LEFT JOIN pg_roles AS r ON r.oid = s.setrole,
       LATERAL (SELECT lower(split_part(c.item, '=', 1)) AS name, substr(c.item, strpos(c.item, '=') + 1) AS value
                  FROM unnest(s.setconfig) AS c (item)) AS given
 WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
   AND (r.rolname = 'trails_app'
        AND given.name NOT IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
                               'idle_session_timeout', 'transaction_timeout', 'work_mem', 'application_name')
        AND NOT starts_with(given.name, 'log_')
        OR s.setrole = 0
        AND (given.name IN ('session_replication_role', 'row_security', 'synchronous_commit', 'role',
                            'session_preload_libraries', 'local_preload_libraries', 'zero_damaged_pages',
                            'ignore_checksum_failure')
             OR given.name = 'search_path' AND given.value ~ 'pg_catalog'
             OR starts_with(given.name, 'trails.')))
 ORDER BY 1;
