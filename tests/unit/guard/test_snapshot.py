"""What a snapshot says of a guard's state, and that nothing of it is lost or guessed."""

from __future__ import annotations

from typing import Any

import pytest

from app.chain.canonical import canonical
from app.chain.record import Head
from app.chain.strict import parse
from app.guard.fields import FieldError
from app.guard.policy import Policy
from app.guard.snapshot import state_from_json, state_to_json
from app.guard.state import Approval, GuardState, Pending, Requested
from tests.support.guard_chain import policy_document

HEAD = Head(40, "ab" * 32, 1_790_000_000_000_000)
WAITING = Pending(
    seq=31,
    hash="cd" * 32,
    tool="email",
    cost=5,
    digest="ef" * 32,
    size=321,
    joins=2,
    keys=("k1", "k2"),
    names=("alice", "bob"),
    asked_us=1_789_999_999_000_000,
    approvals=(Approval("carol", "k3"),),
)
FULL = GuardState(
    policy=Policy.parse(policy_document(rate_limit={"max_actions": 3, "window_secs": 60})),
    spent=12,
    scar_score=4294967295,
    scar_count=3,
    scar_digest="12" * 32,
    terminated="scar limit reached (4294967295 >= 50)",
    action_count=17,
    allowed=9,
    denied=4,
    tool_calls={"search": 6},
    recent=(1_789_999_000_000_000, 1_789_999_999_999_999),
    pending={"act-10": WAITING, "act-2": Pending(4, "aa" * 32, "email", 5, "bb" * 32)},
    last_claim=22,
    refused_claims=(1_789_999_999_999_998,),
    head=HEAD,
)
TEXT = (
    '{"action_count":17,"allowed":9,"denied":4,"last_claim":22,"pending":[{"action_id":"act-2",'
    '"approvals":[],"asked_us":0,"cost":5,"digest":"' + "bb" * 32 + '","hash":"' + "aa" * 32 + '","joins":0,'
    '"keys":[],"names":[],"seq":4,"size":0,"tool":"email"},{"action_id":"act-10","approvals":[{"by":"carol",'
    '"key":"k3"}],"asked_us":1789999999000000,"cost":5,"digest":"'
    + "ef" * 32
    + '","hash":"'
    + "cd" * 32
    + '",'
    '"joins":2,"keys":["k1","k2"],"names":["alice","bob"],"seq":31,"size":321,"tool":"email"}],'
    '"policy":{"budget":100,"default_rule":null,"rate_limit":{"max_actions":3,"window_secs":60},'
    '"scar_limit":50,"tools":{"email":{"cost":5,"max_calls":null,"requires_approval":true},"look":{"cost":0,'
    '"max_calls":null,"requires_approval":false},"search":{"cost":2,"max_calls":null,'
    '"requires_approval":false}}},"recent":[1789999000000000,1789999999999999],'
    '"refused_claims":[1789999999999998],"scar_count":3,"scar_digest":"' + "12" * 32 + '",'
    '"scar_score":4294967295,"spent":12,"terminated":"scar limit reached (4294967295 >= 50)",'
    '"tool_calls":{"search":6}}'
)
"""A text that is on record for ever: another one here means another form of snapshots."""


def test_the_form_on_record_is_written_and_read() -> None:
    assert canonical(state_to_json(FULL)) == TEXT
    assert state_from_json(parse(TEXT.encode()).value, HEAD) == FULL


def test_no_member_of_a_state_is_forgotten() -> None:
    """Each differs from its default in ``FULL``; the one of an act under way is never written."""
    fresh = GuardState()
    same = [name for name in GuardState.__struct_fields__ if getattr(FULL, name) == getattr(fresh, name)]
    assert same == ["requested"]
    bare = Pending(0, "", "", 0, "")
    assert [name for name in Pending.__struct_fields__ if getattr(WAITING, name) == getattr(bare, name)] == []


def test_actions_that_wait_stay_in_their_order() -> None:
    assert list(state_from_json(parse(TEXT.encode()).value, HEAD).pending) == ["act-2", "act-10"]


def test_an_observed_agent_has_no_policy() -> None:
    observed = GuardState(head=HEAD)
    assert state_to_json(observed)["policy"] is None
    assert state_from_json(state_to_json(observed), HEAD) == observed


def test_there_is_none_within_an_act() -> None:
    asked = Requested("act-1", 2, "ab" * 32, "search", 2, None, None, 300, None, "agent-1", 0)
    with pytest.raises(ValueError, match="between a request and its decision"):
        state_to_json(GuardState(requested=asked))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("spent", True),
        ("spent", 1.0),
        ("spent", "1"),
        ("spent", None),
        ("recent", [1, "2"]),
        ("tool_calls", {"search": -0.5}),
        ("terminated", 7),
        ("policy", {"budget": 1}),
        ("pending", {"act-1": {}}),
        ("pending", [{"seq": 4}]),
        ("unheard_of", 1),
    ],
)
def test_what_is_malformed_is_refused(member: str, value: Any) -> None:
    with pytest.raises(FieldError):
        state_from_json({**state_to_json(FULL), member: value}, HEAD)


def test_what_is_missing_is_refused() -> None:
    whole = state_to_json(FULL)
    for member in whole:
        with pytest.raises(FieldError):
            state_from_json({name: value for name, value in whole.items() if name != member}, HEAD)
