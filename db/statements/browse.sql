-- name: agents_after
-- Some agents by id, behind $2, whose id holds $3 in whatever case; guarded or not as $4 says, if it does.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1 AND agent_id > $2 AND agent_id <> '_administration'
   AND position($3 IN lower(agent_id)) > 0 AND ($4::boolean IS NULL OR guarded = $4)
 ORDER BY agent_id
 LIMIT $5;

-- name: agents_before
-- The same the other way round: before $2 (NULL: from the last one), the last first.
SELECT tenant_id, agent_id, log_uuid, guarded,
       least(greatest(created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at
  FROM trails.agents
 WHERE tenant_id = $1 AND ($2::text IS NULL OR agent_id < $2) AND agent_id <> '_administration'
   AND position($3 IN lower(agent_id)) > 0 AND ($4::boolean IS NULL OR guarded = $4)
 ORDER BY agent_id DESC
 LIMIT $5;

-- name: agents_count
-- How many of them there are: the registry alone is asked.
SELECT count(*)
  FROM trails.agents
 WHERE tenant_id = $1 AND agent_id <> '_administration'
   AND position($2 IN lower(agent_id)) > 0 AND ($3::boolean IS NULL OR guarded = $3);

-- name: first_since
-- The first seq below $4 whose time is not before $3 ($4: there is none). Times of a chain never go back, so it
-- is found by halving; a gap or a time that was changed makes the answer inexact, never endless.
WITH RECURSIVE search (low, high, step) AS (
    SELECT 0::bigint, $4::bigint, 0
    UNION ALL
    SELECT CASE WHEN found.created_at < $3 THEN (s.low + s.high) / 2 + 1 ELSE s.low END,
           CASE WHEN found.created_at < $3 THEN s.high ELSE (s.low + s.high) / 2 END,
           s.step + 1
      FROM search AS s
           LEFT JOIN LATERAL (SELECT t.created_at
                                FROM trails.agent_audit_trails AS t
                               WHERE t.tenant_id = $1 AND t.log_uuid = $2 AND t.seq >= (s.low + s.high) / 2
                               ORDER BY t.seq
                               LIMIT 1) AS found ON true
     WHERE s.low < s.high AND s.step < 70
)
SELECT max(low) AS seq
  FROM search;

-- name: first_of_action
-- Where an action was asked for, by the index of actions.
SELECT min(seq) AS seq
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND trace_data ->> 'action_id' = $3
   AND kind IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                'action_rejected', 'outcome');

-- name: span_of_session
-- Between which records of a chain those of a session stand, by the index of sessions.
SELECT min(seq) AS first, max(seq) AS last
  FROM trails.agent_audit_trails
 WHERE tenant_id = $1 AND log_uuid = $2 AND session_id = $3;

-- name: records_up
-- The records from $3 on and before $4 that are asked for, in order: at most $5, ending with the one that reaches
-- the bytes in $6; each with the hash of the record before it. So many places of the primary key are looked at,
-- whatever is asked for.
SELECT m.tenant_id, m.agent_id, m.log_uuid, m.seq, m.kind, m.actor, m.session_id,
       least(greatest(m.created_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00') AS created_at,
       m.prev_hash, m.hash, m.signature, m.key_id, m.idempotency_key, m.signed_text, p.hash AS before_hash
  FROM (SELECT page.*, sum(octet_length(signed_text)) OVER (ORDER BY seq) - octet_length(signed_text) AS before
          FROM (SELECT *
                  FROM trails.agent_audit_trails
                 WHERE tenant_id = $1 AND log_uuid = $2 AND seq >= $3 AND seq < $4
                   AND ($7::text IS NULL OR kind = $7) AND ($8::text IS NULL OR actor = $8)
                   AND ($9::text IS NULL OR trace_data ->> 'action_id' = $9)
                   AND ($10::text IS NULL OR trace_data ->> 'act' = $10)
                   AND ($11::uuid IS NULL OR session_id = $11)
                 ORDER BY seq
                 LIMIT $5) AS page) AS m
       LEFT JOIN trails.agent_audit_trails AS p
              ON p.tenant_id = $1 AND p.log_uuid = $2 AND p.seq = m.seq - 1
 WHERE m.before < $6
 ORDER BY m.seq;

-- name: records_down
-- The same from the last one down.
SELECT m.tenant_id, m.agent_id, m.log_uuid, m.seq, m.kind, m.actor, m.session_id,
       least(greatest(m.created_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00') AS created_at,
       m.prev_hash, m.hash, m.signature, m.key_id, m.idempotency_key, m.signed_text, p.hash AS before_hash
  FROM (SELECT page.*,
               sum(octet_length(signed_text)) OVER (ORDER BY seq DESC) - octet_length(signed_text) AS before
          FROM (SELECT *
                  FROM trails.agent_audit_trails
                 WHERE tenant_id = $1 AND log_uuid = $2 AND seq >= $3 AND seq < $4
                   AND ($7::text IS NULL OR kind = $7) AND ($8::text IS NULL OR actor = $8)
                   AND ($9::text IS NULL OR trace_data ->> 'action_id' = $9)
                   AND ($10::text IS NULL OR trace_data ->> 'act' = $10)
                   AND ($11::uuid IS NULL OR session_id = $11)
                 ORDER BY seq DESC
                 LIMIT $5) AS page) AS m
       LEFT JOIN trails.agent_audit_trails AS p
              ON p.tenant_id = $1 AND p.log_uuid = $2 AND p.seq = m.seq - 1
 WHERE m.before < $6
 ORDER BY m.seq DESC;
