-- name: last_long
-- An export takes as long as it takes, each of its pieces so long at most; who takes it slowly is dealt with by the
-- server of HTTP. A process that is stuck must not keep the snapshot for ever.
SELECT set_config('statement_timeout', '15min', true), set_config('idle_in_transaction_session_timeout', '15min', true),
       set_config('DateStyle', 'ISO, YMD', true), set_config('TimeZone', 'UTC', true),
       set_config('IntervalStyle', 'iso_8601', true);

-- name: taken_at
-- The time of the snapshot, by the database's clock.
SELECT transaction_timestamp();

-- name: public_keys
-- The tenant's public keys, oldest first, without what only the service may read.
SELECT key_id, public_key,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.signing_keys
 WHERE tenant_id = $1
 ORDER BY created_at, key_id;

-- name: chains
-- The chains of a tenant, or of some of its agents, and how many records each has by its last one's seq.
SELECT a.agent_id, a.log_uuid,
       coalesce((SELECT max(t.seq) + 1 FROM trails.agent_audit_trails AS t
                  WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid), 0) AS length
  FROM trails.agents AS a
 WHERE a.tenant_id = $1 AND ($2::text[] IS NULL OR a.agent_id = ANY ($2))
 ORDER BY a.agent_id, a.log_uuid;

-- name: records
-- The records of a chain behind a position, so many and so many bytes of text at most, and one more. By seq and
-- hash: where somebody took the primary key away, a seq may stand twice, and both are evidence. A time that no
-- client can hold is none that a record has; it must not keep anybody from having the row.
SELECT agent_id, log_uuid, seq, created_at, kind, actor, session_id, prev_hash, hash, signature, key_id, signed_text
  FROM (SELECT page.*, sum(octet_length(signed_text)) OVER (ORDER BY seq, hash) - octet_length(signed_text) AS before
          FROM (SELECT agent_id, log_uuid, seq,
                       least(greatest(created_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00')
                           AS created_at,
                       kind, actor, session_id, prev_hash, hash, signature, key_id, signed_text
                  FROM trails.agent_audit_trails
                 WHERE tenant_id = $1 AND log_uuid = $2 AND (seq, hash) > ($3, $4)
                   AND ($7::timestamptz IS NULL OR created_at >= $7)
                   AND ($8::timestamptz IS NULL OR created_at < $8)
                 ORDER BY seq, hash
                 LIMIT $5) AS page) AS measured
 WHERE before < $6
 ORDER BY seq, hash;

-- name: columns
-- The columns of a view, and of which types they are.
SELECT attname::text, format_type(atttypid, NULL) AS type
  FROM pg_catalog.pg_attribute
 WHERE attrelid = ('trails.' || $1::text)::regclass AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum;
