"""Kinds of the records that the guard writes or passes over."""

from __future__ import annotations

POLICY = "policy"
ACTION_REQUESTED = "action_requested"
APPROVAL_REQUIRED = "approval_required"
APPROVAL_GIVEN = "approval_given"
ACTION_ALLOWED = "action_allowed"
ACTION_DENIED = "action_denied"
ACTION_CLAIMED = "action_claimed"
CLAIM_REFUSED = "claim_refused"
ACTION_REJECTED = "action_rejected"
OUTCOME = "outcome"
SCAR = "scar"
TERMINATED = "terminated"
TRACE = "trace"
EVENT = "event"
ADMIN = "admin"
