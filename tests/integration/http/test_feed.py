"""The feed over HTTP: pages and live streams of all records, for operators and auditors."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec
import pytest

from app.chain.record import hash_text, split_line
from app.http import documents, event_stream
from app.http.streams import Ending
from app.ledger.feed import poller
from app.ledger.feed.cursor import Cursors, Position
from app.principal import ADMINISTRATION
from app.settings import Secrets
from db.schema import DEFAULT_TENANT_ID
from tests.integration.http.client import Client, Reply
from tests.integration.http.posting import event
from tests.integration.http.serving import Running, serve
from tests.integration.http.test_event_stream import until
from tests.support.events import Received, Stream, streamed
from tests.support.postgres import Database
from tests.support.server import OPERATOR_TOKEN
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every some seconds happens sooner."""
    monkeypatch.setattr(poller, "POLL_SECS", 0.05)
    monkeypatch.setattr(event_stream, "TICK_SECS", 0.02)
    monkeypatch.setattr(event_stream, "CHECK_SECS", 0.1)


def page(client: Client, query: str = "") -> Any:
    reply = client.get(f"/v1/feed{query}")
    assert reply.status == 200, reply.raw
    return msgspec.json.decode(reply.raw, type=documents.FeedPage)


def walked(client: Client, query: str) -> list[Any]:
    """All events from there on."""
    found, events = page(client, query), []
    while True:
        events += found.events
        if not found.more:
            return events
        found = page(client, f"?after={found.next}")


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


def post(operator: Client, count: int = 1, agent: str = "seen") -> None:
    for _ in range(count):
        assert operator.post(f"/v1/agents/{agent}/events", event()).status == 200


def records(events: list[Any]) -> list[tuple[str, int]]:
    return [(one.subject, one.data["seq"]) for one in events]


# --- pages ------------------------------------------------------------------------------------------------


def test_each_record_is_an_event_as_it_was_signed(operator: Client) -> None:
    operator.create("mailer").post("/v1/agents/mailer/actions", {"tool": "rm"})
    lines = operator.get("/v1/agents/mailer/log").raw.decode()
    events = [one for one in walked(operator, "?from=start") if one.subject == "mailer"]
    raw = operator.get("/v1/feed?from=start&agent=mailer").raw.decode()
    assert [one.type for one in events] == [
        f"trails.record.{kind}"
        for kind in ("genesis", "policy", "action_requested", "action_denied", "scar")
    ]  # fmt: skip
    for one in events:
        assert one.id == f"{events[0].data['payload']['log_uuid']}/{one.data['seq']}"
        assert one.time == one.data["timestamp"]
        assert one.source == "urn:lineage-trails:tenant:" + events[0].data["payload"]["tenant"]
    texts = [text.partition('"datacontenttype"')[0].rstrip(",") for text in raw.split('{"data":')[1:]]
    assert all(text in lines for text in texts), "the line goes out unchanged"
    for text in texts:
        signed = split_line(text)
        assert hash_text(signed.text) == signed.hash


def test_administration_is_part_of_the_feed(operator: Client) -> None:
    operator.post("/v1/keys", {"role": "auditor", "name": "siem"})
    kinds = {(one.subject, one.type) for one in walked(operator, "?from=start")}
    assert (ADMINISTRATION, "trails.record.admin") in kinds


def test_a_feed_begins_now_unless_told_otherwise(operator: Client) -> None:
    operator.create("seen", None)
    begun = page(operator)
    assert (begun.events, begun.more) == ([], False)
    post(operator, 2)
    assert records(page(operator, f"?after={begun.next}").events) == [("seen", 1), ("seen", 2)]
    assert records(page(operator, f"?after={begun.next}&from=start").events)[0] == ("seen", 1)


def test_a_feed_begins_at_a_time(operator: Client) -> None:
    operator.create("seen", None)
    post(operator, 2)
    at = operator.get("/v1/agents/seen/log").json["records"][2]["timestamp"]
    found = page(operator, f"?from={quote(at)}")
    assert records(found.events) == [("seen", 2)]
    post(operator)
    assert records(page(operator, f"?after={found.next}").events) == [("seen", 3)]


def test_h33_pages_of_any_size_hold_every_record_once(operator: Client) -> None:
    operator.create("seen", None)
    for agent in ("one", "two"):
        operator.create(agent, None)
        post(operator, 3, agent)
    whole = records(walked(operator, "?from=start"))
    for limit in (1, 2, 3, 7, 1_000_000):
        found, seen = page(operator, f"?from=start&limit={limit}"), []
        while True:
            seen += records(found.events)
            if not found.more:
                break
            if len(seen) < len(whole):
                post(operator)  # what is added while it pages comes behind it
            found = page(operator, f"?after={found.next}&limit={limit}")
            assert len(found.events) <= limit
        assert seen[: len(whole)] == whole
        whole = records(walked(operator, "?from=start"))
        assert sorted(set(seen)) == sorted(seen)


def test_kinds_and_agents_are_chosen(operator: Client) -> None:
    operator.create("mailer").post("/v1/agents/mailer/actions", {"tool": "rm"})
    operator.create("other").post("/v1/agents/other/actions", {"tool": "rm"})
    operator.create("seen", None)
    chosen = walked(operator, "?from=start&kind=scar,action_denied&agent=mailer,seen")
    assert [(one.subject, one.data["kind"]) for one in chosen] == [
        ("mailer", "action_denied"), ("mailer", "scar")
    ]  # fmt: skip
    assert walked(operator, "?from=start&agent=nobody") == []
    assert walked(operator, "?from=start&kind=nothing") == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=x", "limit=1&limit=2", "kind=", "kind=A", "kind=a,,b", "agent=",
     "agent=a.b", "agent=" + ",".join(f"a{number}" for number in range(21)), "from=yesterday", "from=",
     "what=1", "after=", "after=x", "after=" + "A" * 200, "after=%C3%A9", "after=" + "A" * 40_000],
)  # fmt: skip
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_h33_what_cannot_be_read_is_400(operator: Client, query: str, accept: str) -> None:
    reply = operator.send("GET", f"/v1/feed?{query}", headers={"Accept": accept})
    assert refusal(reply) == (400, "bad_request")


def test_h33_an_edited_cursor_is_none(operator: Client) -> None:
    cursor = page(operator).next
    for number in range(0, len(cursor), 7):
        edited = cursor[:number] + ("A" if cursor[number] != "A" else "B") + cursor[number + 1 :]
        assert refusal(operator.get(f"/v1/feed?after={edited}")) == (400, "bad_request")
    assert operator.get(f"/v1/feed?after={cursor}").status == 200
    for edited in (cursor[:-1], cursor + "A", cursor + "="):
        assert operator.get(f"/v1/feed?after={edited}").status == 400


def test_h33_a_cursor_of_another_tenant_is_none(service: Running, operator: Client) -> None:
    made = Client(service.url, service.root_token).post(
        "/v1/tenants", {"slug": "other", "name": "Other", "operator": "first"}
    )
    other = operator.as_(made.json["token"])
    mine, theirs = page(operator).next, page(other).next
    assert refusal(other.get(f"/v1/feed?after={mine}")) == (400, "bad_request")
    assert refusal(operator.get(f"/v1/feed?after={theirs}")) == (400, "bad_request")
    post_to = walked(other, "?from=start")
    assert {one.subject for one in post_to} == {ADMINISTRATION}


@pytest.mark.parametrize("role", ["writer", "agent", None])
def test_who_may_not_read_everything_gets_nothing(operator: Client, role: str | None) -> None:
    operator.create("seen", None)
    key = {"role": role, "name": "k", **({"agent_id": "seen"} if role == "agent" else {})}
    token = None if role is None else operator.post("/v1/keys", key).json["token"]
    for accept in ("application/json", "text/event-stream"):
        reply = operator.as_(token).send("GET", "/v1/feed", headers={"Accept": accept})
        assert reply.status == (401 if role is None else 403)


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "apikey"])
def test_h19_a_token_in_the_url_is_refused(service: Running, operator: Client, name: str) -> None:
    reply = operator.as_(None).send("GET", f"/v1/feed?{name}={service.operator_token}", headers=STREAM)
    assert reply.status == 400
    assert service.operator_token not in reply.raw.decode()


async def test_a_cursor_of_another_database_is_told_so(operator: Client, admin: asyncpg.Connection) -> None:
    operator.create("seen", None)
    cursor = page(operator, "?from=start&limit=1").next
    # What was read is not there any more, as in a copy that was set back.
    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    await admin.execute("DELETE FROM trails.agent_audit_trails")
    for headers in ({}, STREAM):
        reply = operator.send("GET", f"/v1/feed?after={cursor}", headers=headers)
        assert refusal(reply) == (410, "cursor_gone")
        assert "from=" in reply.json["error"]


def test_a_cursor_from_a_time_to_come_is_told_so(database: Database) -> None:
    """As of a database that was set back within its timeline: later transactions are not those it knows."""
    known = Secrets(OPERATOR_TOKEN, b"k" * 32)
    with serve(database.app_url, known=known) as service:
        operator = Client(service.url, service.operator_token)
        operator.create("seen", None)
        cursors = Cursors(known.master_key)
        cursor = cursors.open(DEFAULT_TENANT_ID, page(operator, "?from=start").next)
        since = cursor.position.since
        assert since is not None
        later = msgspec.structs.replace(since, xmin=since.xmax + 10**6, xmax=since.xmax + 10**6, xip=())
        ahead = msgspec.structs.replace(cursor, position=Position(later))
        for headers in ({}, STREAM):
            sealed = cursors.seal(DEFAULT_TENANT_ID, ahead)
            reply = operator.send("GET", f"/v1/feed?after={sealed}", headers=headers)
            assert refusal(reply) == (410, "cursor_gone")
            assert "set back" in reply.json["error"]


async def test_what_was_changed_is_marked_and_still_told(operator: Client, admin: asyncpg.Connection) -> None:
    operator.create("seen", None)
    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    await admin.execute("ALTER TABLE trails.agent_audit_trails DROP CONSTRAINT trail_hash")
    await admin.execute(
        "UPDATE trails.agent_audit_trails SET signed_text = replace(signed_text, 'seen', 'sean') "
        "WHERE agent_id = 'seen'"
    )
    [changed] = walked(operator, "?from=start&agent=seen")
    assert changed.damaged is True
    assert "sean" in changed.data
    assert operator.get("/v1/agents/seen/verify").json["ok"] is False
    [changed] = walked(operator, "?from=start&agent=seen")
    assert changed.quarantined is True


# --- streams ----------------------------------------------------------------------------------------------


def told(events: list[Received]) -> list[tuple[str, int]]:
    return [(one["subject"], one["data"]["seq"]) for one in (json.loads(event.data) for event in events)]


def at_its_place(stream: Stream) -> Stream:
    """Waits until the stream has said where it begins: what comes later is told."""
    while not stream.parser.last_id:
        stream.parser.line(stream.answer.readline().decode().rstrip("\n"))
    return stream


@pytest.mark.usefixtures("database")
def test_a_stream_goes_on_as_records_come(service: Running, operator: Client) -> None:
    operator.create("seen", None)
    with streamed(service.port, "/v1/feed", operator.token) as stream:
        at_its_place(stream)
        post(operator, 3)
        got = stream.take(3)
        assert told(got) == [("seen", 1), ("seen", 2), ("seen", 3)]
        assert {one.event for one in got} == {"message"}
        assert until(lambda: len(service.app.services.ledger.feed.pollers) == 1)
        [metric] = [line for line in operator.get("/metrics").raw.decode().splitlines()
                    if line.startswith("trails_event_streams{")]  # fmt: skip
        assert metric == 'trails_event_streams{route="/v1/feed"} 1.0'
    assert until(lambda: len(service.app.services.ledger.feed.pollers) == 0)


def test_a_stream_is_resumed_behind_the_last_event(service: Running, operator: Client) -> None:
    operator.create("seen", None)
    post(operator, 6)
    with streamed(service.port, "/v1/feed?from=start&agent=seen", operator.token) as stream:
        assert told(stream.take(3)) == [("seen", 0), ("seen", 1), ("seen", 2)]
        last = stream.parser.last_id
    query = "/v1/feed?from=start&agent=seen"  # as a browser comes back: the same URL
    with streamed(service.port, query, operator.token, {"Last-Event-ID": last}) as stream:
        assert told(stream.take(4)) == [("seen", 3), ("seen", 4), ("seen", 5), ("seen", 6)]
    assert records(page(operator, f"?agent=seen&after={last}").events)[0] == ("seen", 3)


def test_a_stream_of_few_kinds_tells_these_alone(service: Running, operator: Client) -> None:
    operator.create("seen", None)
    agent = operator.create("mailer")
    with streamed(service.port, "/v1/feed?kind=action_denied", operator.token) as stream:
        at_its_place(stream)
        post(operator, 2)
        agent.post("/v1/agents/mailer/actions", {"tool": "rm"})
        assert told([stream.next()]) == [("mailer", 3)]


@pytest.mark.usefixtures("database")
def test_h19_a_stream_ends_with_the_key_that_it_was_asked_for_with(
    service: Running, operator: Client
) -> None:
    issued = operator.post("/v1/keys", {"role": "auditor", "name": "siem"}).json
    with streamed(service.port, "/v1/feed", issued["token"]) as stream:
        at_its_place(stream)
        operator.send("DELETE", f"/v1/keys/{issued['key']['key_id']}")
        *_, end = stream
        assert (end.event, json.loads(end.data)["code"]) == ("end", "unauthorized")
    assert until(lambda: service.app.services.streams.ended[Ending.REFUSED] == 1)


@pytest.mark.usefixtures("database")
def test_many_streams_of_a_tenant_ask_the_database_once(service: Running, operator: Client) -> None:
    operator.create("seen", None)
    pollers = service.app.services.ledger.feed.pollers
    with (
        streamed(service.port, "/v1/feed", operator.token) as one,
        streamed(service.port, "/v1/feed", operator.token) as two,
    ):
        for stream in (one, two):
            at_its_place(stream)
        post(operator)
        assert told([one.next()]) == told([two.next()]) == [("seen", 1)]
        assert len(pollers) == 1


def test_agent_controlled_text_never_breaks_the_framing(service: Running, operator: Client) -> None:
    operator.create("seen", None)
    evil = "a\n\nid: 1\nevent: end\rdata: x\u2028\u0085"
    with streamed(service.port, "/v1/feed", operator.token) as stream:
        at_its_place(stream)
        operator.post("/v1/agents/seen/events", event(data={"text": evil}))
        got = stream.next()
        assert json.loads(got.data)["data"]["payload"]["data"]["text"] == evil
        assert got.event == "message"


def test_a_suspended_tenant_reads_on(database: Database) -> None:
    with serve(database.app_url) as service:
        root = Client(service.url, service.root_token)
        made = root.post("/v1/tenants", {"slug": "other", "name": "Other", "operator": "first"}).json
        with streamed(service.port, "/v1/feed", made["token"]) as stream:
            at_its_place(stream)
            assert root.post("/v1/tenants/other/suspend", {"reason": "r"}).status == 200
            suspended = json.loads(stream.next().data)
            assert suspended["data"]["payload"]["act"] == "tenant_suspended"
            assert until(lambda: service.app.services.streams.ended.total() == 0)
