-- Takes the views and their functions away; no record is touched.
DROP VIEW trails.chain_check, trails.agents_status, trails.scars, trails.approvals, trails.actions,
          trails.sessions, trails.session_paths, trails.corrections, trails.failed_tool_calls,
          trails.tool_calls, trails.trace_nodes;
DROP FUNCTION trails.chain_check_v1(), trails.agents_status_v1(), trails.scars_v1(), trails.approvals_v1(),
              trails.actions_v1(), trails.sessions_v1(), trails.session_paths_v1(), trails.corrections_v1(),
              trails.failed_tool_calls_v1(), trails.tool_calls_v1(), trails.session_nodes_v1(uuid, uuid),
              trails.trace_nodes_v1(), trails.nodes_v1(jsonb), trails.json_v1(text), trails.error_v1(jsonb),
              trails.ended_at_v1(jsonb), trails.started_at_v1(jsonb), trails.total_tokens_v1(jsonb),
              trails.output_tokens_v1(jsonb), trails.input_tokens_v1(jsonb), trails.unix_nano_v1(jsonb),
              trails.count_v1(jsonb), trails.number_v1(jsonb), trails.instant_v1(text);
