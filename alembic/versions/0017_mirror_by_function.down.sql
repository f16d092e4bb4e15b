ALTER TABLE trails.agent_audit_trails
    DROP CONSTRAINT trail_mirror,
    ADD CONSTRAINT trail_mirror CHECK (
        CASE WHEN starts_with(signed_text, '{"actor":' || to_json(actor)::text || ',"kind":' || to_json(kind)::text
                                           || ',"payload":')
              AND substr(convert_to(signed_text, 'UTF8'), octet_length(signed_text) + 1 - octet_length(
                      ',"prev_hash":"' || prev_hash || '","seq":' || seq || ',"timestamp":"'
                      || to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}'))
                  = convert_to(
                      ',"prev_hash":"' || prev_hash || '","seq":' || seq || ',"timestamp":"'
                      || to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}', 'UTF8')
             THEN convert_from(substr(convert_to(signed_text, 'UTF8'),
                      octet_length('{"actor":' || to_json(actor)::text || ',"kind":' || to_json(kind)::text
                                   || ',"payload":') + 1,
                      octet_length(signed_text)
                      - octet_length('{"actor":' || to_json(actor)::text || ',"kind":' || to_json(kind)::text
                                     || ',"payload":')
                      - octet_length(
                          ',"prev_hash":"' || prev_hash || '","seq":' || seq || ',"timestamp":"'
                          || to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}')),
                      'UTF8')::json IS NOT NULL
        END IS TRUE
    ) NOT VALID;
DROP FUNCTION trails.mirrors_v1(text, text, text, text, bigint, timestamptz);
