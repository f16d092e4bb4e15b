-- A span is known within its chain: who posts another agent's ids first takes nothing from that agent's trail.
-- The chain comes last in the key, so that a trace's spans are still found over all chains.
ALTER TABLE trails.spans DROP CONSTRAINT spans_pkey;
ALTER TABLE trails.spans ADD CONSTRAINT spans_pkey PRIMARY KEY (tenant_id, trace_id, span_id, log_uuid);
