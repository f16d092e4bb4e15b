-- Who created, verified, exported, issued, revoked or suspended what, and when?
--
-- Parameters:
--   since  timestamptz  -  At this time or later.
--   until  timestamptz  -  Before this time.
--   agent  text         -  About this agent alone.
--   act    text         -  This act alone, such as verified or exported.
--
-- Columns:
--   at        When.
--   actor     Who: the name of the API key, or root for the command line.
--   act       What was done; creating several agents at once is told of each of them.
--   agent_id  The agent that it was about, or whose key; empty for what concerns the tenant.
--   what      What else: the key's name, SQL login, webhook, session, new signing key, view or format; or why.
--   records   Of a verification or an export: how many records (of a view: rows) were read.
--   intact    Of a verification: yes when all was sound, else no.
SELECT t.created_at AS at, t.actor, t.trace_data ->> 'act' AS act,
       coalesce(created.agent ->> 'agent_id', t.trace_data ->> 'agent_id',
                t.trace_data -> 'key' ->> 'agent_id') AS agent_id,
       coalesce(t.trace_data -> 'key' ->> 'name', t.trace_data ->> 'name', t.trace_data ->> 'login',
                t.trace_data -> 'webhook' ->> 'webhook_id', t.trace_data ->> 'webhook_id',
                t.trace_data ->> 'session', t.trace_data ->> 'to', t.trace_data -> 'filter' ->> 'view',
                t.trace_data ->> 'format', t.trace_data ->> 'reason') AS what,
       trails.count_v1(coalesce(t.trace_data -> 'length', t.trace_data -> 'rows')) AS records,
       CASE t.trace_data -> 'intact' WHEN 'true' THEN 'yes' WHEN 'false' THEN 'no' END AS intact
  FROM trails.agent_audit_trails AS t
       LEFT JOIN LATERAL jsonb_path_query(t.trace_data, '$.agents[*]') WITH ORDINALITY AS created (agent, n)
              ON t.trace_data ->> 'act' = 'agents_created'
 WHERE t.agent_id = '_administration' AND t.kind = 'admin'
   AND t.created_at >= coalesce(:since::timestamptz, '-infinity')
   AND t.created_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL
        OR coalesce(created.agent ->> 'agent_id', t.trace_data ->> 'agent_id',
                    t.trace_data -> 'key' ->> 'agent_id') = :agent)
   AND (:act::text IS NULL OR t.trace_data ->> 'act' = :act)
 ORDER BY t.created_at, t.tenant_id, t.seq, created.n;
