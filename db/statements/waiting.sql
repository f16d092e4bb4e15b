-- name: queue
-- What waits for a person behind a place, of one chain or ($6 NULL) of all, oldest first, with its chain and the
-- newest record of that: whoever knows the chain up to there need not ask again. A time that no client can hold is
-- none that a record has.
SELECT w.log_uuid, w.action_id, w.held_at, a.agent_id, a.guarded, h.seq, h.hash
  FROM (SELECT q.log_uuid, q.action_id, q.held_at
          FROM (SELECT log_uuid, action_id,
                       least(greatest(held_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS held_at
                  FROM trails.waiting_actions
                 WHERE tenant_id = $1 AND ($6::uuid IS NULL OR log_uuid = $6)) AS q
         WHERE (q.held_at, q.log_uuid, q.action_id) > ($2, $3, $4::text)
         ORDER BY q.held_at, q.log_uuid, q.action_id
         LIMIT $5) AS w
  JOIN trails.agents AS a ON a.tenant_id = $1 AND a.log_uuid = w.log_uuid
  LEFT JOIN LATERAL (
       SELECT t.seq, t.hash
         FROM trails.agent_audit_trails AS t
        WHERE t.tenant_id = $1 AND t.log_uuid = w.log_uuid
        ORDER BY t.seq DESC
        LIMIT 1) AS h ON true
 ORDER BY w.held_at, w.log_uuid, w.action_id;

-- name: length
-- How many wait, counted up to $2.
SELECT count(*) FROM (SELECT FROM trails.waiting_actions WHERE tenant_id = $1 LIMIT $2) AS w;
