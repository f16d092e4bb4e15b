-- The trigger as it was: it looks up three rows for every new one.
CREATE OR REPLACE FUNCTION trails.check_append_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    stray record;
BEGIN
    -- One query answers for all sound appends; what is wrong with a stray row is told from what it returns.
    SELECT n.log_uuid, n.seq, n.agent_id, n.key_id,
           n.agent_id IS DISTINCT FROM c.agent_id AS unregistered,
           c.key_id IS NULL AS unknown_key
      INTO stray
      FROM new_records AS n
     CROSS JOIN LATERAL (
           SELECT CASE WHEN n.seq = 0 THEN '0000000000000000000000000000000000000000000000000000000000000000'
                  ELSE (SELECT CASE WHEN p.seq = n.seq - 1 THEN p.hash END
                          FROM trails.agent_audit_trails AS p
                         WHERE p.tenant_id = n.tenant_id AND p.log_uuid = n.log_uuid AND p.seq < n.seq
                         ORDER BY p.seq DESC LIMIT 1)
                  END AS predecessor,
                  (SELECT a.agent_id FROM trails.agents AS a
                    WHERE a.tenant_id = n.tenant_id AND a.log_uuid = n.log_uuid AND a.agent_id = n.agent_id
                  ) AS agent_id,
                  (SELECT k.key_id FROM trails.signing_keys AS k
                    WHERE k.tenant_id = n.tenant_id AND k.key_id = n.key_id) AS key_id
           OFFSET 0) AS c
     WHERE n.prev_hash IS DISTINCT FROM c.predecessor OR c.agent_id IS NULL OR c.key_id IS NULL
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF stray.unregistered THEN
        RAISE EXCEPTION 'record % names chain % of agent %, which its tenant''s registry does not hold',
                        stray.seq, stray.log_uuid, stray.agent_id
            USING ERRCODE = 'TR003', CONSTRAINT = 'trail_registry',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    IF stray.unknown_key THEN
        RAISE EXCEPTION 'record % of chain % names key %, which its tenant''s registry does not hold',
                        stray.seq, stray.log_uuid, stray.key_id
            USING ERRCODE = 'TR003', CONSTRAINT = 'trail_signing_key',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    RAISE EXCEPTION 'record % of chain % does not follow record %: prev_hash is not its hash',
                    stray.seq, stray.log_uuid, stray.seq - 1
        USING ERRCODE = 'TR002', CONSTRAINT = 'trail_link',
              SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
