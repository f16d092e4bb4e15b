-- The claim of one action, if there is one: its action_id is that of an action, so it is short. An index of its
-- own, since trail_actions would have to be built again, over many more records, to take this kind in.
CREATE INDEX trail_claims ON trails.agent_audit_trails (tenant_id, log_uuid, (trace_data ->> 'action_id'))
    WHERE kind = 'action_claimed';
