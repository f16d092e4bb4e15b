"""The records that acts of the guard are made of, as drafts: their payloads, in one place.

The format fixes the members that every reader may count on; what else stands in a payload (cost,
remaining, the trace node) is for answering a retry the same way and for SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from app.chain.record import Draft, format_timestamp
from app.chain.strict import JsonObject, JsonValue
from app.errors import ConflictError
from app.guard import kinds
from app.guard.action import Action, rejection_reason
from app.guard.answers import OUTCOME_CONFLICT, Act, Allowed, Denied, PendingApproval
from app.guard.checks import Refusal
from app.guard.policy import Policy
from app.guard.state import Approval, GuardState
from app.guard.words import OutcomeStatus, Severity, add_scar
from app.trace.node import NodeStatus, action_node_id, fragment, tool_call_node

BUDGET_EXHAUSTED = "budget exhausted"

NODE_STATUS = {
    OutcomeStatus.SUCCESS: NodeStatus.SUCCESS,
    OutcomeStatus.FAILURE: NodeStatus.FAILED,
    OutcomeStatus.HARMFUL: NodeStatus.HARMFUL,
    OutcomeStatus.UNKNOWN: NodeStatus.UNKNOWN,
}


class Scene(msgspec.Struct, frozen=True):
    """Where, when and by whom an act is done.

    ``now_us`` is not before the head's time; ``key`` is the key that acts, None for the agent's own token.
    """

    state: GuardState
    policy: Policy
    actor: str
    log_uuid: UUID
    now_us: int
    agent_id: str | None
    key: str | None = None

    def draft(self, kind: str, payload: JsonObject) -> Draft:
        """A draft of this act's actor."""
        return Draft(kind=kind, payload=payload, actor=self.actor)


def scene_of(
    state: GuardState,
    *,
    actor: str,
    log_uuid: UUID,
    now_us: int,
    agent_id: str | None,
    key: str | None = None,
) -> Scene:
    """The scene of an act on a guarded agent. Raises ConflictError for an observed one."""
    return Scene(
        state=state,
        policy=policy_of(state),
        actor=actor,
        log_uuid=log_uuid,
        now_us=state.time_us(now_us),
        agent_id=agent_id,
        key=key,
    )


def policy_of(state: GuardState) -> Policy:
    """The agent's policy. Raises ConflictError when it has none."""
    if state.policy is None:
        raise ConflictError(
            "this agent is observed, not guarded: it has no policy; create a guarded agent to ask the guard"
        )
    return state.policy


def requested(scene: Scene, action: Action) -> Draft:
    """``action_requested``: what is asked, verbatim."""
    payload: JsonObject = {
        "action_id": action.action_id,
        "tool": action.tool,
        "input": action.input,
        "cost": action.cost,
        **_asked_with(scene),
        **_origin(action),
    }
    if action.redacted is not None:
        payload["redacted"] = action.redacted
    return scene.draft(kinds.ACTION_REQUESTED, payload)


def held(scene: Scene, action_id: str) -> Draft:
    """``approval_required``: the action waits for a person."""
    return scene.draft(kinds.APPROVAL_REQUIRED, {"action_id": action_id})


def joined(scene: Scene, action: Action, pending_id: str) -> Draft:
    """``approval_required`` of an ask that joins the pending action ``pending_id``."""
    payload: JsonObject = {"action_id": pending_id, "joined": True, **_asked_with(scene), **_origin(action)}
    if action.redacted is not None:
        payload["redacted"] = action.redacted
    return scene.draft(kinds.APPROVAL_REQUIRED, payload)


def allow(scene: Scene, action: Action, approval: JsonObject | None = None) -> Act:
    """``action_allowed``, and the termination when it spends the last of the budget.

    ``approval`` is what ``approval`` makes of a person's yes; without one nobody had to be asked.
    """
    remaining = scene.state.remaining - action.cost
    payload: JsonObject = {
        "action_id": action.action_id,
        "approved_by": None,
        "cost": action.cost,
        "remaining": remaining,
        **(approval or {}),
    }
    drafts = [scene.draft(kinds.ACTION_ALLOWED, payload)]
    if remaining == 0:
        drafts.append(termination(scene.actor, BUDGET_EXHAUSTED, "guard"))
    return Act(drafts=tuple(drafts), answer=Allowed(action.action_id, action.cost, remaining))


def approval(scene: Scene, claimed: str, note: str | None, before: Iterable[Approval]) -> JsonObject:
    """Who approves: the name of the key used and its id; what the body calls the approver stands apart.

    ``before`` are the approvals that were given before this one.
    """
    said: JsonObject = {"approved_by": scene.actor, "approver_claimed": claimed, "by_key": scene.key}
    also: list[JsonValue] = [{"approved_by": given.by, "by_key": given.key} for given in before]
    if also:
        said["also_approved_by"] = also
    return said if note is None else {**said, "note": note}


def approved_in_part(scene: Scene, action: Action, approval: JsonObject, approvals: int) -> Act:
    """``approval_given``: one of several approvals, not the last; ``approvals`` counts it."""
    approvers = scene.policy.approvers(action.tool)
    payload: JsonObject = {
        "action_id": action.action_id,
        **approval,
        "approvals": approvals,
        "approvers": approvers,
    }
    return Act(
        drafts=(scene.draft(kinds.APPROVAL_GIVEN, payload),),
        answer=PendingApproval(action.action_id, approvals, approvers),
    )


def deny(scene: Scene, action: Action, refusal: Refusal) -> Act:
    """``action_denied``, and what its scar brings."""
    after: tuple[Draft, ...] = ()
    if refusal.scar is not None:
        after = scars(scene, refusal.scar, refusal.words, action.action_id)
    # Waiting helps nobody whom this very denial terminates.
    retry = None if any(draft.kind == kinds.TERMINATED for draft in after) else refusal.retry_after_secs
    payload: JsonObject = {"action_id": action.action_id, "reason": refusal.reason}
    if retry is not None:
        payload["retry_after_secs"] = retry
    payload |= _node(scene, action, NodeStatus.DENIED, {"reason": refusal.reason})
    return Act(
        drafts=(scene.draft(kinds.ACTION_DENIED, payload), *after),
        answer=Denied(action.action_id, refusal.reason, retry),
    )


def rejected(scene: Scene, action: Action, claimed: str, reason: str) -> Draft:
    """``action_rejected``: a person said no; ``claimed`` is what the body calls them."""
    payload: JsonObject = {
        "action_id": action.action_id,
        "by": scene.actor,
        "approver_claimed": claimed,
        "by_key": scene.key,
        "reason": reason,
    }
    payload |= _node(scene, action, NodeStatus.DENIED, {"reason": rejection_reason(scene.actor, reason)})
    return scene.draft(kinds.ACTION_REJECTED, payload)


def outcome(scene: Scene, action: Action, status: OutcomeStatus, detail: str) -> Draft:
    """``outcome``; ``late`` when the agent was terminated before it was reported (case G23)."""
    payload: JsonObject = {"action_id": action.action_id, "status": status.value, "detail": detail}
    if not scene.state.alive:
        payload["late"] = True
    payload |= _node(scene, action, NODE_STATUS[status], {"detail": detail})
    return scene.draft(kinds.OUTCOME, payload)


def scars(scene: Scene, severity: Severity, reason: str, action_id: str) -> tuple[Draft, ...]:
    """The scar that an action left, and the termination when it reaches the limit."""
    return scar_and_limit(scene.state, scene.actor, severity, reason, action_id)


def scar_and_limit(
    state: GuardState, actor: str, severity: Severity, reason: str, action_id: str | None
) -> tuple[Draft, ...]:
    """``scar``, and ``terminated`` when the agent is alive and its score reaches the policy's limit."""
    limit = policy_of(state).scar_limit
    payload: JsonObject = {"severity": severity.value, "reason": reason, "action_id": action_id}
    scar = Draft(kind=kinds.SCAR, payload=payload, actor=actor)
    score = add_scar(state.scar_score, severity)
    if not state.alive or score < limit:
        return (scar,)
    return (scar, termination(actor, scar_limit_reached(score, limit), "guard"))


def outcome_conflict(scene: Scene, action: Action, status: OutcomeStatus, detail: str) -> Draft:
    """``event``: somebody reports another outcome than the one on record, which stays."""
    data: JsonObject = {
        "action_id": action.action_id,
        "recorded": None if action.outcome is None else action.outcome.value,
        "reported": status.value,
        "detail": detail,
    }
    return scene.draft(kinds.EVENT, {"type": OUTCOME_CONFLICT, "data": data})


def scar_limit_reached(score: int, limit: int) -> str:
    """The reason of a termination by scars."""
    return f"scar limit reached ({score} >= {limit})"


def termination(actor: str, reason: str, by: str) -> Draft:
    """``terminated``: permanent."""
    return Draft(kind=kinds.TERMINATED, payload={"reason": reason, "by": by}, actor=actor)


def _asked_with(scene: Scene) -> JsonObject:
    """The key that asks: with it the action cannot be approved (case G08)."""
    return {} if scene.key is None else {"requested_with": scene.key}


def _origin(action: Action) -> JsonObject:
    """Where in which session the action belongs, as far as the request said so."""
    origin: JsonObject = {}
    if action.session_id is not None:
        origin["session_id"] = str(action.session_id)
    if action.parent_id is not None:
        origin["parent_id"] = str(action.parent_id)
    if action.thought_process is not None:
        origin["thought_process"] = action.thought_process
    return origin


def _node(scene: Scene, action: Action, status: NodeStatus, outputs: JsonObject) -> JsonObject:
    """The one-node fragment of the action's end."""
    metadata: JsonObject = {
        "action_id": action.action_id,
        "timestamp": format_timestamp(scene.now_us),
        "cost": action.cost,
    }
    if scene.agent_id is not None:
        metadata["agent_id"] = scene.agent_id
    node = tool_call_node(
        node_id=action_node_id(scene.log_uuid, action.action_id),
        parent_id=action.parent_id,
        name=action.tool,
        inputs=action.input,
        thought_process=action.thought_process,
        status=status,
        outputs=outputs,
        metadata=metadata,
    )
    return fragment(node, action.session_id)
