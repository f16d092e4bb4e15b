"""The page table: every page of the console, in one list."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from app.console import (
    administration,
    agent,
    agents,
    api,
    approvals,
    exports,
    failures,
    guides,
    keys,
    log,
    sessions,
    signing_in,
    static_files,
    verifying,
)

PAGES: tuple[HTTPRouteHandler, ...] = (
    agents.agents,
    agent.agent,
    agent.add_scar,
    agent.terminate_page,
    agent.terminate,
    agent.export,
    log.log,
    log.record,
    verifying.verify_page,
    verifying.progress,
    verifying.verify,
    administration.administration,
    keys.keys,
    keys.issue,
    keys.revoke_page,
    keys.revoke,
    sessions.list_sessions,
    sessions.show_session,
    sessions.session_json,
    failures.show_failures,
    exports.bundle,
    exports.failures,
    approvals.queue,
    approvals.stream,
    approvals.waiting,
    approvals.action,
    approvals.decide,
    signing_in.sign_in_page,
    signing_in.sign_in,
    signing_in.sign_out,
    static_files.static_file,
    guides.guide_list,
    guides.guide,
    api.api_page,
)
"""What the console serves; tests generate their matrices from it, so that no page can be missed."""
