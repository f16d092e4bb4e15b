-- Takes the views for dashboards away and brings those of before back; no record is touched.
DROP VIEW trails.approvals_waiting, trails.daily_tool_calls, trails.model_usage, trails.events, trails.claims,
          trails.decisions, trails.approvals, trails.chain_check;
DROP FUNCTION trails.approvals_waiting_v1(), trails.daily_tool_calls_v1(), trails.model_usage_v1(),
              trails.events_v1(), trails.claims_v1(), trails.decisions_v1(),
              trails.request_v1(uuid, uuid, bigint, text), trails.approvals_v2(), trails.chain_check_v2();
DROP INDEX trails.trail_marks;

CREATE FUNCTION trails.approvals_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, input jsonb, cost numeric,
    session_id uuid, requested_at timestamptz, decided_at timestamptz, waited interval, decision text,
    decided_by text, note text, joins bigint, seq bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.action_id, a.tool, a.input, a.cost, a.session_id,
           a.requested_at, a.decided_at, coalesce(a.decided_at, now()) - a.requested_at,
           CASE a.decision WHEN 'allowed' THEN 'approved' WHEN 'pending_approval' THEN 'pending'
                           ELSE a.decision END,
           coalesce(a.approved_by, a.rejected_by, a.decider),
           coalesce(a.note, a.reason ->> 'reason', a.reason_code),
           a.joins, a.seq
      FROM trails.actions_v1() AS a
     WHERE a.held
$$;

CREATE FUNCTION trails.chain_check_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, seq bigint, hash_ok boolean, link_ok boolean, seq_ok boolean,
    mirror_ok boolean, ok boolean, problem text)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT c.tenant_id, c.agent_id, c.log_uuid, c.seq, c.hash_ok, c.link_ok, c.seq_ok, c.mirror_ok,
           c.hash_ok AND c.link_ok AND c.seq_ok AND c.mirror_ok,
           nullif(concat_ws('; ',
               CASE WHEN NOT c.hash_ok THEN 'hash is not the SHA-256 of the signed text' END,
               CASE WHEN NOT c.link_ok THEN 'prev_hash is not the hash of the record before' END,
               CASE WHEN NOT c.seq_ok THEN 'seq does not follow on the record before' END,
               CASE WHEN NOT c.mirror_ok THEN 'columns or trace_data are not what the signed text says' END), '')
      FROM (SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq,
                   coalesce(t.hash = encode(sha256(convert_to(E'lineage-audit-v1\n' || t.signed_text, 'UTF8')),
                                            'hex'), false) AS hash_ok,
                   coalesce(t.prev_hash = coalesce(lag(t.hash) OVER chain, repeat('0', 64)), false) AS link_ok,
                   coalesce(t.seq = coalesce(lag(t.seq) OVER chain + 1, 0), false) AS seq_ok,
                   coalesce(j.record @> jsonb_build_object(
                                'seq', t.seq, 'kind', t.kind, 'actor', t.actor, 'prev_hash', t.prev_hash, 'timestamp',
                                to_char(t.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
                            AND t.trace_data = j.record -> 'payload'
                            AND t.session_id::text
                                = lower(coalesce(j.record -> 'payload' ->> 'session_id', t.log_uuid::text))
                            AND t.idempotency_key IS NOT DISTINCT FROM
                                (j.record -> 'payload' -> 'idempotency' ->> 'key'), false) AS mirror_ok
              FROM trails.agent_audit_trails AS t
             CROSS JOIN LATERAL (SELECT trails.json_v1(t.signed_text) AS record OFFSET 0) AS j
            WINDOW chain AS (PARTITION BY t.tenant_id, t.agent_id, t.log_uuid ORDER BY t.seq)) AS c
$$;

CREATE OR REPLACE FUNCTION trails.agents_status_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, guarded boolean, alive boolean, termination_reason text,
    terminated_at timestamptz, budget numeric, spent numeric, remaining numeric, scar_score bigint,
    scar_limit bigint, actions_requested bigint, actions_allowed bigint, actions_denied bigint,
    actions_pending bigint, head_seq bigint, head_hash text, created_at timestamptz, last_record_at timestamptz)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.guarded, e.created_at IS NULL, e.reason, e.created_at,
           p.budget, c.spent, CASE WHEN p.budget IS NOT NULL THEN greatest(p.budget - c.spent, 0) END, s.score,
           p.scar_limit, c.requested, c.allowed, c.denied, c.pending, h.seq, h.hash, a.created_at, h.created_at
      FROM trails.agents AS a
      LEFT JOIN LATERAL (
           SELECT trails.number_v1(t.trace_data -> 'policy' -> 'budget') AS budget,
                  trails.count_v1(t.trace_data -> 'policy' -> 'scar_limit') AS scar_limit
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid AND t.seq = 1 AND t.kind = 'policy'
           ) AS p ON true
      LEFT JOIN LATERAL (
           SELECT t.trace_data ->> 'reason' AS reason, t.created_at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid AND t.kind = 'terminated'
            ORDER BY t.seq
            LIMIT 1) AS e ON true
      LEFT JOIN LATERAL (
           SELECT count(*) AS requested,
                  count(*) FILTER (WHERE t.decision = 'allowed') AS allowed,
                  count(*) FILTER (WHERE t.decision IN ('denied', 'rejected')) AS denied,
                  count(*) FILTER (WHERE t.decision = 'pending_approval') AS pending,
                  coalesce(sum(t.cost) FILTER (WHERE t.decision = 'allowed'), 0) AS spent
             FROM trails.actions_v1() AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid) AS c ON true
      LEFT JOIN LATERAL (
           SELECT coalesce(max(t.score_after), 0) AS score
             FROM trails.scars_v1() AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid) AS s ON true
      LEFT JOIN LATERAL (
           SELECT t.seq, t.hash, t.created_at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid
            ORDER BY t.seq DESC
            LIMIT 1) AS h ON true
$$;

CREATE VIEW trails.approvals WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.session_id,
           v.requested_at, v.decided_at, v.waited, v.decision, v.decided_by, v.note, v.joins, v.seq
      FROM trails.approvals_v1() AS v;
COMMENT ON VIEW trails.approvals IS
    'Actions that were held for a person: what waits, who decided and how long it took.';
COMMENT ON COLUMN trails.approvals.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.approvals.agent_id IS 'The agent that asked.';
COMMENT ON COLUMN trails.approvals.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.approvals.action_id IS 'The action''s id within its agent''s chain.';
COMMENT ON COLUMN trails.approvals.tool IS 'The tool that was asked for.';
COMMENT ON COLUMN trails.approvals.input IS 'What the tool was to be called with, as asked.';
COMMENT ON COLUMN trails.approvals.cost IS 'What is or would be charged, in units of the policy''s budget.';
COMMENT ON COLUMN trails.approvals.session_id IS 'The session that the request named; NULL for none.';
COMMENT ON COLUMN trails.approvals.requested_at IS 'When it was asked.';
COMMENT ON COLUMN trails.approvals.decided_at IS 'When it was decided; NULL while it waits.';
COMMENT ON COLUMN trails.approvals.waited IS 'From the request to the decision, or to now.';
COMMENT ON COLUMN trails.approvals.decision IS
    'approved, rejected (by the person), denied (by the policy, when it was to be approved) or pending.';
COMMENT ON COLUMN trails.approvals.decided_by IS 'Who decided.';
COMMENT ON COLUMN trails.approvals.note IS 'The approver''s note, or the reason of a rejection or denial.';
COMMENT ON COLUMN trails.approvals.joins IS 'How often the same was asked again while it waited.';
COMMENT ON COLUMN trails.approvals.seq IS 'Place of the request in its chain.';

CREATE VIEW trails.chain_check WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.seq, v.hash_ok, v.link_ok, v.seq_ok, v.mirror_ok, v.ok,
           v.problem
      FROM trails.chain_check_v1() AS v;
COMMENT ON VIEW trails.chain_check IS
    'Every record with what SQL can check of it: hash, link, order, and that the columns say what the '
    'signed text says. Signatures and cut tails need trails verify.';
COMMENT ON COLUMN trails.chain_check.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.chain_check.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.chain_check.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.chain_check.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.chain_check.hash_ok IS 'Whether hash is the SHA-256 of the signed text.';
COMMENT ON COLUMN trails.chain_check.link_ok IS 'Whether prev_hash is the hash of the record before.';
COMMENT ON COLUMN trails.chain_check.seq_ok IS 'Whether seq follows on the record before; the first is 0.';
COMMENT ON COLUMN trails.chain_check.mirror_ok IS
    'Whether columns and trace_data say what the signed text says.';
COMMENT ON COLUMN trails.chain_check.ok IS 'Whether all of this holds.';
COMMENT ON COLUMN trails.chain_check.problem IS 'What is wrong; NULL when ok.';

COMMENT ON COLUMN trails.actions.reason_code IS
    'Why it was denied: terminated, tool_not_allowed, tool_call_limit, rate_limited, insufficient_budget,'
    ' rejected.';

GRANT SELECT ON trails.approvals, trails.chain_check TO trails_app, trails_auditor;
GRANT EXECUTE ON FUNCTION trails.approvals_v1(), trails.chain_check_v1() TO trails_app, trails_auditor;
