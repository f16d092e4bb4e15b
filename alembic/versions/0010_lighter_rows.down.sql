ALTER TABLE trails.agent_audit_trails
    DROP CONSTRAINT trail_mirror,
    ADD CONSTRAINT trail_mirror CHECK (
        signed_text::jsonb @> jsonb_build_object(
            'seq', seq, 'kind', kind, 'actor', actor, 'prev_hash', prev_hash,
            'timestamp', to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        )
    ),
    DROP CONSTRAINT trail_signature_format,
    ADD CONSTRAINT trail_signature_format CHECK (
        octet_length(signature) = 128 AND translate(signature, '0123456789abcdef', '') = ''
    ),
    ALTER COLUMN trace_data SET STORAGE EXTENDED;
