-- What waits for a person, of all agents of a tenant: so that the queue is found without a look at every chain.

-- An index and no evidence: a row says that an action was held and that no decision on it is on record; whoever
-- shows the queue asks the verified chain. It is as long as the queue, whatever there was before. Kept by a trigger
-- of the trail, so in the transaction of the records themselves.
CREATE TABLE trails.waiting_actions (
    tenant_id uuid        NOT NULL,
    log_uuid  uuid        NOT NULL,
    action_id text        COLLATE "C" NOT NULL,
    -- The place and the time of the record that holds it.
    seq       bigint      NOT NULL,
    held_at   timestamptz NOT NULL,
    CONSTRAINT waiting_actions_pkey PRIMARY KEY (tenant_id, log_uuid, action_id),
    CONSTRAINT waiting_actions_seq_range CHECK (seq >= 0)
);

-- Whether a decision on an action is on record. The kinds are those of trail_actions, so that it is used.
CREATE FUNCTION trails.is_decided_v1(tenant uuid, log uuid, action text) RETURNS boolean
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM trails.agent_audit_trails AS t
         WHERE t.tenant_id = tenant AND t.log_uuid = log AND t.trace_data ->> 'action_id' = action
           AND t.kind IN ('action_requested', 'approval_required', 'action_allowed', 'action_denied',
                          'action_rejected', 'outcome')
           AND t.kind IN ('action_allowed', 'action_denied', 'action_rejected'));
END
$$;
REVOKE ALL ON FUNCTION trails.is_decided_v1(uuid, uuid, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trails.is_decided_v1(uuid, uuid, text) TO trails_app, trails_auditor;

-- Called for the few records that begin or end a wait (the trigger's condition). A denial mostly is of an action that
-- never waited, and ends none then.
CREATE FUNCTION trails.keep_waiting_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF NEW.kind = 'approval_required' THEN
        -- In a restore both records come with one statement, in whatever order.
        INSERT INTO trails.waiting_actions (tenant_id, log_uuid, action_id, seq, held_at)
        SELECT NEW.tenant_id, NEW.log_uuid, NEW.trace_data ->> 'action_id', NEW.seq, NEW.created_at
         WHERE NOT trails.is_decided_v1(NEW.tenant_id, NEW.log_uuid, NEW.trace_data ->> 'action_id')
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM trails.waiting_actions AS w
         WHERE w.tenant_id = NEW.tenant_id AND w.log_uuid = NEW.log_uuid
           AND w.action_id = NEW.trace_data ->> 'action_id';
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION trails.keep_waiting_v1() FROM PUBLIC;

CREATE TRIGGER keep_waiting AFTER INSERT ON trails.agent_audit_trails
    FOR EACH ROW WHEN (
        CASE NEW.kind WHEN 'approval_required' THEN NOT NEW.trace_data ? 'joined'
                      WHEN 'action_allowed' THEN NEW.trace_data ->> 'approved_by' IS NOT NULL
                      ELSE NEW.kind IN ('action_denied', 'action_rejected') END
        AND NEW.trace_data ->> 'action_id' IS NOT NULL)
    EXECUTE FUNCTION trails.keep_waiting_v1();

-- The service may take a row out, since the trigger has its rights, and only then: when the decision is on record.
CREATE FUNCTION trails.check_waiting_v1() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF NOT trails.is_decided_v1(OLD.tenant_id, OLD.log_uuid, OLD.action_id) THEN
        RAISE EXCEPTION '% of chain % waits still: no decision is on record', OLD.action_id, OLD.log_uuid
            USING ERRCODE = 'TR001', CONSTRAINT = 'waiting_actions_decided',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    RETURN OLD;
END
$$;
REVOKE ALL ON FUNCTION trails.check_waiting_v1() FROM PUBLIC;

CREATE TRIGGER check_waiting BEFORE DELETE ON trails.waiting_actions
    FOR EACH ROW EXECUTE FUNCTION trails.check_waiting_v1();
CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR TRUNCATE ON trails.waiting_actions
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.agent_audit_trails ENABLE ALWAYS TRIGGER keep_waiting;
ALTER TABLE trails.waiting_actions
    ENABLE ALWAYS TRIGGER check_waiting, ENABLE ALWAYS TRIGGER refuse_change_statement;

-- What waits already. The owner sees no row under its own forced row security.
ALTER TABLE trails.agent_audit_trails NO FORCE ROW LEVEL SECURITY;
INSERT INTO trails.waiting_actions (tenant_id, log_uuid, action_id, seq, held_at)
SELECT t.tenant_id, t.log_uuid, t.trace_data ->> 'action_id', t.seq, t.created_at
  FROM trails.agent_audit_trails AS t
 WHERE t.kind = 'approval_required' AND NOT t.trace_data ? 'joined' AND t.trace_data ->> 'action_id' IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM trails.agent_audit_trails AS d
        WHERE d.tenant_id = t.tenant_id AND d.log_uuid = t.log_uuid
          AND d.trace_data ->> 'action_id' = t.trace_data ->> 'action_id'
          AND d.kind IN ('action_allowed', 'action_denied', 'action_rejected'))
ON CONFLICT DO NOTHING;
ALTER TABLE trails.agent_audit_trails FORCE ROW LEVEL SECURITY;

ALTER TABLE trails.waiting_actions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY app_reads ON trails.waiting_actions FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.waiting_actions FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_removes ON trails.waiting_actions FOR DELETE TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
GRANT SELECT, INSERT, DELETE ON trails.waiting_actions TO trails_app;
