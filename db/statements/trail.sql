-- name: append
-- One statement is one transaction and one round trip, for rows of any number of chains and tenants. The
-- rows come out of a join with the setting, so that row security cannot be asked before it is made.
WITH tenant AS MATERIALIZED (
    SELECT set_config('trails.tenants', $1, true) AS named
)
INSERT INTO trails.agent_audit_trails
    (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
     prev_hash, hash, signature, key_id, idempotency_key, signed_text)
SELECT r.tenant_id, r.agent_id, r.log_uuid, r.seq, r.kind, r.actor, r.session_id, r.created_at,
       r.prev_hash, r.hash, r.signature, r.key_id, r.idempotency_key, r.signed_text
  FROM tenant,
       unnest($2::uuid[], $3::text[], $4::uuid[], $5::bigint[], $6::text[], $7::text[], $8::uuid[],
              $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
           AS r (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
                 prev_hash, hash, signature, key_id, idempotency_key, signed_text)
 WHERE tenant.named IS NOT NULL;

-- name: append_with_index
-- The same with new chains and with the spans that the records hold: all of it is one statement too. The
-- trigger that asks the registry runs after all parts of the statement. The records come first, then the spans
-- in the order of their key, so that writers of the same spans wait for each other without a deadlock.
WITH tenant AS MATERIALIZED (
    SELECT set_config('trails.tenants', $1, true) AS named
), registered AS (
    INSERT INTO trails.agents (tenant_id, agent_id, log_uuid, guarded, created_at)
    SELECT c.tenant_id, c.agent_id, c.log_uuid, c.guarded, c.created_at
      FROM tenant,
           unnest($16::uuid[], $17::text[], $18::uuid[], $19::boolean[], $20::timestamptz[])
               AS c (tenant_id, agent_id, log_uuid, guarded, created_at)
     WHERE tenant.named IS NOT NULL
), indexed AS (
    INSERT INTO trails.spans (tenant_id, trace_id, span_id, log_uuid, seq)
    SELECT s.tenant_id, s.trace_id, s.span_id, s.log_uuid, s.seq
      FROM tenant,
           unnest($21::uuid[], $22::bytea[], $23::bytea[], $24::uuid[], $25::bigint[])
               AS s (tenant_id, trace_id, span_id, log_uuid, seq)
     WHERE tenant.named IS NOT NULL
)
INSERT INTO trails.agent_audit_trails
    (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
     prev_hash, hash, signature, key_id, idempotency_key, signed_text)
SELECT r.tenant_id, r.agent_id, r.log_uuid, r.seq, r.kind, r.actor, r.session_id, r.created_at,
       r.prev_hash, r.hash, r.signature, r.key_id, r.idempotency_key, r.signed_text
  FROM tenant,
       unnest($2::uuid[], $3::text[], $4::uuid[], $5::bigint[], $6::text[], $7::text[], $8::uuid[],
              $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
           AS r (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
                 prev_hash, hash, signature, key_id, idempotency_key, signed_text)
 WHERE tenant.named IS NOT NULL;

-- name: head
-- The newest record's position: what every optimistic append and every fresh read compare with.
SELECT seq, hash
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2
 ORDER BY seq DESC
 LIMIT 1;

-- name: records
-- The records after a position, in order: rebuilding, catching up, pages of a log. They end with the one that
-- reaches the bytes in $5, so that large records cost no more memory than small ones. The length of a text is
-- known without reading it. A time that no client can hold is none that a record has: it must not keep anybody
-- from reading the row, and finding the fault.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id,
       least(greatest(created_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00') AS created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM (SELECT page.*, sum(octet_length(signed_text)) OVER (ORDER BY seq) - octet_length(signed_text) AS before
          FROM (SELECT *
                  FROM trails.agent_audit_trails
                 WHERE tenant_id = $1 AND log_uuid = $2 AND seq > $3
                 ORDER BY seq
                 LIMIT $4) AS page) AS measured
 WHERE before < $5
 ORDER BY seq;

-- name: row_at
-- One record by its position.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq = $3;

-- name: rows_at
-- Several records by their positions: the requests that wait for a person.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq = ANY ($3::bigint[])
 ORDER BY seq;

-- name: by_idempotency
-- The record that an Idempotency-Key (hashed) stands in: the first answer is given again from it.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND idempotency_key = $3;

-- name: by_idempotency_keys
-- The same for the keys of a batch.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND idempotency_key = ANY ($3::text[]);

-- name: span_rows
-- Which of these spans one chain holds, and where.
SELECT s.tenant_id, s.trace_id, s.span_id, s.log_uuid, s.seq
  FROM unnest($3::bytea[], $4::bytea[]) AS k (trace_id, span_id)
  JOIN trails.spans AS s
    ON s.tenant_id = $1 AND s.trace_id = k.trace_id AND s.span_id = k.span_id AND s.log_uuid = $2;

-- name: rows_of
-- The records of several chains at their places, in the order asked for: those that the index of spans names.
-- With $4 they end with the one that reaches so many bytes; the length of a text is known without reading it.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM (SELECT t.*, p.place,
               sum(octet_length(t.signed_text)) OVER (ORDER BY p.place) - octet_length(t.signed_text) AS before
          FROM unnest($2::uuid[], $3::bigint[]) WITH ORDINALITY AS p (log_uuid, seq, place)
          JOIN trails.agent_audit_trails AS t
            ON t.tenant_id = $1 AND t.log_uuid = p.log_uuid AND t.seq = p.seq) AS measured
 WHERE $4::bigint IS NULL OR before < $4
 ORDER BY place;

-- name: action_rows
-- The records of one action, without those of asks that joined it; the kinds are those of trail_actions.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND trace_data ->> 'action_id' = $3
   AND kind IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                'action_rejected', 'outcome')
   AND NOT trace_data ? 'joined'
 ORDER BY seq;

-- name: claim_row
-- The claim of one action behind $3 and up to $4, where it is if there is one.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq > $3 AND seq <= $4
   AND kind = 'action_claimed' AND trace_data ->> 'action_id' = $5
 ORDER BY seq
 LIMIT 1;

-- name: scar_rows
-- All scars up to a position, for the status; the fold's digest proves that none is missing.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq <= $3 AND kind = 'scar'
 ORDER BY seq;

-- name: newest_snapshot
-- The newest snapshot of a chain up to a position: where opening it begins.
SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
       prev_hash, hash, signature, key_id, idempotency_key, signed_text
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND seq <= $3 AND kind = 'snapshot'
 ORDER BY seq DESC
 LIMIT 1;
