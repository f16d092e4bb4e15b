"""Steps 2 to 6 of a request: why an action may not go on, in the order of the guides' table of denials."""

from __future__ import annotations

import msgspec

from app.chain.record import format_timestamp
from app.chain.strict import JsonObject
from app.guard.policy import Policy, RateLimit
from app.guard.state import GuardState, inside_window
from app.guard.words import Severity

APPROVAL_EXPIRED = "approval_expired"

_SECOND_US = 1_000_000


class Refusal(msgspec.Struct, frozen=True):
    """Why an action is denied: ``reason`` is ``{code, …}``, ``words`` the reason of the scar it leaves."""

    reason: JsonObject
    words: str
    scar: Severity | None = None
    retry_after_secs: int | None = None


def check(state: GuardState, tool: str, cost: int, now_us: int) -> Refusal | None:
    """The first reason against an action of ``tool`` at ``cost``; None when it may proceed.

    Args:
        state: the fold up to the head; it has a policy.
        tool: the tool's name.
        cost: what would be charged.
        now_us: µs since the epoch, not before the head's time.
    """
    policy = state.policy
    if policy is None:
        raise ValueError("checking against no policy")
    return (
        _terminated(state)
        or _tool(state, policy, tool)
        or _rate(state, policy.rate_limit, now_us)
        or _budget(state, cost)
    )


def expired(policy: Policy, tool: str, asked_us: int, now_us: int) -> Refusal | None:
    """Why an approval comes too late for what was asked at ``asked_us``; None when it does not.

    Both are times of records, none of which is before its predecessor, so that every process says the same
    (case G06). An end that only the clock says (no record is of a later time) is none if that steps back.
    """
    until_us = policy.approved_until_us(tool, asked_us)
    if until_us is None or now_us <= until_us:
        return None
    ttl_secs = (until_us - asked_us) // _SECOND_US
    return Refusal(
        reason={
            "code": APPROVAL_EXPIRED,
            "approval_ttl_secs": ttl_secs,
            "requested_at": format_timestamp(asked_us),
        },
        words=f"an approval counts until {ttl_secs}s after the request",
    )


def _terminated(state: GuardState) -> Refusal | None:
    if state.terminated is None:
        return None
    return Refusal(
        reason={"code": "terminated", "reason": state.terminated},
        words=f"agent is terminated: {state.terminated}",
    )


def _tool(state: GuardState, policy: Policy, tool: str) -> Refusal | None:
    rule = policy.rule_for(tool)
    if rule is None:
        return Refusal(
            reason={"code": "tool_not_allowed", "tool": tool},
            words=f"tool '{tool}' is not allowed",
            scar=Severity.MODERATE,
        )
    if rule.max_calls is None or state.tool_calls.get(tool, 0) < rule.max_calls:
        return None
    return Refusal(
        reason={"code": "tool_call_limit", "tool": tool, "max_calls": rule.max_calls},
        words=f"tool '{tool}' reached its limit of {rule.max_calls} calls",
        scar=Severity.MINOR,
    )


def _rate(state: GuardState, limit: RateLimit | None, now_us: int) -> Refusal | None:
    if limit is None:
        return None
    inside = inside_window(state.recent, now_us, limit.window_us)
    if len(inside) < limit.max_actions:
        return None
    return Refusal(
        reason={"code": "rate_limited", **limit.to_json()},
        words=f"rate limit of {limit.max_actions} actions per {limit.window_secs}s exceeded",
        scar=Severity.MINOR,
        retry_after_secs=_retry_after_secs(inside, limit, now_us),
    )


def _retry_after_secs(inside: tuple[int, ...], limit: RateLimit, now_us: int) -> int | None:
    """Whole seconds until the window has room (case G17); None when it never has."""
    if limit.max_actions == 0:
        return None
    last_to_leave = inside[len(inside) - limit.max_actions]
    return -((now_us - limit.window_us - last_to_leave) // _SECOND_US)


def _budget(state: GuardState, cost: int) -> Refusal | None:
    if cost <= state.remaining:
        return None
    return Refusal(
        reason={"code": "insufficient_budget", "cost": cost, "remaining": state.remaining},
        words=f"cost {cost} exceeds remaining budget {state.remaining}",
    )
