"""Events are read exactly: every member is ours, times and ids get their one spelling."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from app.errors import InvalidMemberError
from app.trace.event import MAX_TYPE_CHARS, RESERVED_TYPES, Event
from tests.unit.trace.test_instant import REFUSED

SESSION = "0B8F7C1E-6A0B-4A1F-9D3C-5E7A9B1D3F50"


def test_an_event_says_its_type_and_its_data() -> None:
    assert Event.parse({"type": "t", "data": None}).payload == {"type": "t", "data": None}
    assert Event.parse({"type": "t" * MAX_TYPE_CHARS, "data": [1]}).data == [1]
    nothing_more = {"type": "t", "data": 1, "session_id": None, "occurred_at": None}
    assert Event.parse(nothing_more).payload == {"type": "t", "data": 1}


def test_c14_session_and_time_have_one_spelling_on_record() -> None:
    event = Event.parse(
        {"type": "t", "data": 0, "session_id": SESSION, "occurred_at": "2024-01-01T05:30:00+05:30"}
    )
    assert event.session_id == UUID(SESSION)
    assert event.payload["session_id"] == SESSION.lower()
    assert event.payload["occurred_at"] == "2024-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"data": 1}, "type"),
        ({"type": None, "data": 1}, "type"),
        ({"type": "", "data": 1}, "type"),
        ({"type": "t" * (MAX_TYPE_CHARS + 1), "data": 1}, "type"),
        ({"type": 5, "data": 1}, "type"),
        ({"type": "t"}, "data"),
        ({"type": "t", "data": 1, "session_id": "x"}, "session_id"),
        ({"type": "t", "data": 1, "session_id": SESSION.replace("-", "")}, "session_id"),
        ({"type": "t", "data": 1, "session_id": f"{{{SESSION}}}"}, "session_id"),
        ({"type": "t", "data": 1, "session_id": 5}, "session_id"),
        ({"type": "t", "data": 1, "occurred_at": 1_700_000_000}, "occurred_at"),
        ({"type": "t", "data": 1, "occurred_at": True}, "occurred_at"),
        ({"type": "t", "data": 1, "idempotency": {}}, "idempotency"),
        ({"type": "t", "data": 1, "trace_tree": []}, "trace_tree"),
        ({"type": "t", "data": 1, "node_id": SESSION}, "node_id"),
        ([], "event"),
        ("t", "event"),
        (None, "event"),
    ],
)
def test_what_is_wrong_is_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidMemberError) as caught:
        Event.parse(value)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    with pytest.raises(InvalidMemberError) as caught:
        Event.parse(value, "events[3].")
    assert caught.value.field == ("events[3]" if field == "event" else f"events[3].{field}")


@pytest.mark.parametrize("type_", sorted(RESERVED_TYPES))
def test_nobody_records_what_only_the_service_says(type_: str) -> None:
    with pytest.raises(InvalidMemberError, match="service alone"):
        Event.parse({"type": type_, "data": 1})


@pytest.mark.parametrize("sent", REFUSED)
def test_c14_a_time_of_another_form_is_refused(sent: str) -> None:
    with pytest.raises(InvalidMemberError) as caught:
        Event.parse({"type": "t", "data": 1, "occurred_at": sent})
    assert caught.value.field == "occurred_at"


def test_a_long_name_is_not_sent_back_whole() -> None:
    with pytest.raises(InvalidMemberError) as caught:
        Event.parse({"type": "t", "data": 1, "x" * 100_000: 1})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("member", "other"), [("type", {"data": 1}), ("data", {"type": "t"})])
def test_a_member_that_is_required_is_named(member: str, other: dict[str, Any]) -> None:
    with pytest.raises(InvalidMemberError, match=rf"^events\[3\]\.{member}: is required; it "):
        Event.parse(other, "events[3].")
