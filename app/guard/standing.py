"""What is told of an action that waits, or that a person let go: until when, and how many are to be asked."""

from __future__ import annotations

from app.chain.record import format_timestamp
from app.chain.strict import JsonObject
from app.guard.state import Action, GuardState, Pending
from app.guard.words import ActionStatus


def standing(state: GuardState, action: Action, now_us: int) -> JsonObject:
    """Members that say what the policy makes of ``action`` at ``now_us`` (µs since the epoch).

    ``{expires_at?, expired?, approvals?, approvers?}``: the first two where an approval has its time,
    ``expired`` once that is over; the last two where several keys must approve and not all have.
    """
    pending = state.pending.get(action.action_id)
    if pending is not None:
        return waiting_standing(state, pending, now_us)
    waits_for_claim = action.status is ActionStatus.ALLOWED and action.claimed_by is None
    if waits_for_claim and action.approved_by is not None:
        return _time(state, action.tool, action.asked_us, now_us)
    return {}


def waiting_standing(state: GuardState, pending: Pending, now_us: int) -> JsonObject:
    """The same of an action that waits."""
    told = _time(state, pending.tool, pending.asked_us, now_us)
    approvers = 1 if state.policy is None else state.policy.approvers(pending.tool)
    if approvers > 1:
        told |= {"approvals": len(pending.approvals), "approvers": approvers}
    return told


def _time(state: GuardState, tool: str, asked_us: int, now_us: int) -> JsonObject:
    until_us = None if state.policy is None else state.policy.approved_until_us(tool, asked_us)
    if until_us is None:
        return {}
    told: JsonObject = {"expires_at": format_timestamp(until_us)}
    if state.time_us(now_us) > until_us:
        told["expired"] = True
    return told
