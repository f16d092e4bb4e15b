-- Where was something reported that is not what stands on record, or that could not be stored?
--
-- Three kinds are events that the service wrote: outcome_conflict (another outcome of an action), span_conflict
-- (a span of the same ids with other contents), spans_rejected. Two are nodes of trace trees, whose sendings all
-- stay on record: node_resent is a sending of a node that its own chain also sent, or the guard wrote, with other
-- contents; the views show the latest, but the guard's word before any other. node_shared is a node whose id
-- another agent's chain had in the same session with other contents: the views show both. The mark
-- metadata.nested_in is no content, since the service adds it.
--
-- Parameters:
--   since  timestamptz  -  Both sides on record at this time or later.
--   until  timestamptz  -  Both sides on record before this time.
--   agent  text         -  Reports by this agent, or against what stands of it.
--   type   text         -  This kind alone.
--
-- Columns:
--   recorded_at  When both sides were on record, the report and what it contradicts.
--   agent_id     The agent whose chain holds the report.
--   type         outcome_conflict, span_conflict, spans_rejected, node_resent or node_shared.
--   actor        Who reported: the agent, or the API key used.
--   session_id   The session; of an event without one its agent's log_uuid.
--   data         What was reported, and what is on record; of nodes only the members that differ.
WITH several AS MATERIALIZED (
    SELECT tenant_id, session_id, node_id::text AS node_id
      FROM trails.sendings
     GROUP BY tenant_id, session_id, node_id
    HAVING count(*) > 1
), sent AS MATERIALIZED (
    SELECT t.tenant_id, t.session_id, n.node_id, t.log_uuid, t.agent_id, t.actor, t.created_at, t.seq, x."position",
           t.kind IN ('outcome', 'action_denied', 'action_rejected') AS guarded,
           CASE WHEN jsonb_typeof(x.node -> 'metadata') = 'object' THEN x.node #- '{metadata,nested_in}'
                ELSE x.node END AS node
      FROM (SELECT DISTINCT s.tenant_id, s.log_uuid, s.seq
              FROM trails.sendings AS s
              JOIN several AS n ON n.tenant_id = s.tenant_id AND n.session_id = s.session_id
                                   AND n.node_id = s.node_id::text) AS r
      JOIN trails.agent_audit_trails AS t ON t.tenant_id = r.tenant_id AND t.log_uuid = r.log_uuid AND t.seq = r.seq
     CROSS JOIN LATERAL trails.nodes_v1(t.trace_data) AS x
      JOIN several AS n ON n.tenant_id = t.tenant_id AND n.session_id = t.session_id
                           AND n.node_id = lower(x.node ->> 'node_id')
), chosen AS (
    -- The first of each chain is the sending that the views show.
    SELECT *, row_number() OVER (PARTITION BY tenant_id, session_id, node_id, log_uuid
                                 ORDER BY guarded DESC, seq DESC, "position" DESC) AS choice
      FROM sent
), ranked AS MATERIALIZED (
    -- Of these the first is what other nodes hang under: the guard's, else the first on record.
    SELECT *, row_number() OVER (PARTITION BY tenant_id, session_id, node_id
                                 ORDER BY choice > 1, guarded DESC, created_at, log_uuid) AS rank
      FROM chosen
), contradiction AS (
    SELECT 'node_resent' AS type, said.*, stands.agent_id AS other_agent_id, stands.seq AS other_seq,
           stands.created_at AS other_at, stands.node AS other_node
      FROM ranked AS stands
      JOIN ranked AS said ON said.tenant_id = stands.tenant_id AND said.session_id = stands.session_id
                             AND said.node_id = stands.node_id AND said.log_uuid = stands.log_uuid
     WHERE stands.choice = 1 AND said.choice > 1 AND NOT said.guarded AND said.node <> stands.node
    UNION ALL
    SELECT 'node_shared', said.*, stands.agent_id, stands.seq, stands.created_at, stands.node
      FROM ranked AS stands
      JOIN ranked AS said ON said.tenant_id = stands.tenant_id AND said.session_id = stands.session_id
                             AND said.node_id = stands.node_id
     WHERE stands.rank = 1 AND said.choice = 1 AND said.rank > 1 AND said.node <> stands.node
), report AS (
    SELECT t.created_at AS recorded_at, t.agent_id, NULL AS other_agent_id, t.trace_data ->> 'type' AS type, t.actor,
           t.session_id, t.trace_data -> 'data' AS data, t.seq, 0 AS "position"
      FROM trails.agent_audit_trails AS t
     WHERE t.kind = 'event'
       AND t.trace_data ->> 'type' IN ('outcome_conflict', 'span_conflict', 'spans_rejected')
    UNION ALL
    SELECT greatest(c.created_at, c.other_at), c.agent_id, c.other_agent_id, c.type, c.actor, c.session_id,
           jsonb_build_object(
               'node_id', c.node_id, 'name', c.node -> 'name',
               'reported', said.members || jsonb_build_object('seq', c.seq),
               'recorded', stands.members || jsonb_build_object('agent_id', c.other_agent_id, 'seq', c.other_seq)),
           c.seq, c."position"
      FROM contradiction AS c
     CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(m.key, m.value), '{}') AS members
                           FROM jsonb_each(c.node) AS m
                          WHERE m.value IS DISTINCT FROM c.other_node -> m.key) AS said
     CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(m.key, m.value), '{}') AS members
                           FROM jsonb_each(c.other_node) AS m
                          WHERE m.value IS DISTINCT FROM c.node -> m.key) AS stands
)
SELECT recorded_at, agent_id, type, actor, session_id, data
  FROM report
 WHERE recorded_at >= coalesce(:since::timestamptz, '-infinity')
   AND recorded_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent OR other_agent_id = :agent)
   AND (:type::text IS NULL OR type = :type)
 ORDER BY recorded_at, agent_id, type, seq, "position";
