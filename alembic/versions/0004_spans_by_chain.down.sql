-- Refused by the key where two chains hold the same span by now.
ALTER TABLE trails.spans DROP CONSTRAINT spans_pkey;
ALTER TABLE trails.spans ADD CONSTRAINT spans_pkey PRIMARY KEY (tenant_id, trace_id, span_id);
