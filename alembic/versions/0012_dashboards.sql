-- Views for dashboards: each can be asked for a stretch of time and reads the records of that time alone, where
-- actions has to fold every action that there ever was. Columns of types that every BI tool knows.

-- What is rare and asked for by kind and time: what was held for a person, scars, ends, claims.
CREATE INDEX trail_marks ON trails.agent_audit_trails (tenant_id, kind, created_at)
    WHERE kind IN ('approval_required', 'scar', 'terminated', 'action_claimed', 'claim_refused');

-- ------------------------------------------------------------------------------------------- what is new

-- The request of an action, looked for from a later record of it backwards: mostly it is the record before. Row
-- security lets no index look for an action_id (->> is not leakproof), and a chain's records of actions are many;
-- OFFSET 0 keeps the planner from reading them all.
CREATE FUNCTION trails.request_v1(tenant uuid, log uuid, before bigint, action text) RETURNS TABLE (
    tool text, requested_at timestamptz, session_id uuid)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT r.trace_data ->> 'tool', r.created_at, nullif(r.session_id, r.log_uuid)
      FROM (SELECT e.kind, e.trace_data, e.created_at, e.session_id, e.log_uuid
              FROM trails.agent_audit_trails AS e
             WHERE e.tenant_id = tenant AND e.log_uuid = log AND e.seq < before
             ORDER BY e.seq DESC
            OFFSET 0) AS r
     WHERE r.kind = 'action_requested' AND r.trace_data ->> 'action_id' = action
     LIMIT 1
$$;

-- One row an answer: a decision of the policy or of a person, or that somebody has to be asked.
CREATE FUNCTION trails.decisions_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, decision text, reason_code text,
    decided_by text, charged numeric, remaining numeric, requested_at timestamptz, decided_at timestamptz,
    session_id uuid, seq bigint, hash text, record_id bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.tenant_id, t.agent_id, t.log_uuid, t.trace_data ->> 'action_id',
           -- Sub-selects, since what nobody asks for is then not looked up.
           (SELECT r.tool
              FROM trails.request_v1(t.tenant_id, t.log_uuid, t.seq, t.trace_data ->> 'action_id') AS r),
           CASE t.kind WHEN 'action_allowed' THEN 'allowed' WHEN 'action_denied' THEN 'denied'
                       WHEN 'action_rejected' THEN 'rejected' ELSE 'pending_approval' END,
           CASE t.kind WHEN 'action_denied' THEN t.trace_data -> 'reason' ->> 'code'
                       WHEN 'action_rejected' THEN 'rejected' END,
           CASE t.kind WHEN 'action_allowed' THEN t.trace_data ->> 'approved_by'
                       WHEN 'action_rejected' THEN t.trace_data ->> 'by' END,
           CASE t.kind WHEN 'action_allowed' THEN trails.number_v1(t.trace_data -> 'cost') END,
           CASE t.kind WHEN 'action_allowed' THEN trails.number_v1(t.trace_data -> 'remaining') END,
           (SELECT r.requested_at
              FROM trails.request_v1(t.tenant_id, t.log_uuid, t.seq, t.trace_data ->> 'action_id') AS r),
           t.created_at,
           (SELECT r.session_id
              FROM trails.request_v1(t.tenant_id, t.log_uuid, t.seq, t.trace_data ->> 'action_id') AS r),
           t.seq, t.hash, t.id
      FROM trails.agent_audit_trails AS t
     WHERE t.kind IN ('action_allowed', 'action_denied', 'action_rejected', 'approval_required')
       AND (t.kind <> 'approval_required' OR t.trace_data -> 'joined' IS DISTINCT FROM 'true'::jsonb)
$$;

CREATE FUNCTION trails.claims_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, claimed boolean, reason_code text,
    reason jsonb, claimed_by text, digest text, claimed_at timestamptz, seq bigint, hash text, record_id bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.tenant_id, t.agent_id, t.log_uuid, t.trace_data ->> 'action_id',
           (SELECT r.tool
              FROM trails.request_v1(t.tenant_id, t.log_uuid, t.seq, t.trace_data ->> 'action_id') AS r),
           t.kind = 'action_claimed', t.trace_data -> 'reason' ->> 'code', t.trace_data -> 'reason',
           t.trace_data ->> 'by', t.trace_data ->> 'digest', t.created_at, t.seq, t.hash, t.id
      FROM trails.agent_audit_trails AS t
     WHERE t.kind IN ('action_claimed', 'claim_refused')
$$;

-- When it happened is the sender's word; the record's time stands beside it and decides every window and order.
CREATE FUNCTION trails.events_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, type text, data jsonb, occurred_at timestamptz,
    recorded_at timestamptz, clock_skew interval, clock_skewed boolean, actor text, log_uuid uuid, seq bigint,
    hash text, record_id bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.tenant_id, t.agent_id, nullif(t.session_id, t.log_uuid), t.trace_data ->> 'type',
           t.trace_data -> 'data', trails.instant_v1(t.trace_data ->> 'occurred_at'), t.created_at,
           trails.instant_v1(t.trace_data ->> 'occurred_at') - t.created_at,
           trails.instant_v1(t.trace_data ->> 'occurred_at')
               NOT BETWEEN t.created_at - interval '24 hours' AND t.created_at + interval '5 minutes',
           t.actor, t.log_uuid, t.seq, t.hash, t.id
      FROM trails.agent_audit_trails AS t
     WHERE t.kind = 'event'
$$;

-- Nodes that used a language model, such that their tokens and costs can be summed: what an AGENT node says again
-- of its parts is left out where its session's parts say it themselves, and so is the inner end of a call.
CREATE FUNCTION trails.model_usage_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, session_id uuid, node_id text, node_type text, name text, model text,
    calls bigint, input_tokens bigint, output_tokens bigint, total_tokens bigint, cost numeric,
    recorded_at timestamptz, log_uuid uuid, seq bigint, "position" bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT u.tenant_id, u.agent_id, u.session_id, u.node_id, u.node_type, u.name, u.model,
           CASE WHEN r.tokens THEN 1 ELSE 0 END::bigint,
           CASE WHEN r.tokens THEN u.input_tokens END, CASE WHEN r.tokens THEN u.output_tokens END,
           CASE WHEN r.tokens THEN u.total_tokens END, CASE WHEN r.cost THEN u.cost END,
           u.recorded_at, u.log_uuid, u.seq, u."position"
      FROM trails.shown_nodes_v1() AS u
     CROSS JOIN LATERAL (
           SELECT u.node_type IS DISTINCT FROM 'AGENT' OR NOT EXISTS (
                      SELECT FROM trails.shown_nodes_v1() AS n
                       WHERE n.tenant_id = u.tenant_id AND n.session_id = u.session_id
                         AND n.node_type IS DISTINCT FROM 'AGENT' AND n.total_tokens IS NOT NULL
                       OFFSET 0) AS tokens,
                  u.node_type IS DISTINCT FROM 'AGENT' OR NOT EXISTS (
                      SELECT FROM trails.shown_nodes_v1() AS n
                       WHERE n.tenant_id = u.tenant_id AND n.session_id = u.session_id
                         AND n.node_type IS DISTINCT FROM 'AGENT' AND n.cost IS NOT NULL AND n.action_id IS NULL
                       OFFSET 0) AS cost
           OFFSET 0) AS r
     WHERE u.metadata ?| '{model,tokens}'
       AND (u.node_type IS DISTINCT FROM 'TOOL_CALL' OR u.action_id IS NULL AND NOT u.inner_end)
       AND (u.model IS NOT NULL OR u.total_tokens IS NOT NULL)
       AND (r.tokens OR r.cost AND u.cost IS NOT NULL)
$$;

-- A day at a time, so that whoever asks for some days has the records of those days read and no others.
CREATE FUNCTION trails.daily_tool_calls_v1() RETURNS TABLE (
    tenant_id uuid, day date, agent_id text, tool text, calls bigint, succeeded bigint, failed bigint,
    harmful bigint, unknown bigint, denied bigint, sessions bigint, timed bigint, total_ms numeric,
    median_ms numeric, p95_ms numeric, max_ms numeric)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT s.tenant_id, d.at::date, c.agent_id, c.tool, c.calls, c.succeeded, c.failed, c.harmful, c.unknown,
           c.denied, c.sessions, c.timed, c.total_ms, c.median_ms, c.p95_ms, c.max_ms
      FROM (SELECT DISTINCT a.tenant_id FROM trails.agents AS a) AS s
     CROSS JOIN LATERAL (
           SELECT date_trunc('day', t.created_at AT TIME ZONE 'UTC') AS day
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = s.tenant_id
            ORDER BY t.created_at
            LIMIT 1) AS first
     CROSS JOIN LATERAL (
           SELECT t.created_at AT TIME ZONE 'UTC' AS at
             FROM trails.agent_audit_trails AS t
            WHERE t.tenant_id = s.tenant_id
            ORDER BY t.created_at DESC
            LIMIT 1) AS last
     CROSS JOIN LATERAL generate_series(first.day, last.at, interval '1 day') AS d (at)
     CROSS JOIN LATERAL (
           SELECT t.agent_id, t.tool, count(*) AS calls,
                  count(*) FILTER (WHERE t.status = 'success') AS succeeded,
                  count(*) FILTER (WHERE t.status = 'failed') AS failed,
                  count(*) FILTER (WHERE t.status = 'harmful') AS harmful,
                  count(*) FILTER (WHERE t.status = 'unknown') AS unknown,
                  count(*) FILTER (WHERE t.status = 'denied') AS denied,
                  count(DISTINCT t.session_id) AS sessions,
                  count(t.duration_ms) AS timed, sum(t.duration_ms) AS total_ms,
                  percentile_disc(0.5) WITHIN GROUP (ORDER BY t.duration_ms) AS median_ms,
                  percentile_disc(0.95) WITHIN GROUP (ORDER BY t.duration_ms) AS p95_ms,
                  max(t.duration_ms) AS max_ms
             FROM trails.tool_calls_v1() AS t
            WHERE t.tenant_id = s.tenant_id
              AND t.recorded_at >= d.at AT TIME ZONE 'UTC'
              AND t.recorded_at < (d.at + interval '1 day') AT TIME ZONE 'UTC'
            GROUP BY t.agent_id, t.tool) AS c
$$;

-- --------------------------------------------------------------------------------------- what is better

-- The same rows as before; how long they waited in seconds as well.
CREATE FUNCTION trails.approvals_v2() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, input jsonb, cost numeric,
    session_id uuid, requested_at timestamptz, decided_at timestamptz, waited interval, decision text,
    decided_by text, note text, joins bigint, seq bigint, waited_secs numeric)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.action_id, a.tool, a.input, a.cost, a.session_id,
           a.requested_at, a.decided_at, coalesce(a.decided_at, now()) - a.requested_at,
           CASE a.decision WHEN 'allowed' THEN 'approved' WHEN 'pending_approval' THEN 'pending'
                           ELSE a.decision END,
           coalesce(a.approved_by, a.rejected_by, a.decider),
           coalesce(a.note, a.reason ->> 'reason', a.reason_code),
           a.joins, a.seq,
           round(extract(epoch FROM coalesce(a.decided_at, now()) - a.requested_at), 3)
      FROM trails.actions_v1() AS a
     WHERE a.held
$$;

CREATE FUNCTION trails.approvals_waiting_v1() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, action_id text, tool text, input jsonb, cost numeric,
    session_id uuid, requested_at timestamptz, waited_secs numeric, expires_at timestamptz, expired boolean,
    joins bigint, seq bigint)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT a.tenant_id, a.agent_id, a.log_uuid, a.action_id, a.tool, a.input, a.cost, a.session_id,
           a.requested_at, a.waited_secs, p.expires_at, coalesce(p.expires_at <= now(), false), a.joins, a.seq
      FROM trails.approvals_v2() AS a
      LEFT JOIN LATERAL (
           -- Beyond the year 9999 many clients cannot read a time: who may wait for 6,000 years waits for ever.
           SELECT CASE WHEN r.ttl < 189216000000
                       THEN a.requested_at + make_interval(secs => r.ttl) END AS expires_at
             FROM (SELECT trails.count_v1(coalesce(t.trace_data -> 'policy' -> 'tools' -> a.tool,
                                                   t.trace_data -> 'policy' -> 'default_rule')
                                          -> 'approval_ttl_secs') AS ttl
                     FROM trails.agent_audit_trails AS t
                    WHERE t.tenant_id = a.tenant_id AND t.log_uuid = a.log_uuid AND t.seq = 1
                      AND t.kind = 'policy') AS r) AS p ON true
     WHERE a.decision = 'pending'
$$;

-- Agents alone: the administration chain of a tenant is in the registry, and is none.
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
     WHERE a.agent_id <> '_administration'
$$;

-- The same checks; each record looks for the one before it, so that those of a stretch of time can be checked alone.
CREATE FUNCTION trails.chain_check_v2() RETURNS TABLE (
    tenant_id uuid, agent_id text, log_uuid uuid, seq bigint, hash_ok boolean, link_ok boolean, seq_ok boolean,
    mirror_ok boolean, ok boolean, problem text, recorded_at timestamptz)
    LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT c.tenant_id, c.agent_id, c.log_uuid, c.seq, c.hash_ok, c.link_ok, c.seq_ok, c.mirror_ok,
           c.hash_ok AND c.link_ok AND c.seq_ok AND c.mirror_ok,
           nullif(concat_ws('; ',
               CASE WHEN NOT c.hash_ok THEN 'hash is not the SHA-256 of the signed text' END,
               CASE WHEN NOT c.link_ok THEN 'prev_hash is not the hash of the record before' END,
               CASE WHEN NOT c.seq_ok THEN 'seq does not follow on the record before' END,
               CASE WHEN NOT c.mirror_ok THEN 'columns or trace_data are not what the signed text says' END), ''),
           c.created_at
      FROM (SELECT t.tenant_id, t.agent_id, t.log_uuid, t.seq, t.created_at,
                   coalesce(t.hash = encode(sha256(convert_to(E'lineage-audit-v1\n' || t.signed_text, 'UTF8')),
                                            'hex'), false) AS hash_ok,
                   coalesce(t.prev_hash = coalesce(b.hash, repeat('0', 64)), false) AS link_ok,
                   coalesce(t.seq = coalesce(b.seq + 1, 0), false) AS seq_ok,
                   coalesce(j.record @> jsonb_build_object(
                                'seq', t.seq, 'kind', t.kind, 'actor', t.actor, 'prev_hash', t.prev_hash, 'timestamp',
                                to_char(t.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
                            AND t.trace_data = j.record -> 'payload'
                            AND t.session_id::text
                                = lower(coalesce(j.record -> 'payload' ->> 'session_id', t.log_uuid::text))
                            AND t.idempotency_key IS NOT DISTINCT FROM
                                (j.record -> 'payload' -> 'idempotency' ->> 'key'), false) AS mirror_ok
              FROM trails.agent_audit_trails AS t
              LEFT JOIN LATERAL (
                   SELECT p.seq, p.hash
                     FROM trails.agent_audit_trails AS p
                    WHERE p.tenant_id = t.tenant_id AND p.log_uuid = t.log_uuid AND p.agent_id = t.agent_id
                      AND p.seq < t.seq
                    ORDER BY p.seq DESC
                    LIMIT 1) AS b ON true
             CROSS JOIN LATERAL (SELECT trails.json_v1(t.signed_text) AS record OFFSET 0) AS j) AS c
$$;

-- -------------------------------------------------------------------------------------------- the views

CREATE VIEW trails.decisions WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.decision, v.reason_code, v.decided_by,
           v.charged, v.remaining, v.requested_at, v.decided_at, v.session_id, v.seq, v.hash, v.record_id
      FROM trails.decisions_v1() AS v;
COMMENT ON VIEW trails.decisions IS
    'What was answered to requests of actions, one row an answer: an action that was held for a person has '
    'one of that and one of the decision. Filter by decided_at: only records of that time are read.';
COMMENT ON COLUMN trails.decisions.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.decisions.agent_id IS 'The agent that asked.';
COMMENT ON COLUMN trails.decisions.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.decisions.action_id IS 'The action''s id within its agent''s chain, such as act-7.';
COMMENT ON COLUMN trails.decisions.tool IS 'The tool that was asked for.';
COMMENT ON COLUMN trails.decisions.decision IS
    'allowed, denied (by the policy), rejected (by a person) or pending_approval (held for one).';
COMMENT ON COLUMN trails.decisions.reason_code IS
    'Why it was denied: terminated, tool_not_allowed, tool_call_limit, rate_limited, insufficient_budget, '
    'approval_expired, rejected.';
COMMENT ON COLUMN trails.decisions.decided_by IS
    'Who approved or rejected; NULL where no person decided, and of a denial that the policy still came to.';
COMMENT ON COLUMN trails.decisions.charged IS
    'What an allowed action was charged, in units of the policy''s budget; NULL of all others.';
COMMENT ON COLUMN trails.decisions.remaining IS 'What was left of the agent''s budget then; NULL unless allowed.';
COMMENT ON COLUMN trails.decisions.requested_at IS 'When the action was asked.';
COMMENT ON COLUMN trails.decisions.decided_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.decisions.session_id IS 'The session that the request named; NULL for none.';
COMMENT ON COLUMN trails.decisions.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.decisions.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.decisions.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.claims WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.claimed, v.reason_code, v.reason,
           v.claimed_by, v.digest, v.claimed_at, v.seq, v.hash, v.record_id
      FROM trails.claims_v1() AS v;
COMMENT ON VIEW trails.claims IS
    'Claims of allowed actions by those who carry them out, the refused ones too: one row a claim.';
COMMENT ON COLUMN trails.claims.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.claims.agent_id IS 'The agent whose action was claimed.';
COMMENT ON COLUMN trails.claims.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.claims.action_id IS 'The action''s id within its agent''s chain, such as act-7.';
COMMENT ON COLUMN trails.claims.tool IS 'The tool that the action asked for.';
COMMENT ON COLUMN trails.claims.claimed IS 'Whether the claim was granted; an action has one such row at most.';
COMMENT ON COLUMN trails.claims.reason_code IS
    'Why it was refused: completed, not_allowed, already_claimed, terminated, approval_expired, '
    'claim_mismatch; NULL when it was granted.';
COMMENT ON COLUMN trails.claims.reason IS 'The reason in full; of a mismatch the digests of both.';
COMMENT ON COLUMN trails.claims.claimed_by IS 'Name of the key that claimed.';
COMMENT ON COLUMN trails.claims.digest IS
    'SHA-256 of what is to be carried out (canonical input and tool); NULL when it was refused.';
COMMENT ON COLUMN trails.claims.claimed_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.claims.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.claims.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.claims.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.events WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.session_id, v.type, v.data, v.occurred_at, v.recorded_at, v.clock_skew,
           v.clock_skewed, v.actor, v.log_uuid, v.seq, v.hash, v.record_id
      FROM trails.events_v1() AS v;
COMMENT ON VIEW trails.events IS 'Events: what services wanted on the record, one row an event.';
COMMENT ON COLUMN trails.events.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.events.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.events.session_id IS 'The session that the event named; NULL for none.';
COMMENT ON COLUMN trails.events.type IS 'What kind of event it is, in the sender''s words.';
COMMENT ON COLUMN trails.events.data IS 'What was sent with it, any JSON.';
COMMENT ON COLUMN trails.events.occurred_at IS
    'When it happened by the sender''s clock; NULL where it does not say. No window and no order uses it.';
COMMENT ON COLUMN trails.events.recorded_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.events.clock_skew IS
    'occurred_at minus recorded_at: how far the sender''s clock, or its delivery, is off.';
COMMENT ON COLUMN trails.events.clock_skewed IS
    'Whether occurred_at is more than 5 minutes ahead of the record or more than a day behind; NULL '
    'without occurred_at.';
COMMENT ON COLUMN trails.events.actor IS 'Who posted it: the agent, or the API key used.';
COMMENT ON COLUMN trails.events.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.events.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.events.hash IS 'The record''s hash, 64 hex digits: cite this.';
COMMENT ON COLUMN trails.events.record_id IS 'id of the record in agent_audit_trails.';

CREATE VIEW trails.model_usage WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.session_id, v.node_id, v.node_type, v.name, v.model, v.calls,
           v.input_tokens, v.output_tokens, v.total_tokens, v.cost, v.recorded_at, v.log_uuid, v.seq,
           v."position"
      FROM trails.model_usage_v1() AS v;
COMMENT ON VIEW trails.model_usage IS
    'Nodes that used a language model, with figures that can be summed: what an AGENT node repeats of its '
    'session''s parts, and the inner end of a call, are not counted again. Guarded actions are not in it.';
COMMENT ON COLUMN trails.model_usage.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.model_usage.agent_id IS 'The agent whose chain holds the record.';
COMMENT ON COLUMN trails.model_usage.session_id IS 'The session that the record belongs to.';
COMMENT ON COLUMN trails.model_usage.node_id IS 'The node''s UUID, in lower case.';
COMMENT ON COLUMN trails.model_usage.node_type IS 'LLM_CALL, PLANNING, OUTPUT, AGENT and so on.';
COMMENT ON COLUMN trails.model_usage.name IS 'The node''s name.';
COMMENT ON COLUMN trails.model_usage.model IS 'The model''s name as sent; NULL where tokens were sent without one.';
COMMENT ON COLUMN trails.model_usage.calls IS
    '1, or 0 where only the cost counts since the session''s parts tell their tokens themselves: sum it.';
COMMENT ON COLUMN trails.model_usage.input_tokens IS 'Tokens read.';
COMMENT ON COLUMN trails.model_usage.output_tokens IS 'Tokens written.';
COMMENT ON COLUMN trails.model_usage.total_tokens IS 'All tokens.';
COMMENT ON COLUMN trails.model_usage.cost IS 'metadata.cost, in whatever unit it was sent.';
COMMENT ON COLUMN trails.model_usage.recorded_at IS
    'The record''s signed time, by the server''s clock: filter and order by this.';
COMMENT ON COLUMN trails.model_usage.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.model_usage.seq IS 'Place of the record in its chain.';
COMMENT ON COLUMN trails.model_usage."position" IS 'Place of the node in its record, from 1.';

CREATE VIEW trails.daily_tool_calls WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.day, v.agent_id, v.tool, v.calls, v.succeeded, v.failed, v.harmful, v.unknown,
           v.denied, v.sessions, v.timed, v.total_ms, v.median_ms, v.p95_ms, v.max_ms
      FROM trails.daily_tool_calls_v1() AS v;
COMMENT ON VIEW trails.daily_tool_calls IS
    'Calls of tools by day (UTC, of the record), agent and tool. Filter by day: only the records of those '
    'days are read.';
COMMENT ON COLUMN trails.daily_tool_calls.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.daily_tool_calls.day IS
    'The day on which the calls were recorded, from 00:00 to 24:00 UTC by the server''s clock.';
COMMENT ON COLUMN trails.daily_tool_calls.agent_id IS 'The agent whose chain holds the records.';
COMMENT ON COLUMN trails.daily_tool_calls.tool IS 'The tool''s name, exactly as called.';
COMMENT ON COLUMN trails.daily_tool_calls.calls IS
    'All its calls, denied ones too; a guarded action counts on the day on which it ended.';
COMMENT ON COLUMN trails.daily_tool_calls.succeeded IS 'Calls with the status success.';
COMMENT ON COLUMN trails.daily_tool_calls.failed IS 'Calls that failed.';
COMMENT ON COLUMN trails.daily_tool_calls.harmful IS 'Calls that were reported to have done harm.';
COMMENT ON COLUMN trails.daily_tool_calls.unknown IS 'Calls of which nobody can tell whether they happened.';
COMMENT ON COLUMN trails.daily_tool_calls.denied IS 'Calls that the guard or a person denied.';
COMMENT ON COLUMN trails.daily_tool_calls.sessions IS
    'Sessions with such a call; the guarded actions of an agent that named none are one session.';
COMMENT ON COLUMN trails.daily_tool_calls.timed IS 'Calls that said how long they took.';
COMMENT ON COLUMN trails.daily_tool_calls.total_ms IS 'What these took together, in milliseconds.';
COMMENT ON COLUMN trails.daily_tool_calls.median_ms IS 'What half of these stay below, in milliseconds.';
COMMENT ON COLUMN trails.daily_tool_calls.p95_ms IS 'What 95 of 100 of these stay below, in milliseconds.';
COMMENT ON COLUMN trails.daily_tool_calls.max_ms IS 'The longest of these, in milliseconds.';

CREATE OR REPLACE VIEW trails.approvals WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.session_id,
           v.requested_at, v.decided_at, v.waited, v.decision, v.decided_by, v.note, v.joins, v.seq,
           v.waited_secs
      FROM trails.approvals_v2() AS v;
COMMENT ON COLUMN trails.approvals.waited_secs IS
    'From the request to the decision, or to now, in seconds with three decimals.';

CREATE VIEW trails.approvals_waiting WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.action_id, v.tool, v.input, v.cost, v.session_id,
           v.requested_at, v.waited_secs, v.expires_at, v.expired, v.joins, v.seq
      FROM trails.approvals_waiting_v1() AS v;
COMMENT ON VIEW trails.approvals_waiting IS
    'Actions that wait for a person now. One that has expired stands here until its end is on record.';
COMMENT ON COLUMN trails.approvals_waiting.tenant_id IS 'Whose row it is.';
COMMENT ON COLUMN trails.approvals_waiting.agent_id IS 'The agent that asked.';
COMMENT ON COLUMN trails.approvals_waiting.log_uuid IS 'The chain that holds the record.';
COMMENT ON COLUMN trails.approvals_waiting.action_id IS 'The action to approve or reject.';
COMMENT ON COLUMN trails.approvals_waiting.tool IS 'The tool that was asked for.';
COMMENT ON COLUMN trails.approvals_waiting.input IS 'What the tool is to be called with, as asked.';
COMMENT ON COLUMN trails.approvals_waiting.cost IS 'What would be charged, in units of the policy''s budget.';
COMMENT ON COLUMN trails.approvals_waiting.session_id IS 'The session that the request named; NULL for none.';
COMMENT ON COLUMN trails.approvals_waiting.requested_at IS 'When it was asked.';
COMMENT ON COLUMN trails.approvals_waiting.waited_secs IS 'How long it has waited, in seconds.';
COMMENT ON COLUMN trails.approvals_waiting.expires_at IS
    'From when on it cannot be approved any more (the tool''s approval_ttl_secs); NULL: never.';
COMMENT ON COLUMN trails.approvals_waiting.expired IS 'Whether that time has come, by the database''s clock.';
COMMENT ON COLUMN trails.approvals_waiting.joins IS 'How often the same was asked again meanwhile.';
COMMENT ON COLUMN trails.approvals_waiting.seq IS 'Place of the request in its chain.';

CREATE OR REPLACE VIEW trails.chain_check WITH (security_invoker = true) AS
    SELECT v.tenant_id, v.agent_id, v.log_uuid, v.seq, v.hash_ok, v.link_ok, v.seq_ok, v.mirror_ok, v.ok,
           v.problem, v.recorded_at
      FROM trails.chain_check_v2() AS v;
COMMENT ON COLUMN trails.chain_check.recorded_at IS
    'created_at of the record, true or not: filter by this to check a stretch of time.';

COMMENT ON COLUMN trails.actions.reason_code IS
    'Why it was denied: terminated, tool_not_allowed, tool_call_limit, rate_limited, insufficient_budget, '
    'approval_expired, rejected.';

DROP FUNCTION trails.approvals_v1(), trails.chain_check_v1();

-- ------------------------------------------------------------------------------------------- grants

GRANT SELECT ON trails.decisions, trails.claims, trails.events, trails.model_usage, trails.daily_tool_calls,
                trails.approvals_waiting
    TO trails_app, trails_auditor;
GRANT EXECUTE ON FUNCTION trails.request_v1(uuid, uuid, bigint, text), trails.decisions_v1(),
    trails.claims_v1(), trails.events_v1(), trails.model_usage_v1(), trails.daily_tool_calls_v1(), trails.approvals_v2(), trails.approvals_waiting_v1(),
    trails.chain_check_v2()
    TO trails_app, trails_auditor;
