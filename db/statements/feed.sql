-- name: moment
-- What is committed at this moment (a snapshot), and of which database: a cursor of a copy that was set back, or of
-- a server that took over from another one, must not pass for one of this.
SELECT pg_current_snapshot()::text AS snapshot,
       (SELECT system_identifier FROM pg_control_system()) AS system,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint AS timeline,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database;

-- name: changed
-- Of the $3 chains after $2 (by their ids), those with records that are not seen yet, and the first of these: seen
-- is what the snapshot $4 shows, and what is older than $5; either may be NULL. Seen are the first records of a
-- chain up to some seq, so that it is found by halving, from the end backwards. The row that tells how far this
-- came is there in any case.
--
-- A row's xmin has 32 bits; it means the newest transaction of these bits that there has been. Of a row that is
-- older than 2^32 transactions that is wrong: it may look new, and is not seen then. Never the other way round.
WITH RECURSIVE now AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1 AS newest
), slice AS MATERIALIZED (
    SELECT a.log_uuid
      FROM trails.agents AS a
     WHERE a.tenant_id = $1 AND a.log_uuid > $2 AND ($6::text[] IS NULL OR a.agent_id = ANY ($6))
     ORDER BY a.log_uuid
     LIMIT $3
), head AS MATERIALIZED (
    SELECT s.log_uuid, h.seq
      FROM slice AS s
     CROSS JOIN LATERAL (
           SELECT t.seq, t.created_at, t.xmin::text::bigint AS xid
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = $1 AND t.log_uuid = s.log_uuid
            ORDER BY t.seq DESC
            LIMIT 1) AS h
     CROSS JOIN now AS n
     WHERE NOT coalesce(h.created_at < $5::timestamptz, false)
       AND NOT coalesce(pg_visible_in_snapshot(
               CASE WHEN h.xid < 3 THEN '3' ELSE greatest(3, n.newest - ((n.newest - h.xid) & 4294967295))::text END::xid8,
               $4::text::pg_snapshot), false)
), search AS (
    SELECT h.log_uuid, -1::bigint AS seen, h.seq AS unseen, 1::bigint AS step
      FROM head AS h
    UNION ALL
    SELECT s.log_uuid, CASE WHEN m.seen THEN s.middle ELSE s.seen END,
           CASE WHEN m.seen THEN s.unseen ELSE s.middle END, 8 * s.step
      FROM (SELECT *, greatest(seen + (unseen - seen) / 2, unseen - step) AS middle FROM search) AS s
      LEFT JOIN LATERAL (
           SELECT coalesce(t.created_at < $5::timestamptz, false)
                  OR coalesce(pg_visible_in_snapshot(
                         CASE WHEN t.xmin::text::bigint < 3 THEN '3'
                              ELSE greatest(3, n.newest - ((n.newest - t.xmin::text::bigint) & 4294967295))::text
                         END::xid8, $4::text::pg_snapshot), false) AS seen
             FROM now AS n, trails.agent_audit_trails AS t
            WHERE t.tenant_id = $1 AND t.log_uuid = s.log_uuid AND t.seq = s.middle) AS m ON true
     WHERE s.unseen - s.seen > 1 AND s.step < 4611686018427387904 / 8
)
SELECT e.log_uuid AS upto, e.examined, f.log_uuid, f.first, f.head
  FROM (SELECT count(*) AS examined, (SELECT s.log_uuid FROM slice AS s ORDER BY s.log_uuid DESC LIMIT 1) AS log_uuid
          FROM slice) AS e
  LEFT JOIN (SELECT s.log_uuid, min(s.unseen) AS first, h.seq AS head
               FROM search AS s JOIN head AS h ON h.log_uuid = s.log_uuid
              GROUP BY s.log_uuid, h.seq) AS f ON true
 ORDER BY f.log_uuid;

-- name: rows
-- The records of some chains between two places each, in this order. They end with the one that reaches the bytes
-- in $5; of kinds that are not wanted ($6; NULL: all are) there is no text. Each with its transaction, and whether
-- the snapshot $7 shows it.
SELECT log_uuid, seq, agent_id, kind, created_at, hash, signature, signed_text, size, xid,
       pg_visible_in_snapshot(xid::text::xid8, $7::text::pg_snapshot) AS shown
  FROM (SELECT t.*, p.place, sum(t.size) OVER (ORDER BY p.place, t.seq) - t.size AS before
          FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS p (log_uuid, first, last, place)
         CROSS JOIN LATERAL (
               SELECT r.log_uuid, r.seq, r.agent_id, r.kind,
                      least(greatest(r.created_at, '1970-01-01 00:00+00'), '9999-01-01 00:00+00') AS created_at,
                      r.hash, r.signature,
                      CASE WHEN $6::text[] IS NULL OR r.kind = ANY ($6) THEN r.signed_text END AS signed_text,
                      CASE WHEN $6::text[] IS NULL OR r.kind = ANY ($6)
                           THEN octet_length(r.signed_text) ELSE 0 END AS size,
                      CASE WHEN r.xmin::text::bigint < 3 THEN 3
                           ELSE greatest(3, n.newest - ((n.newest - r.xmin::text::bigint) & 4294967295)) END AS xid
                 FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1 AS newest) AS n,
                      trails.agent_audit_trails AS r
                WHERE r.tenant_id = $1 AND r.log_uuid = p.log_uuid AND r.seq >= p.first AND r.seq <= p.last
                ORDER BY r.seq
                LIMIT p.last - p.first + 1) AS t) AS measured
 WHERE before < $5
 ORDER BY place, seq;

-- name: newest_shown
-- The newest record of a chain that the snapshot $3 shows: asked only where transactions have been counted round,
-- so that old rows may look new.
SELECT t.seq
  FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1 AS newest) AS n, trails.agent_audit_trails AS t
 WHERE t.tenant_id = $1 AND t.log_uuid = $2
   AND pg_visible_in_snapshot(
           CASE WHEN t.xmin::text::bigint < 3 THEN '3'
                ELSE greatest(3, n.newest - ((n.newest - t.xmin::text::bigint) & 4294967295))::text END::xid8,
           $3::text::pg_snapshot)
 ORDER BY t.seq DESC
 LIMIT 1;
