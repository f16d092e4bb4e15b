"""Visits to the console: they end everywhere, at the sign-out, in time and with what they were begun with."""

from __future__ import annotations

import http.client
import json
import time

import asyncpg
import pytest

from app.console import cookie
from app.http import event_stream
from app.http.limits import SIGN_INS
from app.settings import Secrets
from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.outage import away
from tests.integration.http.client import Client
from tests.integration.http.serving import Running, serve
from tests.support.postgres import Database

NAME = "trails_session"


def copy_of(visit: Visit, url: str | None = None) -> Visit:
    """Whoever has copied the cookie."""
    made = Visit(url or f"http://{visit.address}")
    made.cookies = dict(visit.cookies)
    return made


def test_a_copied_cookie_ends_with_its_visit(service: Running, signed_in: Visit) -> None:
    thief = copy_of(signed_in)
    assert thief.get("/").status == 200
    assert signed_in.post("/sign-out", {"csrf": signed_in.csrf()}).status == 303
    away = thief.get("/approvals")
    assert (away.status, away.headers["location"]) == (303, "/sign-in?next=%2Fapprovals")
    assert thief.cookies == {}
    assert Visit(service.url).sign_in(service.operator_token).get("/").status == 200


async def test_a_visit_ends_on_every_process(database: Database, admin: asyncpg.Connection) -> None:
    known = Secrets("t" * 64, b"k" * 32)
    with serve(database.app_url, known=known) as first, serve(database.app_url, known=known) as second:
        visit = Visit(first.url).sign_in(known.operator_token)
        other = copy_of(visit, second.url)
        csrf = other.csrf()
        assert visit.get("/").status == 200
        assert other.post("/sign-out", {"csrf": csrf}).status == 303
        assert copy_of(visit, second.url).get("/").status == 303
        await admin.execute("SELECT pg_sleep(0.6)")  # what is promised of the other process: half a second
        assert visit.get("/").status == 303


def test_signing_in_again_begins_anew(signed_in: Visit, service: Running) -> None:
    """Nothing of the visit before is kept, so none that somebody else knows can become one's own."""
    before, csrf = copy_of(signed_in), signed_in.csrf()
    signed_in.sign_in(service.operator_token)
    assert signed_in.cookies != before.cookies
    assert before.get("/").status == 303
    assert signed_in.csrf() != csrf


def test_who_is_idle_is_signed_out(signed_in: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signed_in.get("/").status == 200
    monkeypatch.setattr(cookie, "IDLE_SECS", 0)
    assert signed_in.get("/").status == 303


def test_only_what_a_person_asks_for_goes_on_with_the_visit(
    signed_in: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "set-cookie" not in signed_in.get("/").headers
    monkeypatch.setattr(cookie, "RENEW_SECS", 0)
    assert "set-cookie" not in signed_in.get("/approvals/waiting").headers
    renewed = signed_in.get("/").headers["set-cookie"]
    secs = int(renewed.partition("Max-Age=")[2].partition(";")[0])
    assert cookie.SESSION_SECS - 60 <= secs <= cookie.SESSION_SECS
    assert signed_in.get("/").status == 200


def test_a_working_day_is_the_end(
    signed_in: Visit, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cookie, "SESSION_SECS", 0)
    signed_in.sign_in(service.operator_token)
    assert signed_in.get("/").status == 303


def test_the_stream_of_a_page_ends_with_its_visit(signed_in: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "CHECK_SECS", 0.1)
    csrf = signed_in.csrf()
    connection = http.client.HTTPConnection(signed_in.address, timeout=20)
    named = {"Cookie": "; ".join(f"{name}={value}" for name, value in signed_in.cookies.items())}
    connection.request("GET", "/approvals/stream", headers=named)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    assert b"event: queue" in answer.readline() + answer.readline() + answer.readline()
    assert signed_in.post("/sign-out", {"csrf": csrf}).status == 303
    rest = answer.read().decode()  # to its end, or the time is over
    assert rest.rstrip().splitlines()[-2] == "event: end"
    assert '"code": "unauthorized"' in rest
    connection.close()


def test_of_two_tabs_the_one_that_was_left_says_what_to_do(signed_in: Visit, operator: Client) -> None:
    """Signing in anew in another tab ends the visit of the first: its forms do nothing, and say why."""
    operator.create("scout")
    old = signed_in.csrf("/agents/scout")
    form = {"csrf": old, "severity": "minor", "reason": "x", "once": "1"}
    signed_in.sign_in(key_of(operator, "operator", "Ada"))
    shown = signed_in.post("/agents/scout/scars", form)
    assert shown.status == 403
    assert "earlier visit; open the page again" in shown.text
    assert 'aria-label="Main"' in shown.text
    assert signed_in.post("/sign-out", {"csrf": signed_in.csrf()}).status == 303
    assert signed_in.post("/agents/scout/scars", form).headers["location"] == "/sign-in"
    assert operator.get("/v1/agents/scout").json["scar_score"] == 0


def test_without_its_database_a_page_says_so_and_shows_the_way(
    service: Running, signed_in: Visit, operator: Client, database: Database
) -> None:
    operator.create("scout")
    csrf = signed_in.csrf("/agents/scout")
    with away(database):
        for place in ("/", "/agents/scout", "/approvals", "/sessions", "/keys", "/administration"):
            shown = signed_in.get(place)
            assert shown.status == 503, place
            assert shown.headers["retry-after"] == "1"
            assert shown.headers["cache-control"] == "no-store"
            assert shown.text.count('aria-label="Main"') == 1, place
            assert "scout" not in shown.text
        form = {"csrf": csrf, "severity": "minor", "reason": "x", "once": "1"}
        assert signed_in.post("/agents/scout/scars", form).status == 503
        assert signed_in.post("/sign-out", {"csrf": csrf}).status == 503
        assert signed_in.cookies, "nobody is signed out by it"
        assert Visit(service.url).get("/").headers["location"] == "/sign-in"
        fresh = Visit(service.url).post("/sign-in", {"key": service.operator_token})
        assert fresh.status == 503
        assert 'aria-label="Main"' not in fresh.text
        assert signed_in.get("/guides").status == 200
    for _ in range(50):
        shown = signed_in.get("/agents/scout")
        if shown.status == 200:
            break
        time.sleep(0.1)
    assert shown.status == 200
    assert 'action="/sign-out"' in shown.text


def test_by_tls_no_neighbour_can_plant_a_cookie(service: Running, visit: Visit) -> None:
    shown = visit.post("/sign-in", {"key": service.operator_token}, Host="trails.example.com")
    [text] = [line for line in shown.headers["set-cookie"].splitlines() if NAME in line]
    assert text.startswith(f"__Host-{NAME}=")
    assert "; Secure" in text
    assert "; Path=/;" in text
    assert "Domain" not in text
    assert visit.get("/", Host="trails.example.com").status == 200
    visit.cookies = {NAME: visit.cookies[f"__Host-{NAME}"]}
    assert visit.get("/", Host="trails.example.com").status == 303


def test_guessing_is_slowed_down_and_keeps_out_no_key(service: Running, visit: Visit) -> None:
    guesses = [visit.post("/sign-in", {"key": f"guess{number}"}) for number in range(SIGN_INS + 2)]
    assert [shown.status for shown in guesses] == [401] * SIGN_INS + [429] * 2
    assert "too many attempts" in guesses[-1].text
    assert guesses[-1].headers["retry-after"] == "6"
    assert visit.sign_in(service.operator_token).get("/").status == 200


def test_a_key_that_signs_in_without_end_writes_no_storm(service: Running, operator: Client) -> None:
    for _ in range(SIGN_INS):
        Visit(service.url).sign_in(service.operator_token)
    shown = Visit(service.url).post("/sign-in", {"key": service.operator_token})
    assert shown.status == 429
    assert len(acts(operator)) == SIGN_INS


def acts(operator: Client) -> list[dict[str, object]]:
    records = operator.get("/v1/agents/_administration/log").json["records"]
    return [
        {**record["payload"], "actor": record["actor"]}
        for record in records
        if record["payload"].get("act") in {"signed_in", "signed_out"}
    ]


def test_who_came_and_went_is_on_record_and_no_secret_is(service: Running, operator: Client) -> None:
    issued = operator.post("/v1/keys", {"role": "auditor", "name": "alice"}).json
    visit = Visit(service.url).sign_in(issued["token"])
    visit.post("/sign-out", {"csrf": visit.csrf("/approvals")})
    key = issued["key"]["key_id"]
    assert acts(operator) == [
        {"act": "signed_in", "key": key, "actor": "alice"},
        {"act": "signed_out", "key": key, "actor": "alice"},
    ]
    whole = json.dumps(operator.get("/v1/agents/_administration/log").json)
    assert issued["token"].rpartition(".")[0].rpartition(".")[2] not in whole


async def test_the_table_holds_no_key(
    service: Running, operator: Client, admin: asyncpg.Connection, signed_in: Visit
) -> None:
    key_of(operator, "operator")
    [row] = await admin.fetch("SELECT to_jsonb(v)::text FROM trails.console_visits AS v")
    assert service.operator_token not in row[0]
    assert signed_in.cookies[NAME] not in row[0]


async def test_while_a_tenant_does_not_verify_its_keys_are_told_so_and_the_sign_in_stays(
    service: Running, operator: Client, admin: asyncpg.Connection
) -> None:
    key = key_of(operator, "operator")
    await admin.execute("ALTER TABLE trails.agent_audit_trails DISABLE TRIGGER ALL")
    await admin.execute(
        "DELETE FROM trails.agent_audit_trails WHERE agent_id = '_administration' AND seq ="
        " (SELECT max(seq) FROM trails.agent_audit_trails WHERE agent_id = '_administration')"
    )
    await admin.execute("ALTER TABLE trails.agent_audit_trails ENABLE TRIGGER ALL")
    assert operator.get("/v1/agents/_administration/verify").json["ok"] is False
    shown = Visit(service.url).post("/sign-in", {"key": key})
    assert shown.status == 503
    assert "administration" in shown.text
    assert 'name="key"' in shown.text
    assert Visit(service.url).sign_in(service.operator_token).get("/approvals").status == 200
