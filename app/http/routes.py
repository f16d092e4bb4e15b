"""The route table: every route of the API, in one list."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from app.http import (
    actions,
    agents,
    api_keys,
    events,
    exports,
    health,
    keys,
    log,
    metrics,
    otlp,
    redaction,
    scars,
    sessions,
    tenants,
    traces,
)

ROUTES: tuple[HTTPRouteHandler, ...] = (
    health.healthz,
    health.readyz,
    metrics.metrics,
    keys.public_key,
    agents.create_agent,
    agents.list_agents,
    agents.agent_status,
    agents.agent_token,
    agents.revoke_token,
    actions.request_action,
    actions.pending_actions,
    actions.read_action,
    actions.claim_action,
    actions.report_outcome,
    actions.approve_action,
    actions.reject_action,
    scars.add_scar,
    scars.terminate_agent,
    traces.post_traces,
    events.post_events,
    otlp.post_spans,
    sessions.list_sessions,
    sessions.read_session,
    log.read_log,
    log.verify_log,
    exports.export_agent,
    exports.export_tenant,
    api_keys.issue_key,
    api_keys.list_keys,
    api_keys.revoke_key,
    redaction.read_redaction,
    redaction.set_redaction,
    tenants.create_tenant,
    tenants.list_tenants,
    tenants.suspend_tenant,
    tenants.resume_tenant,
)
"""What ``create_app`` serves; tests generate their matrices from it, so that no route can be missed."""
