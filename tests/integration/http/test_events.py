"""POST …/events: one, several together or none, and batches line by line."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from app.http.posted import MAX_ITEMS
from app.trace.event import RESERVED_TYPES
from tests.integration.http.client import Client, Reply
from tests.integration.http.posting import EVENTS, SESSION, event, head, post_lines, recorded, results
from tests.support.postgres import Database
from tests.support.standing import database, service, standing, tenant
from tests.unit.trace.test_instant import REFUSED

__all__ = ["database", "service", "standing", "tenant"]


@pytest.fixture
def agent(operator: Client) -> Client:
    return operator.create("mailer", None)


def refused(operator: Client, raw: bytes, words: str = "", field: str | None = None) -> None:
    """An event is refused in every form: alone, with others (which are not stored either), as a line."""
    before = head(operator)
    alone = operator.post_raw(EVENTS, raw)
    among = operator.post_raw(EVENTS, b'{"events":[{"type":"t","data":1},' + raw + b"]}")
    for reply in (alone, among):
        assert (reply.status, reply.json["code"]) == (400, "bad_request"), reply.raw
        assert words in reply.json["error"], reply.raw
    assert head(operator) == before
    good, bad = results(post_lines(operator, EVENTS, [event(), raw]))
    assert (good["status"], good["seq"]) == (200, before["seq"] + 1)
    assert (bad["line"], bad["status"], bad["code"]) == (2, 400, "bad_request")
    assert words in bad["error"]
    if field is not None:
        assert (alone.json["field"], bad["field"]) == (field, field)
        assert among.json["field"] == f"events[1].{field}"


def with_data(raw: bytes) -> bytes:
    """An event with this data, written as it stands."""
    return b'{"type":"t","data":' + raw + b"}"


def test_an_event_is_on_record(operator: Client, agent: Client) -> None:
    sent = event(session_id=SESSION.upper(), occurred_at=None)
    reply = agent.post(EVENTS, sent)
    (record,) = recorded(operator, "event")
    assert record["payload"] == {"type": "deployed", "data": {"version": "2"}, "session_id": SESSION}
    assert record["actor"] == "mailer"
    assert reply.json == {
        "agent_id": "mailer",
        "type": "deployed",
        "seq": record["seq"],
        "hash": record["hash"],
        "timestamp": record["timestamp"],
    }


def test_several_events_stand_one_after_the_other(operator: Client, agent: Client) -> None:
    reply = agent.post(EVENTS, {"events": [event(type="a"), event(type="b", data=None), event(type="c")]})
    stored = recorded(operator, "event")
    assert [record["payload"]["type"] for record in stored] == ["a", "b", "c"]
    assert reply.json["receipts"] == [
        {
            "agent_id": "mailer",
            "type": record["payload"]["type"],
            "seq": record["seq"],
            "hash": record["hash"],
            "timestamp": record["timestamp"],
        }
        for record in stored
    ]
    assert [record["seq"] for record in stored] == [1, 2, 3]


async def test_several_events_are_one_transaction(
    operator: Client, agent: Client, database: Database
) -> None:
    agent.post(EVENTS, {"events": [event()] * 5})
    stored = [record["hash"] for record in recorded(operator, "event")]
    connection = await asyncpg.connect(database.admin_url)
    try:
        written = await connection.fetchval(
            "SELECT count(DISTINCT xmin::text) FROM trails.agent_audit_trails WHERE hash = ANY ($1)", stored
        )
    finally:
        await connection.close()
    assert len(stored) == 5
    assert written == 1


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (event(type=""), "type"),
        (event(type=None), "type"),
        (event(type="t" * 129), "type"),
        ({"type": "t"}, "data"),
        (event(session_id="x"), "session_id"),
        (event(occurred_at=5), "occurred_at"),
        (event(idempotency={}), "idempotency"),
        (event(trace_tree=[]), "trace_tree"),
        *((event(type=type_), "type") for type_ in sorted(RESERVED_TYPES)),
    ],
)
def test_a_flaw_is_named(operator: Client, agent: Client, sent: dict[str, Any], field: str) -> None:  # noqa: ARG001
    refused(operator, json.dumps(sent).encode(), field=field)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"events": []}, "events"),
        ({"events": {}}, "events"),
        ({"events": None}, "events"),
        ({"events": [1]}, "events[0]"),
        ({"events": [event()] * (MAX_ITEMS + 1)}, "events"),
        ({"events": [event()], "type": "t"}, "type"),
    ],
)
def test_several_are_an_array_of_some(operator: Client, agent: Client, sent: Any, field: str) -> None:
    reply = agent.post(EVENTS, sent)
    assert (reply.status, reply.json["field"]) == (400, field)
    assert head(operator)["seq"] == 0


@pytest.mark.parametrize("sent", [[event()], None, "deployed", 7])
def test_a_body_is_an_object_and_how_to_send_several_is_told(agent: Client, sent: Any) -> None:
    reply = agent.post(EVENTS, sent)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert '{"events": [...]}' in reply.json["error"]
    assert "application/x-ndjson" in reply.json["error"]
    bad, good = results(post_lines(agent, EVENTS, [sent, event()]))
    assert (bad["status"], bad["error"], good["status"]) == (400, "the line must be a JSON object", 200)


def test_as_many_as_the_limit_are_recorded(operator: Client, agent: Client) -> None:
    assert len(agent.post(EVENTS, {"events": [event()] * MAX_ITEMS}).json["receipts"]) == MAX_ITEMS
    assert len(results(post_lines(agent, EVENTS, [event()] * MAX_ITEMS))) == MAX_ITEMS
    assert post_lines(agent, EVENTS, [event()] * (MAX_ITEMS + 1)).status == 400
    assert len(recorded(operator, "event")) == 2 * MAX_ITEMS


def test_terminated_and_guarded_agents_post_what_is_evidence(operator: Client) -> None:
    agent = operator.create("mailer")
    operator.post("/v1/agents/mailer/terminate", {"reason": "r", "by": "A"})
    assert agent.post(EVENTS, event()).status == 200
    assert agent.post(EVENTS, {"events": [event()]}).status == 200
    assert len(recorded(operator, "event")) == 2
    assert operator.get("/v1/agents/mailer").json["alive"] is False


def test_p21_events_sent_again_get_their_first_receipts(operator: Client, agent: Client) -> None:
    several = {"events": [event(type="a"), event(type="b")]}
    batch = [event(type="c"), b"x", event(type="d")]

    def send_all() -> list[Reply]:
        return [
            agent.post(EVENTS, event(), Idempotency_Key="one"),
            agent.post(EVENTS, several, Idempotency_Key="several"),
            post_lines(agent, EVENTS, batch, Idempotency_Key="lines"),
        ]

    first = send_all()
    agent.post(EVENTS, event())
    again = send_all()
    assert [reply.status for reply in first] == [200, 200, 200]
    assert [reply.raw for reply in again] == [reply.raw for reply in first]
    assert len(recorded(operator, "event")) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"events": [event(type="a"), event(type="x")]},
        {"events": [event(type="a")]},
        {"events": [event(type="a"), event(type="b"), event(type="c")]},
        {"events": [event(type="b"), event(type="a")]},
    ],
)
def test_p21_several_others_under_one_key_are_a_conflict(operator: Client, agent: Client, other: Any) -> None:
    agent.post(EVENTS, {"events": [event(type="a"), event(type="b")]}, Idempotency_Key="k")
    reply = agent.post(EVENTS, other, Idempotency_Key="k")
    assert (reply.status, reply.json["code"]) == (409, "idempotency_conflict")
    assert head(operator)["seq"] == 2


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"t","data":1,"type":"u"}',
        rb'{"type":"t","data":1,"\u0064ata":2}',
        rb'{"type":"t","data":{"p":1,"\u0070":2}}',
    ],
)
def test_c05_duplicate_keys_are_refused(operator: Client, agent: Client, raw: bytes) -> None:  # noqa: ARG001
    refused(operator, raw, "duplicate key")


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"type":"t\u0000","data":1}',
        with_data(rb'{"q":"a\u0000b"}'),
        with_data(rb'{"k\u0000":1}'),
        with_data(rb'"\ud800"'),
    ],
)
def test_c07_nul_and_lone_surrogates_are_refused(operator: Client, agent: Client, raw: bytes) -> None:  # noqa: ARG001
    refused(operator, raw)


def test_c09_big_integers_keep_every_digit(operator: Client, agent: Client) -> None:
    numbers = {"a": 9007199254740993, "b": 9223372036854775808, "c": -int("9" * 30), "d": int("8" * 128)}
    sent = event(data=numbers)
    agent.post(EVENTS, sent)
    agent.post(EVENTS, {"events": [sent]})
    post_lines(agent, EVENTS, [sent])
    assert [record["payload"] for record in recorded(operator, "event")] == [sent] * 3


def test_c09_an_integer_of_5000_digits_is_refused(operator: Client, agent: Client) -> None:  # noqa: ARG001
    refused(operator, with_data(b"9" * 5_000), "128")


def test_floats_have_their_canonical_spelling(operator: Client, agent: Client) -> None:
    raw = with_data(b"[1.0,1e2,-0.0,1e-7,0.5]")
    agent.post_raw(EVENTS, raw)
    post_lines(agent, EVENTS, [raw])
    operator.post_raw(EVENTS, b'{"events":[' + raw + b"]}")
    assert len(recorded(operator, "event")) == 3
    assert operator.get("/v1/agents/mailer/log").raw.count(b'"data":[1,100,0,1e-7,0.5]') == 3


@pytest.mark.parametrize("depth", [128, 1_200, 100_000])
def test_c12_deep_nesting_is_refused(operator: Client, agent: Client, depth: int) -> None:  # noqa: ARG001
    refused(operator, with_data(b"[" * depth + b"]" * depth), "128")
    refused(operator, with_data(b'{"a":' * depth + b"1" + b"}" * depth), "128")


def test_c12_a_document_at_the_limit_is_kept_and_verified(operator: Client, agent: Client) -> None:
    deep = with_data(b"[" * 127 + b"]" * 127)
    assert agent.post_raw(EVENTS, deep).status == 200
    assert results(post_lines(agent, EVENTS, [deep]))[0]["status"] == 200
    assert [record["payload"] for record in recorded(operator, "event")] == [json.loads(deep)] * 2


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00.123456Z"),
        ("2023-12-31T23:59:59.9999996Z", "2023-12-31T23:59:59.999999Z"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000000Z"),
    ],
)
def test_c13_a_time_is_cut_to_microseconds(operator: Client, agent: Client, said: str, kept: str) -> None:
    agent.post(EVENTS, event(occurred_at=said))
    assert recorded(operator, "event")[0]["payload"]["occurred_at"] == kept


@pytest.mark.parametrize("said", REFUSED)
def test_c14_a_time_of_another_form_is_refused(operator: Client, agent: Client, said: str) -> None:
    reply = agent.post(EVENTS, event(occurred_at=said))
    assert (reply.status, reply.json["field"]) == (400, "occurred_at")
    assert head(operator)["seq"] == 0


def test_c14_one_instant_has_one_spelling(operator: Client, agent: Client) -> None:
    said = ["2024-01-01T00:00:00+05:30", "2023-12-31T18:30:00Z", "2023-12-31T18:30:00.0-00:00"]
    agent.post(EVENTS, {"events": [event(occurred_at=time) for time in said]})
    times = {record["payload"]["occurred_at"] for record in recorded(operator, "event")}
    assert times == {"2023-12-31T18:30:00.000000Z"}


def test_t13_the_records_time_is_the_services_and_skew_is_told(operator: Client, agent: Client) -> None:
    now = datetime.now(UTC)
    said = {
        "2020-01-01T00:00:00Z": True,
        "2099-01-01T00:00:00Z": True,
        (now + timedelta(hours=1)).isoformat(): True,
        (now - timedelta(hours=1)).isoformat(): False,
        now.isoformat(): False,
    }
    receipts = [agent.post(EVENTS, event(occurred_at=time)).json for time in said]
    assert [receipt["clock_skewed"] for receipt in receipts] == [*said.values()]
    stored = recorded(operator, "event")
    assert [record["timestamp"] for record in stored] == [receipt["timestamp"] for receipt in receipts]
    assert [record["timestamp"] for record in stored] == sorted(record["timestamp"] for record in stored)
    assert all(abs(datetime.fromisoformat(r["timestamp"]) - now) < timedelta(minutes=2) for r in stored)
    assert stored[0]["payload"]["occurred_at"] == "2020-01-01T00:00:00.000000Z"
    lines = results(post_lines(agent, EVENTS, [event(occurred_at=time) for time in said]))
    assert [line["clock_skewed"] for line in lines] == [*said.values()]


def test_p21_of_several_at_once_under_one_key_one_is_recorded_whole(operator: Client, agent: Client) -> None:
    bodies = [{"events": [event(type=str(count))] * count} for count in (2, 3, 5, 9)]

    def send(body: dict[str, Any]) -> tuple[int, int]:
        reply = agent.post(EVENTS, body, Idempotency_Key="k")
        return reply.status, len(body["events"])

    with ThreadPoolExecutor(8) as senders:
        answers = list(senders.map(send, bodies * 2))
    accepted = {count for status, count in answers if status == 200}
    assert sorted(status for status, _ in answers) == [200, 200, *[409] * 6]
    assert {head(operator)["seq"]} == accepted
    assert {record["payload"]["type"] for record in recorded(operator, "event")} == {str(*accepted)}
