"""The policy document is read exactly, and a flaw is named by its field."""

from __future__ import annotations

import pytest

from app.chain.strict import JsonValue
from app.errors import InvalidPolicyError
from app.guard.policy import Policy, RateLimit, ToolRule
from tests.support.guard_chain import policy_document


def test_the_documented_example_is_read() -> None:
    policy = Policy.parse(
        {
            "budget": 50,
            "scar_limit": 10,
            "rate_limit": {"max_actions": 20, "window_secs": 60},
            "tools": {
                "search": {"cost": 1},
                "send_email": {"cost": 5, "requires_approval": True, "max_calls": 3},
            },
            "default_rule": None,
        }
    )
    assert policy == Policy(
        budget=50,
        scar_limit=10,
        rate_limit=RateLimit(max_actions=20, window_secs=60),
        tools={"search": ToolRule(cost=1), "send_email": ToolRule(5, requires_approval=True, max_calls=3)},
    )


def test_what_is_written_is_read_back_the_same() -> None:
    policy = Policy.parse(
        policy_document(
            rate_limit={"max_actions": 1, "window_secs": 2}, default_rule={"cost": 3, "max_calls": 0}
        )
    )
    assert Policy.parse(policy.to_json()) == policy


def test_every_member_is_written_out() -> None:
    written = Policy.parse({"budget": 0, "scar_limit": 0, "tools": {"t": {"cost": 0}}}).to_json()
    assert written == {
        "budget": 0,
        "scar_limit": 0,
        "tools": {"t": {"cost": 0, "requires_approval": False, "max_calls": None}},
        "rate_limit": None,
        "default_rule": None,
    }


def test_what_an_approval_takes_is_written_out_where_it_is_said() -> None:
    rule = {"cost": 1, "requires_approval": True, "approval_ttl_secs": 60, "approvers": 10}
    policy = Policy.parse(policy_document(tools={"pay": rule}))
    assert policy.to_json()["tools"] == {"pay": {**rule, "max_calls": None}}
    assert Policy.parse(policy.to_json()) == policy
    absent = {"cost": 1, "requires_approval": True, "approval_ttl_secs": None, "approvers": None}
    plain = Policy.parse(policy_document(tools={"pay": absent}))
    assert (plain.approvers("pay"), plain.approved_until_us("pay", 0)) == (1, None)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"budjet": 1},
            "budjet: is no member here; did you mean budget? There are budget, scar_limit, tools, rate_limit",
        ),
        (
            {"tools": {"pay": {"requires_aproval": True}}},
            "tools.pay.requires_aproval: is no member here; did you mean requires_approval? There are cost, ",
        ),
        (
            {"rate_limit": {"x": 1}},
            "rate_limit.x: is no member here; there are max_actions, window_secs",
        ),
    ],
)
def test_a_misspelt_member_is_told_with_those_that_there_are(
    document: dict[str, JsonValue], said: str
) -> None:
    with pytest.raises(InvalidPolicyError) as refused:
        Policy.parse(policy_document() | document)
    assert said in str(refused.value)


@pytest.mark.parametrize("missing", ["budget", "scar_limit", "tools"])
def test_required_members(missing: str) -> None:
    document = policy_document()
    del document[missing]
    with pytest.raises(InvalidPolicyError, match=f"{missing}: is required"):
        Policy.parse(document)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "document"),
        (None, "document"),
        (policy_document(budget=-1), "budget"),
        (policy_document(budget=1.0), "budget"),
        (policy_document(budget=True), "budget"),
        (policy_document(budget="1"), "budget"),
        (policy_document(budget=2**63), "budget"),
        (policy_document(scar_limit=2**32), "scar_limit"),
        (policy_document(tools=[]), "tools"),
        (policy_document(tools={"": {"cost": 1}}), "tools"),
        (policy_document(tools={"x" * 129: {"cost": 1}}), "tools"),
        (policy_document(tools={"search": None}), "tools.search"),
        (policy_document(tools={"search": {}}), "tools.search.cost"),
        (policy_document(tools={"search": {"cost": -5}}), "tools.search.cost"),
        (policy_document(tools={"search": {"cost": 1, "max_calls": 1.5}}), "tools.search.max_calls"),
        (
            policy_document(tools={"search": {"cost": 1, "requires_approval": 1}}),
            "tools.search.requires_approval",
        ),
        (policy_document(tools={"search": {"cost": 1, "max_call": 3}}), "tools.search.max_call"),
        *(
            (
                policy_document(tools={"pay": {"cost": 1, "requires_approval": True, name: value}}),
                f"tools.pay.{name}",
            )
            for name, value in (
                ("approval_ttl_secs", 0),
                ("approval_ttl_secs", 1.5),
                ("approval_ttl_secs", "60"),
                ("approval_ttl_secs", True),
                ("approvers", 0),
                ("approvers", 11),
                ("approvers", "2"),
                ("approver", 2),
            )
        ),
        (policy_document(tools={"pay": {"cost": 1, "approval_ttl_secs": 60}}), "tools.pay.approval_ttl_secs"),
        (policy_document(default_rule={"cost": 1, "approvers": 2}), "default_rule.approvers"),
        (policy_document(rate_limit={"max_actions": 2**32, "window_secs": 1}), "rate_limit.max_actions"),
        (policy_document(rate_limit={"max_actions": 1, "window_secs": 0}), "rate_limit.window_secs"),
        (policy_document(rate_limit={"max_actions": 1, "window_secs": 2**53 + 1}), "rate_limit.window_secs"),
        (policy_document(rate_limit={"max_actions": 1}), "rate_limit.window_secs"),
        (policy_document(default_rule={"cost": "1"}), "default_rule.cost"),
        (policy_document(ratelimit=None), "ratelimit"),
    ],
)
def test_a_flaw_is_named_by_its_field(document: JsonValue, field: str) -> None:
    with pytest.raises(InvalidPolicyError) as caught:
        Policy.parse(document)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "document",
    [
        policy_document(budget=2**63 - 1),
        policy_document(scar_limit=2**32 - 1),
        policy_document(rate_limit={"max_actions": 2**32 - 1, "window_secs": 2**53}),
        policy_document(tools={"ü" * 128: {"cost": 2**63 - 1, "max_calls": 2**63 - 1}}),
    ],
)
def test_the_limits_themselves_are_permitted(document: JsonValue) -> None:
    assert Policy.parse(document).to_json() is not None


def test_the_default_rule_covers_only_what_is_not_listed() -> None:
    policy = Policy.parse(policy_document(default_rule={"cost": 9}))
    listed, other = policy.rule_for("search"), policy.rule_for("Search")
    assert listed is not None
    assert listed.cost == 2
    assert other is not None
    assert other.cost == 9
