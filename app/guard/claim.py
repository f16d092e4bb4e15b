"""Claims: whoever carries an action out takes it first, exactly as it was allowed, and once.

What a guard allows and what a backend does are two things; the claim is where they meet. It is checked and
recorded in one act, so that of two who claim at the same time one is refused, whichever processes they ask.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from app.chain.canonical import canonical
from app.chain.strict import JsonObject, JsonValue
from app.errors import ClaimRefusedError, TooManyRequestsError
from app.guard import drafts, kinds
from app.guard.action import Action
from app.guard.answers import Act, Claimed
from app.guard.bodies import Claim
from app.guard.checks import expired
from app.guard.state import CLAIM_WINDOW_US, GuardState, inside_window
from app.guard.words import ActionStatus

MAX_REFUSED = 20
"""Refused claims of one agent that are recorded within ``CLAIM_WINDOW_US``: enough to see what is tried."""


def claim(
    state: GuardState,
    action: Action,
    body: Claim,
    *,
    actor: str,
    key: str | None,
    log_uuid: UUID,
    now_us: int,
) -> Act:
    """Claims an allowed action, or puts on record why not; a refused claim leaves the action as it is.

    Raises:
        TooManyRequestsError: too many claims were refused in the last minute; nothing is recorded.
    """
    scene = drafts.scene_of(state, actor=actor, log_uuid=log_uuid, now_us=now_us, agent_id=None, key=key)
    reason = _why_not(scene, action, body)
    if reason is None:
        claimed: JsonObject = {
            "action_id": action.action_id,
            "by": actor,
            "by_key": key,
            "digest": claim_digest(action.tool, action.input, action.sealed),
        }
        return Act(drafts=(scene.draft(kinds.ACTION_CLAIMED, claimed),), answer=Claimed(action.action_id))
    if len(inside_window(state.refused_claims, scene.now_us, CLAIM_WINDOW_US)) >= MAX_REFUSED:
        raise TooManyRequestsError(
            f"{MAX_REFUSED} claims of this agent were refused within a minute; this one would be, too, and "
            "is not recorded"
        )
    refused: JsonObject = {"action_id": action.action_id, "by": actor, "by_key": key, "reason": reason}
    return Act(
        drafts=(scene.draft(kinds.CLAIM_REFUSED, refused),),
        refusal=ClaimRefusedError(action.action_id, reason),
    )


def claim_digest(tool: str, value: JsonValue, sealed: str | None = None) -> str:
    """Identity of what is carried out: SHA-256 (hex) of the canonical ``{"input", "tool"}``.

    Where something is taken out of the input, it is that of ``{"sealed", "tool"}``.
    """
    done: JsonObject = {"tool": tool, "input": value} if sealed is None else {"tool": tool, "sealed": sealed}
    return hashlib.sha256(canonical(done).encode()).hexdigest()


def _why_not(scene: drafts.Scene, action: Action, body: Claim) -> JsonObject | None:
    """The first reason against a claim, ``{code, …}``; None when there is none."""
    if action.status is ActionStatus.COMPLETED:
        return {"code": "completed"}
    if action.status is not ActionStatus.ALLOWED:
        return {"code": "not_allowed", "status": action.status.value}
    if action.claimed_by is not None:
        return {"code": "already_claimed", "by": action.claimed_by}
    if scene.state.terminated is not None and not _spent_to_the_last(scene.state, scene.policy.scar_limit):
        return {"code": "terminated", "reason": scene.state.terminated}
    late = None
    if action.approved_by is not None:
        late = expired(scene.policy, action.tool, action.asked_us, scene.now_us)
    return _mismatch(action, body) if late is None else late.reason


def _spent_to_the_last(state: GuardState, scar_limit: int) -> bool:
    """Whether the budget alone ended the agent: what it was allowed for the last credit was allowed.

    Only the act that spends the last credit leaves nothing, and it terminates; scars may come later.
    """
    by_scars = state.scar_count > 0 and state.scar_score >= scar_limit
    return state.allowed > 0 and state.remaining == 0 and not by_scars


def _mismatch(action: Action, body: Claim) -> JsonObject | None:
    """Both digests and neither input: one is on record, the other is not the chain's to keep (case G01)."""
    if action.sealed is None:
        same = claim_digest(action.tool, action.input) == claim_digest(body.tool, body.input)
    else:
        same = (action.tool, action.sealed) == (body.tool, body.sealed)
    if same:
        return None
    hidden = action.sealed is not None or body.is_secret
    return {
        "code": "claim_mismatch",
        "allowed": claim_digest(action.tool, action.input, action.sealed),
        "claimed": claim_digest(body.tool, body.input, body.sealed if hidden else None),
    }
