"""Decisions: what to append and what to answer, from the state alone (DESIGN.md section 6).

Each function returns an ``Act``: drafts of the records that the act is made of, appended in one
transaction or not at all, and the answer, which is given only when they are on disk. Nothing here changes
the state; sealing the drafts and folding the records does.

The state is that of the chain's head, and ``now_us`` the time at which the drafts will be sealed. A record's
time is never before its predecessor's, so a clock that stepped back reopens no rate window (case C15).
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from app.chain.record import Draft, format_timestamp
from app.chain.strict import JsonObject, JsonValue
from app.errors import (
    AlreadyTerminatedError,
    ConflictError,
    InvalidStateError,
    MirrorError,
    TooManyRequestsError,
    UnknownActionError,
)
from app.guard.action import Action, may_report
from app.guard.bodies import Ask
from app.guard.checks import Refusal, check
from app.guard.policy import Policy
from app.guard.state import (
    ACTION_ALLOWED,
    ACTION_DENIED,
    ACTION_REJECTED,
    ACTION_REQUESTED,
    APPROVAL_REQUIRED,
    OUTCOME,
    SCAR,
    TERMINATED,
    GuardState,
    ask_digest,
    next_action_id,
)
from app.guard.words import OutcomeStatus, Severity, add_scar
from app.trace.node import NodeStatus, action_node_id, fragment, tool_call_node

__all__ = [
    "MAX_PENDING",
    "Act",
    "Allowed",
    "Ask",
    "Decision",
    "Denied",
    "PendingApproval",
    "approve",
    "missing_termination",
    "reject",
    "report",
    "request",
    "scar",
    "terminate",
]

MAX_PENDING = 1000
"""Actions of one agent that may wait for a person: more than anybody will read, and a bound on memory."""


class Allowed(msgspec.Struct, frozen=True):
    """The action may be carried out; ``cost`` is charged for ever, ``remaining`` is what it left."""

    action_id: str
    cost: int
    remaining: int

    def to_json(self) -> JsonObject:
        """``{decision: allowed, action_id, cost, remaining}``."""
        return {
            "decision": "allowed",
            "action_id": self.action_id,
            "cost": self.cost,
            "remaining": self.remaining,
        }


class Denied(msgspec.Struct, frozen=True):
    """The action may not be carried out; ``reason`` is ``{code, …}``.

    ``retry_after_secs`` is set when only the rate limit stood in the way: after so many seconds without
    another allowed action the window has room again.
    """

    action_id: str
    reason: JsonObject
    retry_after_secs: int | None = None

    def to_json(self) -> JsonObject:
        """``{decision: denied, action_id, reason}``, with retry_after_secs when there is one."""
        body: JsonObject = {"decision": "denied", "action_id": self.action_id, "reason": self.reason}
        if self.retry_after_secs is not None:
            body["retry_after_secs"] = self.retry_after_secs
        return body


class PendingApproval(msgspec.Struct, frozen=True):
    """The action waits for a person; nothing is charged yet."""

    action_id: str

    def to_json(self) -> JsonObject:
        """``{decision: pending_approval, action_id}``."""
        return {"decision": "pending_approval", "action_id": self.action_id}


Decision = Allowed | Denied | PendingApproval


class Act(msgspec.Struct, frozen=True):
    """The records of one act, in order, and the decision to answer once they are on disk (if any)."""

    drafts: tuple[Draft, ...]
    answer: Decision | None = None


class _Scene(msgspec.Struct, frozen=True):
    """Where and when an act happens: what each of its records needs besides the decision."""

    state: GuardState
    policy: Policy
    actor: str
    log_uuid: UUID
    now_us: int
    agent_id: str | None

    def draft(self, kind: str, payload: JsonObject) -> Draft:
        return Draft(kind=kind, payload=payload, actor=self.actor)


def request(state: GuardState, ask: Ask, *, agent_id: str, log_uuid: UUID, actor: str, now_us: int) -> Act:
    """Decides on a request to act.

    An ask that would be held joins the pending action that asks exactly the same, so that asking again
    stacks nothing (case G10).

    Args:
        state: the fold up to the chain's head.
        ask: what is asked.
        agent_id: the agent, named in the trace node of a denial.
        log_uuid: the chain, which the node's id is derived from.
        actor: who asks: the agent's id or the name of the API key.
        now_us: the present time in µs since the epoch.

    Raises:
        ConflictError: the agent is observed, not guarded.
        TooManyRequestsError: ``MAX_PENDING`` actions wait already.
    """
    scene = _scene(state, actor, log_uuid, now_us, agent_id)
    action = _action_of(state, scene.policy, ask)
    requested = scene.draft(ACTION_REQUESTED, _request_payload(action))
    refusal = check(state, action.tool, action.cost, scene.now_us)
    if refusal is not None:
        return _preceded(requested, _deny(scene, action, refusal))
    if _held(scene.policy, action.tool):
        return _hold(scene, action, requested)
    return _preceded(requested, _allow(scene, action, approver=None, note=None))


def approve(
    state: GuardState,
    action: Action,
    *,
    approver: str,
    note: str | None = None,
    actor: str,
    log_uuid: UUID,
    now_us: int,
    agent_id: str | None = None,
) -> Act:
    """Approves a pending action. Everything is checked again, so this may turn into a recorded denial.

    Raises:
        InvalidStateError: the action is not pending.
        MirrorError: ``action`` is not what the chain holds pending under this id.
        ConflictError: the agent is observed, not guarded.
    """
    scene = _scene(state, actor, log_uuid, now_us, agent_id)
    _require_pending(state, action)
    refusal = check(state, action.tool, action.cost, scene.now_us)
    if refusal is not None:
        return _deny(scene, action, refusal)
    return _allow(scene, action, approver=approver, note=note)


def reject(
    state: GuardState,
    action: Action,
    *,
    approver: str,
    reason: str,
    scar: Severity | None = None,
    actor: str,
    log_uuid: UUID,
    now_us: int,
    agent_id: str | None = None,
) -> Act:
    """Rejects a pending action, with a scar when asking for it counts.

    Raises:
        InvalidStateError: the action is not pending.
        MirrorError: ``action`` is not what the chain holds pending under this id.
        ConflictError: the agent is observed, not guarded.
    """
    scene = _scene(state, actor, log_uuid, now_us, agent_id)
    _require_pending(state, action)
    why: JsonObject = {"code": "rejected", "by": approver, "reason": reason}
    payload: JsonObject = {"action_id": action.action_id, "by": approver, "reason": reason}
    drafts = [
        scene.draft(ACTION_REJECTED, payload | _node(scene, action, NodeStatus.DENIED, {"reason": why}))
    ]
    if scar is not None:
        drafts += _scar_drafts(scene, scar, f"rejected by {approver}: {reason}", action.action_id)
    return Act(drafts=tuple(drafts), answer=Denied(action.action_id, why))


def report(
    state: GuardState,
    action: Action,
    *,
    status: OutcomeStatus,
    detail: str = "",
    actor: str,
    log_uuid: UUID,
    now_us: int,
    agent_id: str | None = None,
) -> Act:
    """Records how an allowed action went; failure and harm scar the agent.

    One outcome an action; only ``unknown`` may be followed by one that knows (case G25). After a
    termination it is still recorded, flagged as late (case G23).

    Raises:
        InvalidStateError: the action was not allowed, or its outcome is on record.
        ConflictError: the agent is observed, not guarded.
    """
    scene = _scene(state, actor, log_uuid, now_us, agent_id)
    if not may_report(action) or status is action.outcome:
        raise InvalidStateError(action.action_id, action.status)
    payload: JsonObject = {"action_id": action.action_id, "status": status.value, "detail": detail}
    if not state.alive:
        payload["late"] = True
    node = _node(scene, action, _NODE_STATUS[status], {"detail": detail})
    drafts = [scene.draft(OUTCOME, payload | node)]
    if status in _OUTCOME_SCARS:
        severity, words = _OUTCOME_SCARS[status]
        drafts += _scar_drafts(scene, severity, f"{words}: {detail}", action.action_id)
    return Act(drafts=tuple(drafts))


def scar(
    state: GuardState, *, severity: Severity, reason: str, action_id: str | None = None, actor: str
) -> Act:
    """Scars the agent on the word of an operator or a monitor; may terminate it.

    Raises:
        UnknownActionError: ``action_id`` is given and no such action was ever requested.
        ConflictError: the agent is observed, not guarded.
    """
    if action_id is not None and not state.knows_action(action_id):
        raise UnknownActionError(action_id)
    return Act(drafts=tuple(_scars(state, _policy_of(state), actor, severity, reason, action_id)))


def terminate(state: GuardState, *, reason: str, by: str, actor: str) -> Act:
    """The kill switch. Permanent.

    Raises:
        AlreadyTerminatedError: the agent was terminated before.
        ConflictError: the agent is observed, not guarded.
    """
    _policy_of(state)
    if state.terminated is not None:
        raise AlreadyTerminatedError(state.terminated)
    return Act(drafts=(_termination(actor, reason, by),))


def missing_termination(state: GuardState, *, agent_id: str) -> Act | None:
    """The termination that a chain lacks, for when it is opened; None when it lacks none.

    The guard writes ``terminated`` in the act that reaches the scar limit or spends the budget. A chain
    that shows either without it lost its tail, and the agent must not act again.
    """
    if state.policy is None or not state.alive:
        return None
    if state.scar_count and state.scar_score >= state.policy.scar_limit:
        reason = _scar_limit_reached(state.scar_score, state.policy)
    elif state.allowed and state.remaining == 0:
        reason = _BUDGET_EXHAUSTED
    else:
        return None
    lacking = f"{reason}; termination record missing from the log"
    return Act(drafts=(_termination(agent_id, lacking, "guard (replay)"),))


_BUDGET_EXHAUSTED = "budget exhausted"

_NODE_STATUS = {
    OutcomeStatus.SUCCESS: NodeStatus.SUCCESS,
    OutcomeStatus.FAILURE: NodeStatus.FAILED,
    OutcomeStatus.HARMFUL: NodeStatus.HARMFUL,
    OutcomeStatus.UNKNOWN: NodeStatus.UNKNOWN,
}

_OUTCOME_SCARS = {
    OutcomeStatus.FAILURE: (Severity.MINOR, "action failed"),
    OutcomeStatus.HARMFUL: (Severity.SEVERE, "action caused harm"),
}


def _scene(state: GuardState, actor: str, log_uuid: UUID, now_us: int, agent_id: str | None) -> _Scene:
    head_us = now_us if state.head is None else state.head.timestamp_us
    return _Scene(
        state=state,
        policy=_policy_of(state),
        actor=actor,
        log_uuid=log_uuid,
        now_us=max(now_us, head_us),
        agent_id=agent_id,
    )


def _policy_of(state: GuardState) -> Policy:
    if state.policy is None:
        raise ConflictError(
            "this agent is observed, not guarded: it has no policy; create a guarded agent to ask the guard"
        )
    return state.policy


def _action_of(state: GuardState, policy: Policy, ask: Ask) -> Action:
    rule = policy.rule_for(ask.tool)
    return Action(
        action_id=next_action_id(state),
        tool=ask.tool,
        input=ask.input,
        cost=max(ask.cost or 0, 0 if rule is None else rule.cost),
        session_id=ask.session_id,
        parent_id=ask.parent_id,
        thought_process=ask.thought_process,
    )


def _request_payload(action: Action) -> JsonObject:
    return {
        "action_id": action.action_id,
        "tool": action.tool,
        "input": action.input,
        "cost": action.cost,
        **_origin(action),
    }


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


def _preceded(first: Draft, act: Act) -> Act:
    return Act(drafts=(first, *act.drafts), answer=act.answer)


def _held(policy: Policy, tool: str) -> bool:
    rule = policy.rule_for(tool)
    return rule is not None and rule.requires_approval


def _hold(scene: _Scene, action: Action, requested: Draft) -> Act:
    joined = _same_pending(scene.state, action)
    if joined is not None:
        payload: JsonObject = {"action_id": joined, "joined": True, **_origin(action)}
        return Act(drafts=(scene.draft(APPROVAL_REQUIRED, payload),), answer=PendingApproval(joined))
    if len(scene.state.pending) >= MAX_PENDING:
        raise TooManyRequestsError(
            f"{MAX_PENDING} actions of this agent wait for approval; decide some of them first"
        )
    held = scene.draft(APPROVAL_REQUIRED, {"action_id": action.action_id})
    return Act(drafts=(requested, held), answer=PendingApproval(action.action_id))


def _same_pending(state: GuardState, action: Action) -> str | None:
    if not state.pending:
        return None
    digest = ask_digest(action.tool, action.input, action.cost)
    return next((key for key, pending in state.pending.items() if pending.digest == digest), None)


def _require_pending(state: GuardState, action: Action) -> None:
    pending = state.pending.get(action.action_id)
    if pending is None:
        raise InvalidStateError(action.action_id, action.status)
    # Approve one thing, execute another (case G01): the rows must say what the fold holds.
    if ask_digest(action.tool, action.input, action.cost) != pending.digest:
        raise MirrorError(f"{action.action_id} is not what the chain holds pending", seq=pending.seq)


def _allow(scene: _Scene, action: Action, *, approver: str | None, note: str | None) -> Act:
    remaining = scene.state.remaining - action.cost
    payload: JsonObject = {
        "action_id": action.action_id,
        "approved_by": approver,
        "cost": action.cost,
        "remaining": remaining,
    }
    if note is not None:
        payload["note"] = note
    drafts = [scene.draft(ACTION_ALLOWED, payload)]
    if remaining == 0:
        drafts.append(_termination(scene.actor, _BUDGET_EXHAUSTED, "guard"))
    return Act(drafts=tuple(drafts), answer=Allowed(action.action_id, action.cost, remaining))


def _deny(scene: _Scene, action: Action, refusal: Refusal) -> Act:
    payload: JsonObject = {"action_id": action.action_id, "reason": refusal.reason}
    if refusal.retry_after_secs is not None:
        payload["retry_after_secs"] = refusal.retry_after_secs
    node = _node(scene, action, NodeStatus.DENIED, {"reason": refusal.reason})
    drafts = [scene.draft(ACTION_DENIED, payload | node)]
    if refusal.scar is not None:
        drafts += _scar_drafts(scene, refusal.scar, refusal.words, action.action_id)
    answer = Denied(action.action_id, refusal.reason, refusal.retry_after_secs)
    return Act(drafts=tuple(drafts), answer=answer)


def _scar_drafts(scene: _Scene, severity: Severity, reason: str, action_id: str) -> list[Draft]:
    return _scars(scene.state, scene.policy, scene.actor, severity, reason, action_id)


def _scars(
    state: GuardState, policy: Policy, actor: str, severity: Severity, reason: str, action_id: str | None
) -> list[Draft]:
    """The scar, and the termination when it reaches the limit of an agent that is alive."""
    payload: JsonObject = {"severity": severity.value, "reason": reason, "action_id": action_id}
    drafts = [Draft(kind=SCAR, payload=payload, actor=actor)]
    score = add_scar(state.scar_score, severity)
    if state.alive and score >= policy.scar_limit:
        drafts.append(_termination(actor, _scar_limit_reached(score, policy), "guard"))
    return drafts


def _scar_limit_reached(score: int, policy: Policy) -> str:
    return f"scar limit reached ({score} >= {policy.scar_limit})"


def _termination(actor: str, reason: str, by: str) -> Draft:
    return Draft(kind=TERMINATED, payload={"reason": reason, "by": by}, actor=actor)


def _node(scene: _Scene, action: Action, status: NodeStatus, outputs: JsonObject) -> JsonObject:
    """The one-node fragment of the action's end."""
    metadata: dict[str, JsonValue] = {
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
