"""Webhooks against a receiver on a socket: signed, in order, until taken, and only where they may go."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from pytest_postgresql.executors import NoopExecutor

from app.http import documents
from app.ledger.feed import poller
from app.ledger.webhooks import deliverer, delivery
from app.settings import Secrets
from tests.integration.http.client import Client
from tests.integration.http.posting import event
from tests.integration.http.serving import Running, serve
from tests.integration.http.test_event_stream import until
from tests.support.certificate import make_certificate
from tests.support.postgres import Database, Server, fresh_database
from tests.support.receiving import SECS, Receiver, receiving
from tests.support.server import OPERATOR_TOKEN

LOCAL = (ip_network("127.0.0.0/8"),)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every some seconds happens sooner."""
    monkeypatch.setattr(poller, "POLL_SECS", 0.05)
    monkeypatch.setattr(deliverer, "LOOK_SECS", 0.05)
    monkeypatch.setattr(delivery, "NOTE_SECS", 0.05)
    monkeypatch.setattr(delivery, "CHECK_SECS", 0.1)
    monkeypatch.setattr(delivery, "FIRST_AGAIN_SECS", 0.02)
    monkeypatch.setattr(delivery, "MOST_AGAIN_SECS", 0.1)


@pytest.fixture
def service(database: Database) -> Iterator[Running]:
    """The service, which may tell this machine."""
    with serve(database.app_url, webhook_allow=LOCAL) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def made(operator: Client, receiver: Receiver, **members: Any) -> tuple[str, str]:
    """Id and secret of a new webhook."""
    reply = operator.post("/v1/webhooks", {"name": "desk", "url": receiver.url, **members})
    assert reply.status == 200, reply.raw
    created = msgspec.json.decode(reply.raw, type=documents.CreatedWebhook)
    return created.webhook.webhook_id, created.secret


def listed(operator: Client) -> list[documents.WebhookEntry]:
    reply = operator.get("/v1/webhooks")
    return msgspec.json.decode(reply.raw, type=documents.WebhookList).webhooks


def post(operator: Client, count: int = 1, agent: str = "seen") -> None:
    for _ in range(count):
        assert operator.post(f"/v1/agents/{agent}/events", event()).status == 200


def acts(operator: Client) -> list[dict[str, Any]]:
    log = operator.get("/v1/agents/_administration/log").json.get("records", [])  # 404 before the first act
    return [one["payload"] for one in log if one["payload"].get("act", "").startswith("webhook")]


def test_records_are_told_signed_and_in_their_order(operator: Client, receiver: Receiver) -> None:
    operator.create("seen", None)
    _, secret = made(operator, receiver, agents=["seen"])
    post(operator, 5)
    got = receiver.wait_for(5)
    assert [one.place for one in got] == [("seen", number) for number in range(1, 6)]
    lines = operator.get("/v1/agents/seen/log").raw.decode()
    for one in got:
        assert one.is_signed_by(secret)
        assert not one.is_signed_by("whsec_" + "A" * 43 + "=")
        assert one.headers["webhook-id"] == one.event["id"]
        assert abs(int(one.headers["webhook-timestamp"]) - time.time()) < 300
        assert one.headers["content-type"] == "application/cloudevents+json"
        assert one.event["type"] == "trails.record.event"
        assert one.body.decode().partition('"data":')[2].partition(',"datacontenttype"')[0] in lines
        assert one.path == "/hooks?key=in-the-url"
    assert until(lambda: listed(operator)[0].delivered == 5)


def test_kinds_and_agents_are_chosen(operator: Client, receiver: Receiver) -> None:
    agent = operator.create("mailer")
    operator.create("other").post("/v1/agents/other/actions", {"tool": "rm"})
    made(operator, receiver, kinds=["action_denied"], agents=["mailer"])
    operator.as_(operator.get("/v1/agents/other/token").json["token"]).post(
        "/v1/agents/other/actions", {"tool": "rm"}
    )
    agent.post("/v1/agents/mailer/actions", {"tool": "rm"})
    [one] = receiver.wait_for(1)
    assert (one.event["subject"], one.event["type"]) == ("mailer", "trails.record.action_denied")


def test_what_is_not_taken_is_sent_again_until_it_is(operator: Client, receiver: Receiver) -> None:
    operator.create("seen", None)
    tries: dict[str, int] = {}

    def third_time(one: Any) -> int:
        tries[one.event["id"]] = tries.get(one.event["id"], 0) + 1
        return 200 if tries[one.event["id"]] >= 3 else 500

    receiver.answer = third_time
    made(operator, receiver, agents=["seen"])
    post(operator, 3)
    got = receiver.wait_for(3)
    assert [one.place for one in got] == [("seen", 1), ("seen", 2), ("seen", 3)]
    assert set(tries.values()) == {3}
    assert until(lambda: listed(operator)[0].failures == 0)


def test_acts_on_webhooks_are_on_record_without_a_secret(operator: Client, receiver: Receiver) -> None:
    webhook_id, secret = made(operator, receiver)
    assert operator.send("DELETE", f"/v1/webhooks/{webhook_id}").status == 200
    assert [act["act"] for act in acts(operator)] == ["webhook_created", "webhook_deleted"]
    told = operator.get("/v1/agents/_administration/log").raw.decode() + str(listed(operator))
    assert "in-the-url" not in told
    assert secret.removeprefix("whsec_") not in told
    assert acts(operator)[0]["webhook"]["target"] == f"http://127.0.0.1:{receiver.port}"
    assert listed(operator) == []
    assert operator.send("DELETE", f"/v1/webhooks/{webhook_id}").status == 404
    assert operator.get("/v1/agents/_administration/verify").json["ok"] is True


def test_one_that_never_failed_fails_since_no_time(operator: Client, receiver: Receiver) -> None:
    operator.create("seen", None)
    made(operator, receiver, agents=["seen"])
    assert listed(operator)[0].failing_since is None
    receiver.answer = lambda _one: 500
    post(operator)
    assert until(lambda: (listed(operator)[0].failing_since or "") > "2020")


def test_a_deleted_webhook_is_told_nothing_more(operator: Client, receiver: Receiver) -> None:
    operator.create("seen", None)
    webhook_id, _ = made(operator, receiver, agents=["seen"])
    post(operator)
    receiver.wait_for(1)
    operator.send("DELETE", f"/v1/webhooks/{webhook_id}")
    # Its lease ends when that was noticed; what comes afterwards is told to nobody.
    assert until(lambda: "trails_feed_pollers 0.0" in operator.get("/metrics").raw.decode())
    post(operator)
    assert len(receiver.got) == 1


def test_one_that_takes_nothing_is_switched_off_and_on_again(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LEAST_FAILURES", 3)
    with serve(database.app_url, webhook_allow=LOCAL, webhook_give_up_hours=0) as service:
        operator = Client(service.url, service.operator_token)
        operator.create("seen", None)
        receiver.answer = lambda _: 503
        webhook_id, _ = made(operator, receiver)
        post(operator, 2)
        assert until(lambda: not listed(operator)[0].enabled)
        assert listed(operator)[0].problem == "it answered 503"
        assert len(receiver.got) >= 3
        switched_off = acts(operator)[-1]
        assert (switched_off["act"], switched_off["reason"]) == ("webhook_disabled", "it answered 503")
        log = operator.get("/v1/agents/_administration/log").json["records"]
        assert log[-1]["actor"] == "trails"
        assert "trails_webhooks_disabled_total 1.0" in operator.get("/metrics").raw.decode()

        receiver.answer = lambda _: 200
        enabled = operator.post(f"/v1/webhooks/{webhook_id}/enable", {"reason": "it is back"})
        assert (enabled.status, enabled.json["enabled"], enabled.json["failures"]) == (200, True, 0)
        # All that came meanwhile, the acts on itself too, and no storm of its own making.
        got = receiver.wait_for(5)
        assert sorted(one.event["type"] for one in got) == [
            *["trails.record.admin"] * 3, *["trails.record.event"] * 2
        ]  # fmt: skip
        again = operator.post(f"/v1/webhooks/{webhook_id}/enable", {"reason": "twice"})
        assert (again.status, acts(operator)[-1]["reason"]) == (200, "it is back")
        post(operator)
        receiver.wait_for(6)
        assert len(receiver.taken) == 6


def test_410_switches_it_off_at_once(operator: Client, receiver: Receiver) -> None:
    operator.create("seen", None)
    receiver.answer = lambda _: 410
    made(operator, receiver, agents=["seen"])
    post(operator)
    assert until(lambda: not listed(operator)[0].enabled)
    assert len(receiver.got) == 1
    assert listed(operator)[0].problem == "it answered 410"
    assert (acts(operator)[-1]["act"], acts(operator)[-1]["reason"]) == (
        "webhook_disabled",
        "it answered 410",
    )


@pytest.mark.parametrize("status", [307, 413, 429, 503])
def test_what_is_no_2xx_is_told_and_sent_again_under_its_id(
    operator: Client, receiver: Receiver, status: int
) -> None:
    operator.create("seen", None)
    with receiving() as elsewhere:
        receiver.location, receiver.answer = elsewhere.url, lambda _: status
        made(operator, receiver, agents=["seen"])
        post(operator, 2)
        assert until(lambda: listed(operator)[0].failures >= 2)
        assert listed(operator)[0].problem == f"it answered {status}"
        assert listed(operator)[0].enabled
        assert elsewhere.got == []
    assert {one.place for one in receiver.got} == {("seen", 1)}, "what comes behind it waits"
    receiver.location, receiver.answer = "", lambda _: 204
    assert [one.place for one in receiver.wait_for(2)] == [("seen", 1), ("seen", 2)]
    assert len({one.headers["webhook-id"] for one in receiver.got}) == 2
    assert until(lambda: listed(operator)[0].problem is None)


def test_one_that_is_slower_than_it_may_be_is_told_again(
    operator: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ledger.webhooks.sender.ATTEMPT_SECS", 0.3)
    is_quick = threading.Event()
    receiver.answer = lambda _: 204 if is_quick.wait(SECS) else 500
    operator.create("seen", None)
    made(operator, receiver, agents=["seen"])
    post(operator, 2)
    assert until(lambda: listed(operator)[0].problem == "no answer within 0.3 seconds")
    is_quick.set()
    receiver.wait(lambda: {one.place for one in receiver.taken} == {("seen", 1), ("seen", 2)})
    places = [one.place for one in receiver.taken]
    assert places == sorted(places)
    assert until(lambda: listed(operator)[0].problem is None)


@pytest.mark.parametrize(
    ("asked", "secs"),
    [
        ("50", 50.0),
        (lambda: formatdate(time.time() + 50, usegmt=True), 50.0),
        ("999999999", 100.0),
        ("-1", 0.1),
        ("soon", 0.1),
        ("9" * 400, 0.1),
        ("Fri, 31 Dec 9999 23:59:59 -9999", 0.1),
    ],
)
async def test_a_receiver_says_when_it_wants_to_be_asked_again(  # noqa: PLR0917  fixtures
    operator: Client,
    receiver: Receiver,
    admin: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | Callable[[], str],
    secs: float,
) -> None:
    monkeypatch.setattr(delivery, "MOST_AGAIN_SECS", 100.0)
    receiver.retry_after, receiver.answer = asked if isinstance(asked, str) else asked(), lambda _: 429
    operator.create("seen", None)
    made(operator, receiver, agents=["seen"])
    post(operator)
    assert until(lambda: listed(operator)[0].failures >= 1)
    left = await admin.fetchval(
        "SELECT extract(epoch FROM next_at - failing_since)::float8 FROM trails.webhook_progress"
        " WHERE failures = 1"
    )
    if secs < 1:
        assert until(lambda: listed(operator)[0].failures >= 2)
    else:
        assert secs - 5 < left < secs + 1


def test_more_webhooks_than_a_process_delivers_at_once_take_turns(
    operator: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer, "MOST", 2)
    monkeypatch.setattr(deliverer, "TURN_SECS", 0.2)
    operator.create("seen", None)
    hooks = [made(operator, receiver, name=f"desk {number}", kinds=["event"]) for number in range(5)]
    post(operator, 3)
    receiver.wait(lambda: len(set(by_hook(receiver, hooks))) == 5)
    post(operator, 3)
    receiver.wait(lambda: all(len(told) >= 6 for told in by_hook(receiver, hooks).values()))
    for told in by_hook(receiver, hooks).values():
        assert list(dict.fromkeys(told)) == [("seen", seq) for seq in range(1, 7)]
        assert told == sorted(told), "in order"


def test_a_defect_in_looking_for_webhooks_does_not_end_it(
    operator: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    operator.create("seen", None)
    with monkeypatch.context() as broken:
        broken.setattr(deliverer, "MOST", None)
        assert until(lambda: "looking for webhooks failed" in caplog.text)
    made(operator, receiver, agents=["seen"])
    post(operator)
    receiver.wait_for(1)


def by_hook(receiver: Receiver, hooks: list[tuple[str, str]]) -> dict[str, list[tuple[str, int]]]:
    """What each webhook was told, as they came; whose it was its signature says."""
    found: dict[str, list[tuple[str, int]]] = {}
    for one in list(receiver.got):
        [webhook_id] = [webhook_id for webhook_id, secret in hooks if one.is_signed_by(secret)]
        found.setdefault(webhook_id, []).append(one.place)
    return found


def test_another_process_goes_on_where_one_stopped(database: Database, receiver: Receiver) -> None:
    known = Secrets("operator-" * 5, b"k" * 32)
    with serve(database.app_url, known=known, webhook_allow=LOCAL) as service:
        operator = Client(service.url, service.operator_token)
        operator.create("seen", None)
        made(operator, receiver, agents=["seen"])
        post(operator, 3)
        receiver.wait_for(3)
    with serve(database.app_url, known=known, webhook_allow=LOCAL) as service:
        post(Client(service.url, service.operator_token), 2)
        got = receiver.wait_for(5)
    assert sorted({one.place for one in got}) == [("seen", number) for number in range(1, 6)]


def test_which_are_in_force_outlives_a_snapshot_of_the_administration(
    database: Database, receiver: Receiver
) -> None:
    known = Secrets("operator-" * 5, b"k" * 32)
    with serve(database.app_url, known=known, webhook_allow=LOCAL, snapshot_every=3) as service:
        operator = Client(service.url, service.operator_token)
        made(operator, receiver, kinds=["scar"])
        gone, _ = made(operator, receiver, kinds=["scar"])
        operator.send("DELETE", f"/v1/webhooks/{gone}")
        for number in range(6):
            operator.post("/v1/keys", {"role": "writer", "name": f"key {number}"})
        before = [one.webhook_id for one in listed(operator)]
    with serve(database.app_url, known=known, webhook_allow=LOCAL, snapshot_every=3) as service:
        operator = Client(service.url, service.operator_token)
        assert [one.webhook_id for one in listed(operator)] == before
        log = operator.get("/v1/agents/_administration/log").json["records"]
        assert any(record["kind"] == "snapshot" for record in log)
        assert operator.get("/v1/agents/_administration/verify").json["ok"] is True


async def test_a_row_that_was_changed_is_no_webhook(
    operator: Client, receiver: Receiver, admin: asyncpg.Connection
) -> None:
    operator.create("seen", None)
    made(operator, receiver, kinds=["scar"])
    await admin.execute("ALTER TABLE trails.webhooks DISABLE TRIGGER ALL")
    await admin.execute("UPDATE trails.webhooks SET kinds = NULL")
    await admin.execute(
        "UPDATE trails.webhook_progress SET lease_until = '1970-01-01', next_at = '1970-01-01'"
    )
    post(operator)
    assert until(lambda: listed(operator)[0].problem is not None)
    assert listed(operator)[0].target is None
    assert receiver.got == []


def test_a_key_of_an_auditor_lists_and_changes_nothing(operator: Client, receiver: Receiver) -> None:
    webhook_id, _ = made(operator, receiver)
    auditor = operator.as_(operator.post("/v1/keys", {"role": "auditor", "name": "a"}).json["token"])
    assert [one.webhook_id for one in listed(auditor)] == [webhook_id]
    for method, path in (
        ("POST", "/v1/webhooks"), ("DELETE", f"/v1/webhooks/{webhook_id}"),
        ("POST", f"/v1/webhooks/{webhook_id}/enable"), ("POST", f"/v1/webhooks/{webhook_id}/test"),
    ):  # fmt: skip
        assert auditor.send(method, path, b"{}", {"Content-Type": "application/json"}).status == 403


def test_a_secret_is_shown_once(operator: Client, receiver: Receiver) -> None:
    body = {"name": "desk", "url": receiver.url}
    assert operator.post("/v1/webhooks", body, Idempotency_Key="once").status == 200
    again = operator.post("/v1/webhooks", body, Idempotency_Key="once")
    assert (again.status, again.json["code"]) == (409, "conflict")
    assert len(listed(operator)) == 1


def test_there_are_so_many_webhooks_of_a_tenant(
    operator: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ledger.webhooks.hooks.MAX_WEBHOOKS", 2)
    made(operator, receiver)
    first = listed(operator)[0].webhook_id
    made(operator, receiver)
    assert operator.post("/v1/webhooks", {"name": "x", "url": receiver.url}).status == 409
    operator.send("DELETE", f"/v1/webhooks/{first}")
    made(operator, receiver)


# --- trying -----------------------------------------------------------------------------------------------


def tried(operator: Client, webhook_id: str) -> documents.WebhookTried:
    reply = operator.post(f"/v1/webhooks/{webhook_id}/test", {})
    assert reply.status == 200, reply.raw
    return msgspec.json.decode(reply.raw, type=documents.WebhookTried)


def test_a_trial_is_signed_and_no_record(operator: Client, receiver: Receiver) -> None:
    webhook_id, secret = made(operator, receiver, kinds=["scar"])
    assert tried(operator, webhook_id) == documents.WebhookTried(True, 204, None)
    [one] = receiver.got
    assert one.event["type"] == "trails.webhook.test"
    assert one.is_signed_by(secret)
    receiver.answer = lambda _: 500
    assert tried(operator, webhook_id).status == 500
    assert len(acts(operator)) == 1


def test_redirects_are_not_followed_and_bodies_not_read(operator: Client, receiver: Receiver) -> None:
    webhook_id, _ = made(operator, receiver, kinds=["scar"])
    receiver.location, receiver.answer = "http://127.0.0.1:1/", lambda _: 307
    assert tried(operator, webhook_id).problem == "it answered 307"
    assert len(receiver.got) == 1
    receiver.location, receiver.endless, receiver.answer = "", True, lambda _: 200
    assert tried(operator, webhook_id).delivered


def test_one_that_says_nothing_is_given_up_on(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ledger.webhooks.sender.ATTEMPT_SECS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        reply = operator.post("/v1/webhooks", {"name": "x", "url": url, "kinds": ["scar"]})
        found = tried(operator, reply.json["webhook"]["webhook_id"])
    assert (found.delivered, found.problem) == (False, "no answer within 0.3 seconds")
    found = tried(operator, reply.json["webhook"]["webhook_id"])
    assert found.problem is not None
    assert "cannot be reached" in found.problem


def test_what_is_wrong_with_a_certificate_is_told(operator: Client, tmp_path: Path) -> None:
    made_for = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made_for.certificate, made_for.key)
    with receiving(context) as secured, receiving() as plain:
        problems = []
        for port in (secured.port, plain.port):
            url = f"https://127.0.0.1:{port}/"
            reply = operator.post("/v1/webhooks", {"name": "x", "url": url, "kinds": ["scar"]})
            problems.append(tried(operator, reply.json["webhook"]["webhook_id"]).problem)
        assert problems[0] == "its certificate is not valid: self-signed certificate"
        assert "does not speak TLS" in str(problems[1])
        assert secured.got == plain.got == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "0x7f000001", "2130706433", "127.1", "[::1]", "[::ffff:127.0.0.1]",
     "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1",
     "0.0.0.0",  # noqa: S104  nobody binds to it
     "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1", "168.63.129.16", "[2002:7f00:1::]", "255.255.255.255"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused_when_it_is_given(
    refusing: Running, receiver: Receiver, host: str
) -> None:
    operator = Client(refusing.url, refusing.operator_token)
    reply = operator.post("/v1/webhooks", {"name": "x", "url": f"https://{host}:{receiver.port}/"})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "not a public address" in reply.json["error"]
    assert "TRAILS_WEBHOOK_ALLOW" in reply.json["error"]
    assert listed(operator) == []
    assert acts(operator) == []


@pytest.fixture(scope="module")
def refusing(postgres: Server, template: NoopExecutor) -> Iterator[Running]:
    """The service, which may tell nobody but the internet."""
    with fresh_database(postgres, template.template_dbname) as made, serve(made.app_url) as running:
        yield running


def test_a_name_that_leads_here_is_told_nothing(refusing: Running, receiver: Receiver) -> None:
    operator = Client(refusing.url, refusing.operator_token)
    url = f"https://localhost:{receiver.port}/"
    reply = operator.post("/v1/webhooks", {"name": "x", "url": url, "kinds": ["scar"]})
    webhook_id = reply.json["webhook"]["webhook_id"]
    assert "not public" in str(tried(operator, webhook_id).problem)
    assert receiver.got == []
    operator.send("DELETE", f"/v1/webhooks/{webhook_id}")


def test_an_address_that_is_not_allowed_any_more_is_told_nothing(
    database: Database, receiver: Receiver
) -> None:
    known = Secrets(OPERATOR_TOKEN, b"k" * 32)
    with serve(database.app_url, known=known, webhook_allow=LOCAL) as service:
        webhook_id, _ = made(Client(service.url, service.operator_token), receiver, kinds=["scar"])
    with serve(database.app_url, known=known) as service:
        found = tried(Client(service.url, service.operator_token), webhook_id)
    assert "not public" in str(found.problem)
    assert receiver.got == []


def test_a_public_address_without_https_is_refused(operator: Client) -> None:
    reply = operator.post("/v1/webhooks", {"name": "x", "url": "http://8.8.8.8/"})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "https" in reply.json["error"]
    assert operator.post("/v1/webhooks", {"name": "x", "url": "https://8.8.8.8/"}).status == 200


def test_a_trial_needs_no_body(operator: Client, receiver: Receiver) -> None:
    webhook_id, _ = made(operator, receiver, kinds=["scar"])
    path = f"/v1/webhooks/{webhook_id}/test"
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Idempotency-Key": "k"}):
        reply = operator.send("POST", path, headers=headers)
        assert (reply.status, reply.json["delivered"]) == (200, True), reply.raw
    assert len(receiver.got) == 3
    assert operator.post(path, {"x": 1}).status == 400
    assert operator.send("POST", path, b"{}", {"Content-Type": "text/plain"}).status == 415
    assert operator.send("POST", f"/v1/webhooks/{webhook_id}/enable").status == 415
    assert len(receiver.got) == 3


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://a.example/", "https://", "https://u:p@a.example/", "https://a.example/#x",
     "https://a b/", "https://a.example:0/", "https://a.example:99999/", "file:///etc/passwd", "https://[::/",
     "https://a\\b/",
     "https://é.example/", "https://a.example/" + "x" * 2_000],
)  # fmt: skip
def test_what_is_no_url_is_400(operator: Client, url: str) -> None:
    reply = operator.post("/v1/webhooks", {"name": "x", "url": url})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert listed(operator) == []
