"""A second guard, written to be obviously right: a list of what happened, read from the start each time.

It shares no code with ``app.guard`` and keeps nothing but the list. Each question walks the whole list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

WEIGHTS = {"minor": 1, "moderate": 3, "severe": 10, "fatal": 4294967295}

Event = tuple[Any, ...]


@dataclass
class GuardModel:
    """Policy as a plain document; events as tuples whose first member names them."""

    policy: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    # --- questions, each answered from the whole list ---

    def asked(self) -> list[Event]:
        """("asked", id, tool, input, cost, time)."""
        return [e for e in self.events if e[0] == "asked"]

    def of(self, action_id: str) -> Event:
        return next(e for e in self.asked() if e[1] == action_id)

    def allowed(self) -> list[Event]:
        """("allowed", id, time)."""
        return [e for e in self.events if e[0] == "allowed"]

    def denied(self) -> list[str]:
        return [e[1] for e in self.events if e[0] == "denied"]

    def pending(self) -> list[str]:
        decided = {e[1] for e in self.events if e[0] in {"allowed", "denied"}}
        return [e[1] for e in self.events if e[0] == "held" and e[1] not in decided]

    def approvals(self, action_id: str) -> list[str]:
        """The keys that approved so far, of ("approved", id, key)."""
        return [e[2] for e in self.events if e[0] == "approved" and e[1] == action_id]

    def is_late(self, action_id: str, now: int) -> bool:
        """Whether it is too late for an approval."""
        _, _, tool, _, _, asked = self.of(action_id)
        ttl = (self.rule(tool) or {}).get("approval_ttl_secs")
        return ttl is not None and now - asked > ttl * 1_000_000

    def spent(self) -> int:
        return sum(self.of(e[1])[4] for e in self.allowed())

    def remaining(self) -> int:
        return int(self.policy["budget"] - self.spent())

    def score(self) -> int:
        return min(sum(WEIGHTS[e[1]] for e in self.events if e[0] == "scar"), 4294967295)

    def termination(self) -> str | None:
        return next((e[1] for e in self.events if e[0] == "terminated"), None)

    def outcomes(self, action_id: str) -> list[str]:
        return [e[2] for e in self.events if e[0] == "outcome" and e[1] == action_id]

    def rule(self, tool: str) -> dict[str, Any] | None:
        rule: dict[str, Any] | None = self.policy["tools"].get(tool) or self.policy.get("default_rule")
        return rule

    def why_not(self, tool: str, cost: int, now: int) -> dict[str, Any] | None:
        """Steps 2 to 6 of the table, written down as it stands."""
        if self.termination() is not None:
            return {"code": "terminated", "reason": self.termination()}
        rule = self.rule(tool)
        if rule is None:
            return {"code": "tool_not_allowed", "tool": tool}
        calls = len([e for e in self.allowed() if self.of(e[1])[2] == tool])
        if rule.get("max_calls") is not None and calls >= rule["max_calls"]:
            return {"code": "tool_call_limit", "tool": tool, "max_calls": rule["max_calls"]}
        limit = self.policy.get("rate_limit")
        if limit is not None:
            window = limit["window_secs"] * 1_000_000
            if len([e for e in self.allowed() if e[2] > now - window]) >= limit["max_actions"]:
                return {"code": "rate_limited", **limit}
        if cost > self.remaining():
            return {"code": "insufficient_budget", "cost": cost, "remaining": self.remaining()}
        return None

    # --- acts ---

    def ask(self, tool: str, value: object, declared: int | None, now: int) -> dict[str, Any]:
        rule = self.rule(tool)
        cost = max(declared or 0, rule["cost"] if rule else 0)
        reason = self.why_not(tool, cost, now)
        if reason is None and rule and rule.get("requires_approval"):
            for action_id in self.pending():
                if self.of(action_id)[2:5] == (tool, value, cost) and not self.is_late(action_id, now):
                    self._lapse(now)
                    return {"decision": "pending_approval", "action_id": action_id}
        action_id = f"act-{len(self.asked()) + 1}"
        self.events.append(("asked", action_id, tool, value, cost, now))
        if reason is not None:
            answer = self._deny(action_id, reason)
        elif rule and rule.get("requires_approval"):
            self.events.append(("held", action_id))
            answer = {"decision": "pending_approval", "action_id": action_id}
        else:
            answer = self._allow(action_id, now)
        self._lapse(now)
        return answer

    def approve(self, action_id: str, key: str, now: int) -> dict[str, Any]:
        _, _, tool, _, cost, _ = self.of(action_id)
        if self.is_late(action_id, now):
            return self._deny(action_id, self._too_late(action_id))
        reason = self.why_not(tool, cost, now)
        if reason is not None:
            return self._deny(action_id, reason)
        approvers = (self.rule(tool) or {}).get("approvers", 1)
        self.events.append(("approved", action_id, key))
        approvals = len(self.approvals(action_id))
        if approvals < approvers:
            waiting = {"approvals": approvals, "approvers": approvers}
            return {"decision": "pending_approval", "action_id": action_id, **waiting}
        return self._allow(action_id, now)

    def reject(self, action_id: str, by: str, reason: str, scar: str | None) -> dict[str, Any]:
        self.events.append(("denied", action_id))
        if scar is not None:
            self.scar(scar)
        why = {"code": "rejected", "by": by, "reason": reason}
        return {"decision": "denied", "action_id": action_id, "reason": why}

    def claims(self, action_id: str) -> list[Event]:
        return [e for e in self.events if e[0] == "claimed" and e[1] == action_id]

    def why_not_claim(self, action_id: str, tool: str, value: object, now: int) -> str | None:
        """Why an action is not to be carried out so, or None."""
        _, _, allowed_tool, allowed_value, _, _ = self.of(action_id)
        killed = self.termination() not in {None, "budget exhausted"}
        scarred = self.score() >= self.policy["scar_limit"] and any(e[0] == "scar" for e in self.events)
        held = ("held", action_id) in self.events
        checks = {
            "completed": bool(self.outcomes(action_id)),
            "not_allowed": action_id not in [e[1] for e in self.allowed()],
            "already_claimed": bool(self.claims(action_id)),
            "terminated": killed or (self.termination() is not None and scarred),
            "approval_expired": held and self.is_late(action_id, now),
            "claim_mismatch": (allowed_tool, allowed_value) != (tool, value),
        }
        return next((code for code, applies in checks.items() if applies), None)

    def claim(self, action_id: str, why_not: str | None, now: int) -> bool:
        """Whether the claim, or its refusal, is recorded: twenty refusals in any minute are."""
        refused = [e for e in self.events if e[0] == "claim refused" and e[1] > now - 60_000_000]
        if why_not is None:
            self.events.append(("claimed", action_id))
        elif len(refused) < 20:
            self.events.append(("claim refused", now))
        else:
            return False
        return True

    def may_report(self, action_id: str, status: str) -> bool:
        if action_id not in [e[1] for e in self.allowed()]:
            return False
        before = self.outcomes(action_id)
        return before == [] or (before == ["unknown"] and status != "unknown")

    def report(self, action_id: str, status: str) -> None:
        self.events.append(("outcome", action_id, status))
        if status == "failure":
            self.scar("minor")
        if status == "harmful":
            self.scar("severe")

    def scar(self, severity: str) -> None:
        self.events.append(("scar", severity))
        score, limit = self.score(), self.policy["scar_limit"]
        if self.termination() is None and score >= limit:
            self.events.append(("terminated", f"scar limit reached ({score} >= {limit})"))

    def terminate(self, reason: str) -> None:
        self.events.append(("terminated", reason))

    def _too_late(self, action_id: str) -> dict[str, Any]:
        _, _, tool, _, _, asked = self.of(action_id)
        at = datetime.fromtimestamp(asked // 1_000_000, UTC) + timedelta(microseconds=asked % 1_000_000)
        ttl = (self.rule(tool) or {})["approval_ttl_secs"]
        told = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"code": "approval_expired", "approval_ttl_secs": ttl, "requested_at": told}

    def _lapse(self, now: int) -> None:
        """The first eight that are late end with what is asked next."""
        for action_id in [late for late in self.pending() if self.is_late(late, now)][:8]:
            self.events.append(("denied", action_id))

    def _allow(self, action_id: str, now: int) -> dict[str, Any]:
        self.events.append(("allowed", action_id, now))
        if self.remaining() == 0:
            self.events.append(("terminated", "budget exhausted"))
        cost, remaining = self.of(action_id)[4], self.remaining()
        return {"decision": "allowed", "action_id": action_id, "cost": cost, "remaining": remaining}

    def _deny(self, action_id: str, reason: dict[str, Any]) -> dict[str, Any]:
        self.events.append(("denied", action_id))
        severity = {"tool_not_allowed": "moderate", "tool_call_limit": "minor", "rate_limited": "minor"}
        if reason["code"] in severity:
            self.scar(severity[reason["code"]])
        return {"decision": "denied", "action_id": action_id, "reason": reason}
