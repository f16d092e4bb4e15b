"""Forms that nobody sent: every form of the console, by every way that another site has."""

from __future__ import annotations

import http.client
import re
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from app.console.pages import PAGES
from tests.integration.console.browser import Shown, Visit
from tests.integration.console.conftest import key_of
from tests.integration.http.client import POLICY, Client
from tests.integration.http.serving import Running
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

FORMS: Final = sorted(
    path
    for handler in PAGES
    if "POST" in handler.http_methods
    for path in handler.paths
    if path != "/sign-in"
)
IDS: Final = {"agent_id": "scout", "action_id": "act-1"}
FIELDS: Final = {
    "decision": "approve",
    "reason": "forged",
    "severity": "minor",
    "agent_id": "scout",
    "role": "operator",
    "name": "forged",
    "once": "forged",
}

ELSEWHERE: Final[dict[str, dict[str, str]]] = {
    "another site": {"Origin": "https://evil.example"},
    "a name that begins like ours": {"Origin": "http://127.0.0.1.evil.example"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "no origin that it would name": {"Origin": "null"},
    "an empty one": {"Origin": ""},
    "a frame of another site": {"Sec_Fetch_Site": "cross-site"},
    "a neighbour's name": {"Sec_Fetch_Site": "same-site"},
    "a text with another type": {"Content_Type": "text/plain"},
    "a file": {"Content_Type": "multipart/form-data; boundary=x"},
    "a program": {"Content_Type": "application/json"},
    "another charset": {"Content_Type": "application/x-www-form-urlencoded; charset=utf-7"},
}


@pytest.fixture
def key(operator: Client) -> str:
    return str(operator.post("/v1/keys", {"role": "auditor", "name": "Grace"}).json["key"]["key_id"])


@pytest.fixture
def seen(operator: Client) -> str:
    """An action that waits."""
    scout = operator.create("scout", POLICY)
    scout.post("/v1/agents/scout/actions", {"tool": "send_email"})
    return str(operator.get("/v1/agents/scout/log").json["records"][2]["hash"])


def place_of(path: str, key_id: str) -> str:
    return re.sub(r"\{(\w+):str\}", lambda found: ({**IDS, "key_id": key_id})[found[1]], path)


def everything(operator: Client) -> list[Any]:
    """What a forged form could change, and the acts on record."""
    acts = operator.get("/v1/agents/_administration/log").json["records"]
    return [
        operator.get("/v1/agents/scout").json,
        [entry["revoked_at"] for entry in operator.get("/v1/keys").json["keys"]],
        [one["payload"].get("act") for one in acts if one["payload"].get("act") != "signed_in"],
    ]


def test_no_form_is_taken_without_this_visits_own_token(
    service: Running, signed_in: Visit, operator: Client, key: str, seen: str
) -> None:
    other = Visit(service.url).sign_in(key_of(operator, "operator", "Grace Hopper"))
    before = everything(operator)
    foreign = other.csrf()
    csrf = signed_in.csrf()
    assert len(FORMS) > 6
    for path in FORMS:
        place = place_of(path, key)
        for token in (None, "", foreign, csrf[:-1], csrf + "A", csrf.swapcase(), "\x00", "é" * 40, "\udcff"):
            form = {**FIELDS, "seen": seen} | ({} if token is None else {"csrf": token})
            body = urlencode(form, errors="surrogateescape").encode()
            shown = signed_in._send(
                "POST", place, body, {"Content-Type": "application/x-www-form-urlencoded"}
            )
            assert shown.status in {400, 403}, (place, token, shown.text)
            assert 'aria-label="Main"' in shown.text, "the way on"
    assert everything(operator) == before


@pytest.mark.parametrize("how", ELSEWHERE)
def test_no_form_of_another_site_is_taken_even_with_the_token(
    signed_in: Visit, operator: Client, key: str, seen: str, how: str
) -> None:
    before, csrf = everything(operator), signed_in.csrf()
    for path in FORMS:
        form = {**FIELDS, "seen": seen, "csrf": csrf}
        shown = signed_in.post(place_of(path, key), form, **ELSEWHERE[how])
        assert shown.status in {403, 415}, (path, shown.text)
    assert everything(operator) == before
    assert signed_in.get("/").status == 200


def test_the_sign_in_is_taken_from_no_other_site(service: Running, visit: Visit) -> None:
    """Else whoever is led here would work under somebody else's name (login forgery)."""
    for how, named in ELSEWHERE.items():
        assert visit.post("/sign-in", {"key": service.operator_token}, **named).status in {403, 415}, how
    assert visit.cookies == {}


def test_a_form_is_sent_by_post_alone(signed_in: Visit, operator: Client, key: str, seen: str) -> None:
    before = everything(operator)
    query = urlencode({**FIELDS, "seen": seen, "csrf": signed_in.csrf()})
    for path in FORMS:
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
            shown = signed_in._send(method, f"{place_of(path, key)}?{query}", None, {})
            assert shown.status in {200, 204, 303, 400, 404, 405}, (method, path)
            assert "access-control-allow-origin" not in shown.headers
    assert everything(operator) == before


def test_what_the_address_bar_says_of_the_host_changes_no_link(signed_in: Visit, service: Running) -> None:
    """Neither Host nor what proxies say of it ends up in a page, a redirect or a cookie's domain."""
    evil = "evil.example"
    away = Visit(service.url)
    for named in ({"X_Forwarded_Host": evil}, {"Forwarded": f"host={evil}"}, {"X_Original_URL": f"//{evil}"}):
        assert evil not in str(away.get("/approvals?agent=x", **named))
        assert evil not in str(signed_in.get("/", **named))
        assert evil not in str(away.post("/sign-in", {"key": service.operator_token}, **named))
    told = away.get("/approvals", Host=evil)
    assert evil not in str(told)
    for target in (f"http://{evil}/approvals", f"//{evil}/approvals", f"/\\{evil}/", f"/%2f%2f{evil}"):
        shown = raw(signed_in, target)
        assert evil not in shown.headers.get("location", "").partition("?")[0], target
        assert shown.status < 500, target


def raw(visit: Visit, target: str) -> Shown:
    """Asks for a target as it stands, whatever a browser would make of it."""
    connection = http.client.HTTPConnection(visit.address, timeout=20)
    try:
        connection.putrequest("GET", target, skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Shown(answer.status, headers, answer.read().decode(errors="replace"))
    finally:
        connection.close()


def test_cookies_that_are_none_open_nothing(signed_in: Visit) -> None:
    [(name, value)] = signed_in.cookies.items()
    for wrong in (
        f"{name}=",
        f"{name}={'A' * 200}",
        f"{name}={'A' * 5_000}",
        f"{name}=é",
        f"{name}={value}x",
        f"{name}={value}====x",
        f"{name}={value[4:]}",
        f"__Host-{name}={value}",
        f"{name.upper()}={value}",
        f"other={value}",
        ";" * 50,
        f"{name}=x; {name}=y; {name}={value}",
    ):
        visit = Visit(f"http://{signed_in.address}")
        assert visit._send("GET", "/", None, {"Cookie": wrong.encode().decode("latin-1")}).status == 303, (
            wrong
        )
    assert signed_in.get("/").status == 200
