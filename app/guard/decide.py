"""Decisions: what to append and what to answer, from the state alone.

Each function returns an ``Act``: drafts of the records that the act is made of, appended in one
transaction or not at all, and the answer, which is given only when they are on disk. Nothing here changes
the state; sealing the drafts and folding the records does.

``state`` is the fold up to the chain's head, ``actor`` the agent's id or the name of the API key that asks,
``key`` which key that is (``Grant.key``), ``log_uuid`` the chain, ``now_us`` the present time in µs since the
epoch, at which the drafts will be sealed. A record's time is never before its predecessor's, so a clock that
stepped back reopens no rate window (case C15). On an agent that is observed, not guarded, every act raises
``ConflictError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from uuid import UUID

from app.chain.record import Draft
from app.errors import (
    AlreadyTerminatedError,
    ConflictError,
    ForbiddenError,
    InvalidStateError,
    MirrorError,
    TooManyRequestsError,
    TrailsError,
    UnknownActionError,
)
from app.guard import drafts
from app.guard.action import Action, may_report, rejection_reason
from app.guard.answers import (
    Act,
    Allowed,
    Decision,
    Denied,
    PendingApproval,
    decision_of,
    refusal_of,
)
from app.guard.bodies import Ask
from app.guard.checks import check, expired
from app.guard.policy import Policy
from app.guard.state import GuardState, Pending, ask_digest, next_action_id
from app.guard.words import OutcomeStatus, Severity

__all__ = [
    "MAX_PENDING",
    "Act",
    "Allowed",
    "Ask",
    "Decision",
    "Denied",
    "PendingApproval",
    "approve",
    "decision_of",
    "lapsed_ids",
    "missing_termination",
    "objection",
    "refusal_of",
    "reject",
    "report",
    "request",
    "scar",
    "terminate",
]

MAX_PENDING = 1000
"""Actions of one agent that may wait for a person: more than anybody will read, and a bound on memory."""

MAX_PENDING_CHARS = 32 * 1024 * 1024
"""Characters of requests that may wait at once: they are listed together for whoever decides."""

MAX_LAPSED = 8
"""Lapsed actions whose end one ask puts on record: more than come by an ask, and little work for one."""

MAX_JOINS = 1000
"""Times that an ask may join the pending action that asks the same; each time is a record."""

_OUTCOME_SCARS = {
    OutcomeStatus.FAILURE: (Severity.MINOR, "action failed"),
    OutcomeStatus.HARMFUL: (Severity.SEVERE, "action caused harm"),
}


def request(
    state: GuardState,
    ask: Ask,
    *,
    agent_id: str,
    log_uuid: UUID,
    actor: str,
    now_us: int,
    key: str | None = None,
    lapsed: Iterable[Action] = (),
) -> Act:
    """Decides on a request to act, in the order of the guides' table: the first failure wins.

    An ask that would be held joins the pending action that asks exactly the same, so that asking again
    stacks nothing (case G10). ``agent_id`` is named in the trace node of a denial. ``lapsed`` are the actions
    of ``lapsed_ids``: their denial goes on record behind what is asked.

    Raises:
        TooManyRequestsError: too much waits already, or this was asked too often; nothing is recorded.
    """
    scene = drafts.scene_of(state, actor=actor, log_uuid=log_uuid, now_us=now_us, agent_id=agent_id, key=key)
    action = _action_of(state, scene.policy, ask)
    refusal = check(state, action.tool, action.cost, scene.now_us)
    if refusal is not None:
        act = _after_request(scene, action, drafts.deny(scene, action, refusal))
    elif scene.policy.requires_approval(action.tool):
        act = _hold(scene, action)
    else:
        act = _after_request(scene, action, drafts.allow(scene, action))
    return Act(drafts=(*act.drafts, *_lapse(scene, lapsed)), answer=act.answer)


def lapsed_ids(state: GuardState, now_us: int) -> list[str]:
    """Pending actions whose time for an approval is over, the first few of them.

    No sweeper ends them: they are not approved any more, asked again they are new, and what asks next puts
    their end on record, a few at a time, so that they do not fill up what may wait.
    """
    if state.policy is None or not state.pending:
        return []
    is_over = _is_over(state, state.time_us(now_us))
    return list(islice((key for key, pending in state.pending.items() if is_over(pending)), MAX_LAPSED))


def approve(
    state: GuardState,
    action: Action,
    *,
    approver: str,
    note: str | None = None,
    actor: str,
    key: str | None,
    log_uuid: UUID,
    now_us: int,
    agent_id: str,
) -> Act:
    """Approves a pending action. Everything is checked again, so this may turn into a recorded denial.

    Where the policy wants several approvers, all but the last approval are recorded and let nothing go.
    ``approver`` is what the body calls whoever approves: it is kept, and proves nothing.

    Raises:
        InvalidStateError: the action is not pending.
        ForbiddenError: it was asked for with this key.
        ConflictError: it was approved with this key.
        MirrorError: ``action`` is not what the chain holds pending under this id.
    """
    scene = drafts.scene_of(state, actor=actor, log_uuid=log_uuid, now_us=now_us, agent_id=agent_id, key=key)
    pending = _pending(state, action)
    against = objection(pending, action.action_id, agent_id=agent_id, actor=actor, key=key)
    if against is not None:
        raise against
    refusal = expired(scene.policy, action.tool, pending.asked_us, scene.now_us)
    refusal = refusal or check(state, action.tool, action.cost, scene.now_us)
    if refusal is not None:
        return drafts.deny(scene, action, refusal)
    approvals = len(pending.approvals) + 1
    if approvals < scene.policy.approvers(action.tool):
        one = drafts.approval(scene, approver, note, ())
        return drafts.approved_in_part(scene, action, one, approvals)
    return drafts.allow(scene, action, drafts.approval(scene, approver, note, pending.approvals))


def reject(
    state: GuardState,
    action: Action,
    *,
    approver: str,
    reason: str,
    scar: Severity | None = None,
    actor: str,
    key: str | None = None,
    log_uuid: UUID,
    now_us: int,
    agent_id: str | None = None,
) -> Act:
    """Rejects a pending action, with a scar when having asked for it counts.

    Whoever asked may reject it: that takes back what is asked, and lets nothing go.

    Raises:
        InvalidStateError: the action is not pending.
        MirrorError: ``action`` is not what the chain holds pending under this id.
    """
    scene = drafts.scene_of(state, actor=actor, log_uuid=log_uuid, now_us=now_us, agent_id=agent_id, key=key)
    _pending(state, action)
    records = [drafts.rejected(scene, action, approver, reason)]
    if scar is not None:
        records += drafts.scars(scene, scar, f"rejected by {actor}: {reason}", action.action_id)
    return Act(drafts=tuple(records), answer=Denied(action.action_id, rejection_reason(actor, reason)))


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

    One outcome an action; only ``unknown`` may be followed by one that knows. Another outcome than the one on
    record is refused and kept as an anomaly, the first stays (case G25). After a termination an outcome is
    still recorded, flagged as late (case G23).

    Raises:
        InvalidStateError: the action was not allowed, or this outcome is on record.
    """
    scene = drafts.scene_of(state, actor=actor, log_uuid=log_uuid, now_us=now_us, agent_id=agent_id)
    if not may_report(action, status):
        refusal = InvalidStateError(action.action_id, action.status)
        if action.outcome is None or status in {action.outcome, OutcomeStatus.UNKNOWN}:
            raise refusal
        return Act(drafts=(drafts.outcome_conflict(scene, action, status, detail),), refusal=refusal)
    records = [drafts.outcome(scene, action, status, detail)]
    if status in _OUTCOME_SCARS:
        severity, words = _OUTCOME_SCARS[status]
        records += drafts.scars(scene, severity, f"{words}: {detail}", action.action_id)
    return Act(drafts=tuple(records))


def scar(
    state: GuardState, *, severity: Severity, reason: str, action_id: str | None = None, actor: str
) -> Act:
    """Scars the agent on the word of an operator or a monitor; may terminate it.

    Raises:
        UnknownActionError: ``action_id`` is given and no such action was ever requested.
    """
    if action_id is not None and not state.knows_action(action_id):
        raise UnknownActionError(action_id)
    return Act(drafts=drafts.scar_and_limit(state, actor, severity, reason, action_id))


def terminate(state: GuardState, *, reason: str, by: str, actor: str) -> Act:
    """The kill switch. Permanent.

    Raises:
        AlreadyTerminatedError: the agent was terminated before.
    """
    drafts.policy_of(state)
    if state.terminated is not None:
        raise AlreadyTerminatedError(state.terminated)
    return Act(drafts=(drafts.termination(actor, reason, by),))


def missing_termination(state: GuardState, *, agent_id: str) -> Act | None:
    """The termination that a chain lacks, for when it is opened; None when it lacks none.

    The guard writes ``terminated`` in the act that reaches the scar limit or spends the budget. A chain
    that shows either without it lost its tail, and the agent must not act again.
    """
    if state.policy is None or not state.alive:
        return None
    limit = state.policy.scar_limit
    if state.scar_count and state.scar_score >= limit:
        reason = drafts.scar_limit_reached(state.scar_score, limit)
    elif state.allowed and state.remaining == 0:
        reason = drafts.BUDGET_EXHAUSTED
    else:
        return None
    lacking = f"{reason}; termination record missing from the log"
    return Act(drafts=(drafts.termination(agent_id, lacking, "guard (replay)"),))


def _action_of(state: GuardState, policy: Policy, ask: Ask) -> Action:
    """The action that ``ask`` becomes: the next id, and the larger of the declared and the rule's cost."""
    rule = policy.rule_for(ask.tool)
    return Action(
        action_id=next_action_id(state),
        tool=ask.tool,
        input=ask.input,
        cost=max(ask.cost or 0, 0 if rule is None else rule.cost),
        session_id=ask.session_id,
        parent_id=ask.parent_id,
        thought_process=ask.thought_process,
        redacted=ask.redacted,
    )


def _after_request(scene: drafts.Scene, action: Action, act: Act) -> Act:
    return Act(drafts=(drafts.requested(scene, action), *act.drafts), answer=act.answer)


def _is_over(state: GuardState, now_us: int) -> Callable[[Pending], bool]:
    policy = drafts.policy_of(state)

    def is_over(pending: Pending) -> bool:
        until_us = policy.approved_until_us(pending.tool, pending.asked_us)
        return until_us is not None and now_us > until_us

    return is_over


def _lapse(scene: drafts.Scene, actions: Iterable[Action]) -> Iterator[Draft]:
    for action in actions:
        pending = _pending(scene.state, action)
        refusal = expired(scene.policy, action.tool, pending.asked_us, scene.now_us)
        if refusal is not None:
            yield from drafts.deny(scene, action, refusal).drafts


def _hold(scene: drafts.Scene, action: Action) -> Act:
    same = _same_pending(scene, action)
    if same is not None:
        return _join(scene, action, same)
    is_over = _is_over(scene.state, scene.now_us)
    waiting = [pending for pending in scene.state.pending.values() if not is_over(pending)]
    if len(waiting) >= MAX_PENDING or sum(pending.size for pending in waiting) >= MAX_PENDING_CHARS:
        raise TooManyRequestsError(
            f"{len(waiting)} actions of this agent wait for approval; decide some of them first"
        )
    records = (drafts.requested(scene, action), drafts.held(scene, action.action_id))
    return Act(drafts=records, answer=PendingApproval(action.action_id))


def _join(scene: drafts.Scene, action: Action, pending_id: str) -> Act:
    if scene.state.pending[pending_id].joins >= MAX_JOINS:
        raise TooManyRequestsError(
            f"{pending_id} asks exactly this and waits for approval; read it instead of asking again"
        )
    return Act(drafts=(drafts.joined(scene, action, pending_id),), answer=PendingApproval(pending_id))


def _same_pending(scene: drafts.Scene, action: Action) -> str | None:
    """The pending action that asks exactly this and whose time is not over."""
    if not scene.state.pending:
        return None
    digest = ask_digest(action.tool, action.input, action.cost, action.sealed)
    same = (key for key, pending in scene.state.pending.items() if pending.digest == digest)
    is_over = _is_over(scene.state, scene.now_us)
    return next((key for key in same if not is_over(scene.state.pending[key])), None)


def _pending(state: GuardState, action: Action) -> Pending:
    """What the chain holds pending under the action's id, which must be exactly ``action``."""
    pending = state.pending.get(action.action_id)
    if pending is None:
        raise InvalidStateError(action.action_id, action.status)
    # Approve one thing, execute another (case G01): the rows must say what the fold holds.
    if ask_digest(action.tool, action.input, action.cost, action.sealed) != pending.digest:
        raise MirrorError(f"{action.action_id} is not what the chain holds pending", seq=pending.seq)
    return pending


def objection(
    pending: Pending, action_id: str, *, agent_id: str | None, actor: str, key: str | None
) -> TrailsError | None:
    """Why ``actor`` with this key may not approve what waits; None: it may. Nobody their own, nobody twice.

    The one check of who approves, whichever way it comes (case G08). A key's name is its holder's: another
    key of the same name, issued when the first was revoked, is nobody else. The agent's own name is not a
    holder's.
    """
    asked = actor in pending.names and actor != agent_id
    if key in pending.keys or asked:
        return ForbiddenError(
            f"{action_id} was asked for with this key, which cannot approve it; another key can"
        )
    if any(key == given.key or actor == given.by for given in pending.approvals):
        return ConflictError(
            f"{action_id} was approved with this key; it waits for the approval of another one"
        )
    return None
