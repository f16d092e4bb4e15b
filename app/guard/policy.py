"""The policy document: what an agent may do, fixed for its life."""

from __future__ import annotations

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.errors import InvalidPolicyError
from app.guard.fields import (
    MAX_TOOL_CHARS,
    FieldError,
    as_object,
    flag,
    integer,
    optional_integer,
    refuse_others,
)

MAX_UINT32 = 2**32 - 1
MAX_WINDOW_SECS = 2**53
"""Longest rate window: beyond it a number stops being exact in other languages' readers."""


MAX_APPROVERS = 10
"""Most keys that may have to approve one action; the fold remembers who did."""


class ToolRule(msgspec.Struct, frozen=True):
    """Rule of one tool: least ``cost`` of a call, approval, and how often it may ever be allowed.

    With ``requires_approval`` so many different keys (``approvers``) must approve, and an approval counts
    until ``approval_ttl_secs`` after the request.
    """

    cost: int
    requires_approval: bool = False
    max_calls: int | None = None
    approval_ttl_secs: int | None = None
    approvers: int = 1

    def to_json(self) -> JsonObject:
        """The rule as it stands in a policy document, every member that Lineage knows written out."""
        document: JsonObject = {
            "cost": self.cost,
            "requires_approval": self.requires_approval,
            "max_calls": self.max_calls,
        }
        if self.approval_ttl_secs is not None:
            document["approval_ttl_secs"] = self.approval_ttl_secs
        if self.approvers > 1:
            document["approvers"] = self.approvers
        return document


class RateLimit(msgspec.Struct, frozen=True):
    """At most ``max_actions`` allowed actions in any ``window_secs`` seconds (sliding)."""

    max_actions: int
    window_secs: int

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return self.window_secs * 1_000_000

    def to_json(self) -> JsonObject:
        """The limit as it stands in a policy document."""
        return {"max_actions": self.max_actions, "window_secs": self.window_secs}


class Policy(msgspec.Struct, frozen=True):
    """What one agent may do. ``default_rule`` covers tools that are not listed; None denies them."""

    budget: int
    scar_limit: int
    tools: dict[str, ToolRule]
    rate_limit: RateLimit | None = None
    default_rule: ToolRule | None = None

    @classmethod
    def parse(cls, value: JsonValue) -> Policy:
        """Reads a policy document.

        Raises:
            InvalidPolicyError: names the field; members that no rule knows are refused, since a misspelt
                limit would otherwise be no limit.
        """
        try:
            return _policy(value)
        except FieldError as error:
            raise InvalidPolicyError(error.field, error.reason) from error

    def to_json(self) -> JsonObject:
        """The document as it is recorded: every member written out, defaults too."""
        return {
            "budget": self.budget,
            "scar_limit": self.scar_limit,
            "tools": {name: rule.to_json() for name, rule in self.tools.items()},
            "rate_limit": None if self.rate_limit is None else self.rate_limit.to_json(),
            "default_rule": None if self.default_rule is None else self.default_rule.to_json(),
        }

    def rule_for(self, tool: str) -> ToolRule | None:
        """The rule that covers ``tool``; names are compared exactly, character by character (case G19)."""
        return self.tools.get(tool, self.default_rule)

    def requires_approval(self, tool: str) -> bool:
        """Whether calls of ``tool`` wait for a person."""
        rule = self.rule_for(tool)
        return rule is not None and rule.requires_approval

    def approvers(self, tool: str) -> int:
        """How many different keys must approve a call of ``tool``."""
        rule = self.rule_for(tool)
        return 1 if rule is None else rule.approvers

    def approved_until_us(self, tool: str, asked_us: int) -> int | None:
        """Until when (µs) an approval counts of what was asked at ``asked_us``; None: without an end."""
        rule = self.rule_for(tool)
        if rule is None or rule.approval_ttl_secs is None:
            return None
        return asked_us + rule.approval_ttl_secs * 1_000_000


def _policy(value: JsonValue) -> Policy:
    source = as_object(value, "document")
    _refuse_others(source, Policy, "")
    return Policy(
        budget=integer(source, "budget"),
        scar_limit=integer(source, "scar_limit", high=MAX_UINT32),
        tools=_tools(source.get("tools")),
        rate_limit=_rate_limit(source.get("rate_limit")),
        default_rule=_optional_rule(source.get("default_rule"), "default_rule"),
    )


def _tools(value: JsonValue) -> dict[str, ToolRule]:
    if value is None:
        raise FieldError("tools", "is required")
    tools = as_object(value, "tools")
    for name in tools:
        if not 1 <= len(name) <= MAX_TOOL_CHARS:
            raise FieldError("tools", f"a tool's name must have 1 to {MAX_TOOL_CHARS} characters")
    return {name: _rule(rule, f"tools.{name}") for name, rule in tools.items()}


def _optional_rule(value: JsonValue, path: str) -> ToolRule | None:
    return None if value is None else _rule(value, path)


def _rule(value: JsonValue, path: str) -> ToolRule:
    source = as_object(value, path)
    at = f"{path}."
    _refuse_others(source, ToolRule, at)
    rule = ToolRule(
        cost=integer(source, "cost", at=at),
        requires_approval=flag(source, "requires_approval", at=at),
        max_calls=optional_integer(source, "max_calls", at=at),
        approval_ttl_secs=optional_integer(source, "approval_ttl_secs", low=1, high=MAX_WINDOW_SECS, at=at),
        approvers=optional_integer(source, "approvers", low=1, high=MAX_APPROVERS, at=at) or 1,
    )
    for name in ("approval_ttl_secs", "approvers"):
        if source.get(name) is not None and not rule.requires_approval:
            # Whoever wrote it meant that somebody must be asked.
            raise FieldError(at + name, "needs requires_approval: true")
    return rule


def _rate_limit(value: JsonValue) -> RateLimit | None:
    if value is None:
        return None
    source = as_object(value, "rate_limit")
    _refuse_others(source, RateLimit, "rate_limit.")
    return RateLimit(
        max_actions=integer(source, "max_actions", high=MAX_UINT32, at="rate_limit."),
        window_secs=integer(source, "window_secs", low=1, high=MAX_WINDOW_SECS, at="rate_limit."),
    )


def _refuse_others(source: JsonObject, shape: type[msgspec.Struct], at: str) -> None:
    refuse_others(source, shape.__struct_fields__, at=at)
