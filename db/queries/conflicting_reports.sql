-- Where was something reported that is not what stands on record, or that could not be stored?
--
-- Parameters:
--   since  timestamptz  -  Recorded at this time or later.
--   until  timestamptz  -  Recorded before this time.
--   agent  text         -  Reports on this agent alone.
--
-- Columns:
--   recorded_at  When the report came.
--   agent_id     The agent.
--   type         outcome_conflict, span_conflict or spans_rejected.
--   actor        Who reported: the agent, or the API key used.
--   data         What was reported, and what is on record.
SELECT created_at AS recorded_at, agent_id, trace_data ->> 'type' AS type, actor, trace_data -> 'data' AS data
  FROM trails.agent_audit_trails
 WHERE kind = 'event'
   AND trace_data ->> 'type' IN ('outcome_conflict', 'span_conflict', 'spans_rejected')
   AND created_at >= coalesce(:since::timestamptz, '-infinity')
   AND created_at < coalesce(:until::timestamptz, 'infinity')
   AND (:agent::text IS NULL OR agent_id = :agent)
 ORDER BY created_at, agent_id, seq;
