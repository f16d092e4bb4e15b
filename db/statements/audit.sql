-- name: scope
-- Who is asking, whether anything of ours is here, and whether row security hides rows from it.
SELECT current_user::text AS role,
       (SELECT bool_or(to_regclass('trails.' || name) IS NOT NULL)
          FROM unnest(ARRAY['agent_audit_trails', 'agents', 'signing_keys', 'tenants']) AS t (name)) AS migrated,
       CASE WHEN to_regclass('trails.agent_audit_trails') IS NOT NULL
            THEN row_security_active(to_regclass('trails.agent_audit_trails')::oid) END AS bound,
       coalesce(has_table_privilege(to_regclass('trails.tenants'), 'SELECT'), false) AS knows_tenants;

-- name: read_tables
-- An index may be damaged, or built to hide rows: the table itself is read. Dates in one spelling, and as
-- long as it takes.
SELECT set_config('enable_indexscan', 'off', true),
       set_config('enable_indexonlyscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_tidscan', 'on', true),
       set_config('DateStyle', 'ISO, YMD', true),
       set_config('TimeZone', 'UTC', true),
       set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true);

-- name: tenants
-- The tenants that this role may see.
SELECT tenant_id, coalesce(slug::text, tenant_id::text) AS slug FROM trails.tenants ORDER BY slug, tenant_id;

-- name: keys
-- All signing keys that this role may see, sealed. Times as text, as of the registry.
SELECT tenant_id, key_id::text, public_key::text, sealed_secret, created_at::text
  FROM trails.signing_keys
 ORDER BY tenant_id, created_at, key_id;

-- name: registry
-- All chains of the registry that this role may see: what must be in the trail. Times as text: there are some
-- that no client can hold.
SELECT tenant_id, coalesce(agent_id::text, '(none)'), log_uuid, guarded, created_at::text
  FROM trails.agents
 ORDER BY tenant_id, agent_id;

-- name: places
-- Where each row stands, or those of some tenants or chains, chain by chain in order, and how many bytes of
-- text it holds: what is sorted and held is small, however large the rows are. Of the chains in $3 and $4, only
-- those from the seqs in $5 on.
SELECT r.tableoid::bigint, r.ctid::text, r.tenant_id, r.log_uuid, r.seq,
       (SELECT coalesce(sum(octet_length(t.text)), 0)::bigint
          FROM (VALUES (r.signed_text::text), (r.agent_id::text), (r.kind::text), (r.actor::text),
                       (r.prev_hash::text), (r.hash::text), (r.signature::text), (r.key_id::text),
                       (r.idempotency_key::text)) AS t (text))
  FROM trails.agent_audit_trails AS r
  LEFT JOIN unnest($3::uuid[], $4::uuid[], $5::bigint[]) AS m (tenant_id, log_uuid, seq)
         ON m.tenant_id = r.tenant_id AND m.log_uuid = r.log_uuid
 WHERE ($1::uuid[] IS NULL OR r.tenant_id = ANY ($1))
   AND ($2::uuid[] IS NULL OR r.log_uuid = ANY ($2))
   AND (m.seq IS NULL OR r.seq IS NULL OR r.seq >= m.seq)
 ORDER BY r.tenant_id, r.log_uuid, r.seq, r.hash;

-- name: rows_at
-- The rows at some places, as they stand; without the mirror, which may be many times as long as its text.
SELECT tableoid::bigint, ctid::text, id,
       tenant_id, agent_id::text, log_uuid, seq, kind::text, actor::text, session_id, created_at::text,
       prev_hash::text, hash::text, signature::text, key_id::text, idempotency_key::text, signed_text::text
  FROM trails.agent_audit_trails
 WHERE ctid = ANY ($1::text[]::tid[]);

-- name: mirrors_at
-- Whether the mirror of the rows at some places is the payload of their text. Fails for a text that is no
-- JSON: such a row does not verify anyway, and the others are asked about again without it.
SELECT tableoid::bigint, ctid::text, trace_data IS NOT DISTINCT FROM (signed_text::jsonb) -> 'payload' AS same
  FROM trails.agent_audit_trails
 WHERE ctid = ANY ($1::text[]::tid[]);

-- name: repeated_keys
-- Idempotency keys that stand more than once in a chain: their request was carried out more than once.
SELECT tenant_id, max(agent_id::text) AS agent_id, log_uuid, idempotency_key::text AS key, count(*) AS records,
       min(seq) AS first_seq, max(seq) AS last_seq
  FROM trails.agent_audit_trails
 WHERE idempotency_key IS NOT NULL
   AND ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
   AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
 GROUP BY tenant_id, log_uuid, idempotency_key
HAVING count(*) > 1
 ORDER BY tenant_id, log_uuid, min(seq)
 LIMIT 100;

-- name: spans_indexed
-- Whether there is an index of spans yet.
SELECT to_regclass('trails.spans') IS NOT NULL;

-- name: stray_spans
-- Records that the index of spans names for spans which they do not hold, or which are not there. The mirror is
-- asked: in the same snapshot each was compared with the signed text. One look at a record for all its spans.
SELECT s.tenant_id, s.log_uuid, s.seq, t.agent_id::text AS agent_id, t.seq IS NULL AS missing
  FROM (SELECT tenant_id, log_uuid, seq,
               array_agg(encode(trace_id, 'hex') || '/' || encode(span_id, 'hex')) AS spans
          FROM trails.spans
         WHERE ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
           AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
         GROUP BY tenant_id, log_uuid, seq) AS s
  LEFT JOIN trails.agent_audit_trails AS t USING (tenant_id, log_uuid, seq)
 WHERE NOT s.spans <@ CASE WHEN t.kind = 'trace' AND jsonb_typeof(t.trace_data -> 'trace_tree') = 'array'
                           THEN ARRAY(SELECT (n.node #>> '{metadata,otel,trace_id}') || '/'
                                             || (n.node #>> '{metadata,otel,span_id}')
                                        FROM jsonb_array_elements(t.trace_data -> 'trace_tree') AS n (node))
                           ELSE ARRAY[]::text[] END
 ORDER BY s.tenant_id, s.log_uuid, s.seq
 LIMIT 100;

-- name: sendings_indexed
-- Whether there is an index of sendings yet.
SELECT to_regclass('trails.sendings') IS NOT NULL;

-- name: stray_sendings
-- Records of which the index of sendings says what they do not hold, or not what they hold although their chain
-- sent more than one to the session: that is always written with them. Spelled out here, so that no function of
-- the database is believed, and compared as for the spans.
WITH said AS (
    SELECT tenant_id, log_uuid, seq,
           array_agg(jsonb_build_array(session_id, node_id, guarded, tool, status)) AS nodes
      FROM trails.sendings
     WHERE ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
       AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
     GROUP BY tenant_id, log_uuid, seq
), again AS (
    SELECT tenant_id, session_id, log_uuid
      FROM trails.agent_audit_trails
     WHERE ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
       AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
       AND trace_data ? 'trace_tree'
       AND NOT (session_id = log_uuid AND kind IN ('outcome', 'action_denied', 'action_rejected'))
     GROUP BY tenant_id, session_id, log_uuid
    HAVING count(*) > 1
), compared AS (
    SELECT s.tenant_id, s.log_uuid, s.seq, t.agent_id::text AS agent_id, t.seq IS NULL AS missing,
           EXISTS (SELECT unnest(s.nodes) EXCEPT SELECT unnest(n.nodes)) AS stray,
           a.log_uuid IS NOT NULL
               AND NOT (t.session_id = t.log_uuid
                        AND t.kind IN ('outcome', 'action_denied', 'action_rejected'))
               AND EXISTS (SELECT unnest(n.nodes) EXCEPT SELECT unnest(s.nodes)) AS untold
      FROM (SELECT coalesce(s.tenant_id, t.tenant_id) AS tenant_id, coalesce(s.log_uuid, t.log_uuid) AS log_uuid,
                   coalesce(s.seq, t.seq) AS seq, s.nodes
              FROM said AS s
              FULL JOIN (SELECT r.tenant_id, r.log_uuid, r.seq
                           FROM trails.agent_audit_trails AS r
                           JOIN again USING (tenant_id, session_id, log_uuid)
                          WHERE r.trace_data ? 'trace_tree') AS t USING (tenant_id, log_uuid, seq)) AS s
      LEFT JOIN trails.agent_audit_trails AS t USING (tenant_id, log_uuid, seq)
      LEFT JOIN again AS a
        ON a.tenant_id = t.tenant_id AND a.session_id = t.session_id AND a.log_uuid = t.log_uuid
     CROSS JOIN LATERAL (
           SELECT array_agg(jsonb_build_array(
                      t.session_id, i.node_id, t.kind IN ('outcome', 'action_denied', 'action_rejected'),
                      CASE WHEN i.call AND char_length(i.node ->> 'name') <= 1024 THEN i.node ->> 'name' END,
                      CASE WHEN i.call AND char_length(i.node -> 'outputs' ->> 'status') <= 64
                           THEN i.node -> 'outputs' ->> 'status' END)) AS nodes
             FROM (SELECT DISTINCT ON (lower(x.node ->> 'node_id'))
                          x.node, lower(x.node ->> 'node_id') AS node_id,
                          x.node ->> 'node_type' = 'TOOL_CALL' AS call
                     FROM jsonb_path_query(t.trace_data, 'lax $.trace_tree[*]') WITH ORDINALITY AS x (node, place)
                    WHERE x.node ->> 'node_id'
                          ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$'
                    ORDER BY lower(x.node ->> 'node_id'), x.place DESC) AS i) AS n
)
SELECT tenant_id, log_uuid, seq, agent_id, missing, stray
  FROM compared
 WHERE stray OR untold
 ORDER BY tenant_id, log_uuid, seq
 LIMIT 100;

-- name: waiting_indexed
-- Whether there is an index of what waits for a person yet.
SELECT to_regclass('trails.waiting_actions') IS NOT NULL;

-- name: stray_waiting
-- Actions that the index of what waits names although no record holds them so, or a decision is on record; and those
-- that it should name and does not. Compared as for the spans.
WITH said AS (
    SELECT tenant_id, log_uuid, action_id::text, seq, held_at
      FROM trails.waiting_actions
     WHERE ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
       AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
), told AS (
    SELECT tenant_id, log_uuid, trace_data ->> 'action_id' AS action_id, seq, created_at, agent_id::text,
           kind = 'approval_required' AS holds
      FROM trails.agent_audit_trails
     WHERE kind IN ('approval_required', 'action_allowed', 'action_denied', 'action_rejected')
       AND NOT (kind = 'approval_required' AND trace_data ? 'joined')
       AND ($1::uuid[] IS NULL OR tenant_id = ANY ($1))
       AND ($2::uuid[] IS NULL OR log_uuid = ANY ($2))
), decided AS (
    SELECT DISTINCT tenant_id, log_uuid, action_id FROM told WHERE NOT holds AND action_id IS NOT NULL
)
SELECT s.tenant_id, s.log_uuid, s.seq, s.action_id, a.agent_id::text AS agent_id, true AS stray,
       d.action_id IS NOT NULL AS decided
  FROM said AS s
  LEFT JOIN told AS h
    ON h.holds AND h.tenant_id = s.tenant_id AND h.log_uuid = s.log_uuid AND h.action_id = s.action_id
   AND h.seq = s.seq AND h.created_at = s.held_at
  LEFT JOIN decided AS d
    ON d.tenant_id = s.tenant_id AND d.log_uuid = s.log_uuid AND d.action_id = s.action_id
  LEFT JOIN trails.agents AS a ON a.tenant_id = s.tenant_id AND a.log_uuid = s.log_uuid
 WHERE h.seq IS NULL OR d.action_id IS NOT NULL
 UNION ALL
SELECT h.tenant_id, h.log_uuid, min(h.seq), h.action_id, min(h.agent_id), false, false
  FROM told AS h
  LEFT JOIN said AS s
    ON s.tenant_id = h.tenant_id AND s.log_uuid = h.log_uuid AND s.action_id = h.action_id
  LEFT JOIN decided AS d
    ON d.tenant_id = h.tenant_id AND d.log_uuid = h.log_uuid AND d.action_id = h.action_id
 WHERE h.holds AND h.action_id IS NOT NULL AND s.action_id IS NULL AND d.action_id IS NULL
 GROUP BY h.tenant_id, h.log_uuid, h.action_id
 ORDER BY 1, 2, 3
 LIMIT 100;

-- name: revision_readable
-- Whether this role may read at which revision the schema is, if it is at one: an auditor may not.
SELECT coalesce(has_table_privilege(to_regclass('trails.alembic_version')::oid, 'SELECT'), true);

-- name: administration_readable
-- Whether this role may read what is compared with the records of administration: an auditor may not.
SELECT coalesce(bool_and(has_table_privilege(to_regclass('trails.' || name)::oid, 'SELECT')), false)
  FROM unnest(ARRAY['tenants', 'api_keys', 'api_key_revocations', 'tenant_suspensions', 'sql_logins',
                    'signing_keys', 'webhooks']) AS t (name);

-- name: tenant_names
-- What tenants are called.
SELECT tenant_id, slug::text, name::text FROM trails.tenants WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1);

-- name: api_keys
-- API keys, as far as records tell of them. Times as text, here and below: there are some that no client can
-- hold.
SELECT tenant_id, key_id::text, role::text, agent_id::text, name::text, created_at::text, expires_at::text
  FROM trails.api_keys
 WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1)
 ORDER BY tenant_id, created_at, key_id;

-- name: revocations
-- API keys that were revoked.
SELECT tenant_id, key_id::text, revoked_at::text
  FROM trails.api_key_revocations
 WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1)
 ORDER BY tenant_id, revoked_at, key_id;

-- name: webhooks_there
-- Whether there is a table of webhooks yet.
SELECT to_regclass('trails.webhooks') IS NOT NULL;

-- name: webhooks
-- Webhooks as they were set up, those that were ended too.
SELECT tenant_id, webhook_id::text, name::text, kinds, agents, sealed, created_at::text
  FROM trails.webhooks
 WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1)
 ORDER BY tenant_id, created_at, webhook_id;

-- name: suspensions
-- What was said of tenants' suspension, in order.
SELECT tenant_id, suspended, changed_at::text
  FROM trails.tenant_suspensions
 WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1)
 ORDER BY tenant_id, changed_at;

-- name: sql_logins
-- SQL logins, and whether the cluster has a role that is called so.
SELECT l.tenant_id, l.login::text, l.name::text, l.created_at::text, r.oid IS NOT NULL AS is_role
  FROM trails.sql_logins AS l
  LEFT JOIN pg_catalog.pg_roles AS r ON r.rolname = l.login
 WHERE $1::uuid[] IS NULL OR l.tenant_id = ANY ($1)
 ORDER BY l.tenant_id, l.created_at, l.login;

-- name: roles_among
-- Those of some names that are roles of the cluster.
SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY ($1::text[]);

-- name: signing_keys
-- Signing keys, oldest first: those of the old form, then those whose seal says when they were made.
SELECT tenant_id, public_key::text
  FROM trails.signing_keys
 WHERE $1::uuid[] IS NULL OR tenant_id = ANY ($1)
 ORDER BY tenant_id, octet_length(sealed_secret) <> 60, created_at, key_id;

-- name: chain_places
-- Where the records of one chain after a position stand: for export and show.
SELECT tableoid::bigint, ctid::text, tenant_id, log_uuid, seq, octet_length(signed_text)::bigint
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq > $3
 ORDER BY seq, hash;

-- name: records_at
-- The records at some places, as they stand.
SELECT tableoid::bigint, ctid::text, signed_text, hash, signature
  FROM trails.agent_audit_trails
 WHERE ctid = ANY ($1::text[]::tid[]);

-- name: find_own_chain
-- The chain of one agent, for a login that sees one tenant and no names of tenants.
SELECT tenant_id, NULL::text AS slug, log_uuid FROM trails.agents WHERE agent_id = $1;

-- name: find_chain
-- The chain of one agent, in the tenants that are visible.
SELECT a.tenant_id, t.slug, a.log_uuid
  FROM trails.agents AS a LEFT JOIN trails.tenants AS t USING (tenant_id)
 WHERE a.agent_id = $1 AND ($2::text IS NULL OR t.slug = $2)
 ORDER BY t.slug, a.tenant_id;

-- name: own_tenant
-- The tenant of an auditor's login.
SELECT tenant_id FROM trails.sql_logins WHERE login = current_user;

-- name: tenant_called
-- The tenant of a slug.
SELECT tenant_id FROM trails.tenants WHERE slug = $1;
