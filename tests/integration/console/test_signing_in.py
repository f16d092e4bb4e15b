"""Signing in to the console: whose key opens it, for how long, and what a page never gives away."""

from __future__ import annotations

import html
import re

import pytest

from app.console.pages import PAGES
from app.http.access import PUBLIC
from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]


def test_a_key_opens_the_page_that_was_asked_for(visit: Visit, operator: Client) -> None:
    away = visit.get("/?of=today")
    assert (away.status, away.headers["location"]) == (303, "/sign-in?next=%2F%3Fof%3Dtoday")
    key = key_of(operator, "auditor")
    entered = visit.post("/sign-in", {"key": f" {key}\n", "next": "/?of=today"})
    assert (entered.status, entered.headers["location"]) == (303, "/?of=today")
    assert "alice" in visit.get("/").text


ADDRESSES = [
    *("/", "/?of=today", "/sessions", "/failures?days=7", "/keys", "/approvals", "/administration"),
    *("/agents/scout", "/agents/scout/log?kind=event&from=2", "/agents/scout/log/1", "/agents/scout/verify"),
    *("/agents/a%20b", "/agents/%C3%A9?x=%26%23", "/export.zip", "/sessions/" + "0" * 32),
]


@pytest.mark.parametrize("path", ADDRESSES)
def test_each_address_is_come_back_to_as_it_was_asked_for(service: Running, visit: Visit, path: str) -> None:
    away = visit.get(path)
    assert away.status == 303
    form = visit.get(away.headers["location"])
    [place] = re.findall(r'name="next" value="([^"]*)"', form.text)
    entered = visit.post("/sign-in", {"key": service.operator_token, "next": html.unescape(place)})
    assert (entered.status, entered.headers["location"]) == (303, path)


@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("http://127.0.0.1/approvals?of=a%2Fb#top", "/sign-in?next=%2Fapprovals%3Fof%3Da%252Fb"),
        ("http://127.0.0.1/", "/sign-in"),
        ("http://[", "/sign-in?next=%2Fapprovals%2Fwaiting"),
    ],
)
def test_a_part_of_a_page_leads_back_to_the_page(visit: Visit, page: str, place: str) -> None:
    asked = visit.get("/approvals/waiting", HX_Request="true", HX_Current_URL=page)
    assert (asked.status, asked.headers["hx-redirect"]) == (401, place)


@pytest.mark.parametrize("path", ["/nothing", "/agents", "/v2/agents", "/%3Cscript%3E"])
def test_an_address_that_is_none_is_told_to_a_browser_as_a_page_and_to_programs_as_before(
    visit: Visit, operator: Client, path: str
) -> None:
    browsers = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    strange = visit.get(path, **browsers)
    assert (strange.status, strange.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no such page" in strange.text
    assert "<script>" not in strange.text
    visit.sign_in(key_of(operator, "auditor"))
    assert 'href="/sessions"' in visit.get(path, **browsers).text
    for accept in ("*/*", "application/json"):
        told = visit.get(path, Accept=accept)
        assert (told.status, told.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("role", ["writer", "agent"])
def test_keys_of_services_do_not_open_the_console(visit: Visit, operator: Client, role: str) -> None:
    operator.create("scout")
    more = {"agent_id": "scout"} if role == "agent" else {}
    shown = visit.post("/sign-in", {"key": key_of(operator, role, **more)})
    assert shown.status == 403
    assert f"role {role}" in shown.text
    assert visit.cookies == {}


@pytest.mark.parametrize("key", ["", "x", "trk_" + "0" * 60, "agt_x", "a b", "é", "x" * 600])
def test_what_is_no_key_is_refused_without_saying_why(visit: Visit, key: str) -> None:
    shown = visit.post("/sign-in", {"key": key})
    assert shown.status == 401
    assert "This is no key" in shown.text
    assert visit.cookies == {}


def test_a_revoked_key_ends_its_visit(visit: Visit, operator: Client) -> None:
    issued = operator.post("/v1/keys", {"role": "operator", "name": "bob"}).json
    visit.sign_in(issued["token"])
    assert visit.get("/").status == 200
    assert operator.send("DELETE", f"/v1/keys/{issued['key']['key_id']}").status in {200, 204}
    assert visit.get("/").status == 303
    assert visit.cookies == {}
    shown = visit.post("/sign-in", {"key": issued["token"]})
    assert (shown.status, "this key was revoked on 20" in shown.text) == (401, True)


def test_the_cookie_is_for_browsers_only_and_hides_the_key(service: Running, visit: Visit) -> None:
    shown = visit.post("/sign-in", {"key": service.operator_token})
    cookie = shown.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert service.operator_token not in cookie
    assert Client(service.url, visit.cookies["trails_session"]).get("/v1/agents").status == 401


def test_beyond_this_machine_the_cookie_wants_tls(service: Running) -> None:
    visit = Visit(service.url)
    shown = visit.post("/sign-in", {"key": service.operator_token}, Host="trails.example.com")
    assert shown.status == 303
    assert "; Secure" in shown.headers["set-cookie"]


def test_an_altered_cookie_opens_nothing(signed_in: Visit) -> None:
    cookie = signed_in.cookies["trails_session"]
    for place in (0, 20, len(cookie) // 2):
        signed_in.cookies["trails_session"] = (
            cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :]
        )
        assert signed_in.get("/").status == 303


def test_signing_out_wants_this_visits_own_form(signed_in: Visit) -> None:
    assert signed_in.post("/sign-out", {"csrf": "x"}).status == 403
    csrf = signed_in.csrf()
    foreign = signed_in.post("/sign-out", {"csrf": csrf}, Origin="https://evil.example")
    assert foreign.status == 403
    assert signed_in.post("/sign-out", {"csrf": csrf}, Sec_Fetch_Site="cross-site").status == 403
    assert signed_in.get("/").status == 200
    assert signed_in.post("/sign-out", {"csrf": csrf}).status == 303
    assert signed_in.cookies == {}
    assert signed_in.get("/").status == 303


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/ x"]
)
def test_signing_in_leads_to_no_other_site(service: Running, visit: Visit, place: str) -> None:
    shown = visit.post("/sign-in", {"key": service.operator_token, "next": place})
    assert (shown.status, shown.headers["location"]) == (303, "/")


def test_h19_a_key_in_the_address_is_refused(visit: Visit, service: Running) -> None:
    for field in ("token", "api_key", "access_token"):
        assert visit.get(f"/?{field}={service.operator_token}").status == 400


def _paths(method: str) -> list[str]:
    return sorted(
        path
        for handler in PAGES
        if not handler.opt.get(PUBLIC) and method in handler.http_methods
        for path in handler.paths
    )


@pytest.mark.parametrize("path", _paths("GET"))
def test_no_page_is_shown_to_nobody(visit: Visit, path: str) -> None:
    shown = visit.get(path.replace("{agent_id:str}", "scout").replace("{session_id:str}", "0" * 32))
    assert shown.status in {303, 401}


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nothing-here"])
def test_h17_h23_no_answer_is_kept_and_nothing_foreign_runs(signed_in: Visit, path: str) -> None:
    headers = signed_in.get(path).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    if path != "/nothing-here":  # which is the API's to answer
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "Cookie" in headers["vary"]


def test_what_went_wrong_is_told_with_the_way_to_go_on(signed_in: Visit, service: Running) -> None:
    shown = signed_in.get("/agents/nobody-called-so")
    assert shown.status == 404
    assert 'action="/sign-out"' in shown.text
    assert "Administration" in shown.text
    assert 'action="/sign-out"' not in Visit(service.url).get("/static/no.css").text


@pytest.mark.parametrize("path", ["/", "/agents/nobody"])
def test_a_page_says_once_how_it_is_written(signed_in: Visit, path: str) -> None:
    assert signed_in.get(path).headers["content-type"] == "text/html; charset=utf-8"
