"""The console's pages on one agent and on the fleet: what they show, and what an operator can do there."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import psycopg

from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.http.client import POLICY, Client
from tests.integration.http.serving import Running
from tests.support.cli import run_trails
from tests.support.ledgers import TABLE
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

ATTACKS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "{{ 7*7 }}",
    '"><svg/onload=x>',
)


def tamper(database: Database, change: str, agent: str) -> None:
    """A superuser changes the policy record of an agent, past everything that the database checks."""
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER ALL".encode())
        query = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
        for (found,) in admin.execute(query.encode(), [TABLE]).fetchall():
            admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT {found}".encode())
        admin.execute(f"UPDATE {TABLE} SET {change} WHERE agent_id = %s AND seq = 1".encode(), [agent])


def administrative(operator: Client, act: str) -> list[dict[str, Any]]:
    records = operator.get("/v1/agents/_administration/log?limit=5000").json["records"]
    return [one["payload"] | {"actor": one["actor"]} for one in records if one["payload"].get("act") == act]


def follow(visit: Visit, html: str, rel: str) -> str:
    """The page that a link of a page leads to."""
    found = re.search(rf'rel="{rel}" href="([^"]+)"', html)
    assert found is not None
    return visit.get(unescape(found[1])).text


def ids(html: str) -> list[str]:
    """Agents of a list, in its order."""
    return re.findall(r'<th scope="row" class="id"><a href="/agents/([^"]+)">', html)


def test_the_fleet_is_shown_with_its_standing(signed_in: Visit, operator: Client) -> None:
    scout = operator.create("scout")
    operator.create("watched", None)
    operator.create("ended")
    scout.post("/v1/agents/scout/actions", {"tool": "search"})
    scout.post("/v1/agents/scout/actions", {"tool": "send_email"})
    operator.post("/v1/agents/ended/terminate", {"reason": "done <b>", "by": "x"})
    html = signed_in.get("/").text
    assert ids(html) == ["ended", "scout", "watched"]
    assert "1 of 50" in html
    assert '<a href="/approvals?agent=scout">1</a>' in html
    assert "done &lt;b&gt;" in html
    assert "no guard" in html


def test_the_list_and_the_page_of_an_agent_say_the_same_of_it(
    signed_in: Visit, operator: Client, database: Database
) -> None:
    names = ("alive", "waiting", "observed", "terminated", "quarantined")
    for name in names:
        agent = operator.create(name, None if name == "observed" else POLICY)
        if name == "waiting":
            agent.post(f"/v1/agents/{name}/actions", {"tool": "send_email"})
    operator.post("/v1/agents/terminated/terminate", {"reason": "done", "by": "x"})
    tamper(database, "signed_text = replace(signed_text, 'search', 'forged')", "quarantined")
    signed_in.get("/agents/quarantined/log")  # reads it, and finds it
    home = signed_in.get("/").text
    for name in names:
        row = home[home.index(f'<a href="/agents/{name}">') :]
        head = signed_in.get(f"/agents/{name}").text.partition("<h1>")[2].partition("</h1>")[0]
        for html in (row, head):
            found = re.search(r'<span class="tag [^"]*">([a-z]+)</span>', html)
            assert found is not None, name
            assert found[1] == name


def test_of_a_chain_that_does_not_verify_the_evidence_can_be_had(
    signed_in: Visit, operator: Client, database: Database, tmp_path: Path
) -> None:
    scout = operator.create("scout")
    scout.post("/v1/agents/scout/actions", {"tool": "search"})
    tamper(database, "signed_text = replace(signed_text, 'search', 'forged')", "scout")
    signed_in.get("/agents/scout/log")  # reads it, and finds it
    page = signed_in.get("/agents/scout").text
    assert "This chain does not verify" in page
    assert 'href="/agents/scout/export.jsonl" download' in page
    shown = signed_in.get("/agents/scout/export.jsonl")
    assert shown.status == 200
    file = tmp_path / "scout.jsonl"
    file.write_text(shown.text)
    verified = run_trails("verify", file, "--json")
    assert verified.json["verdict"] == "tampered"
    assert "content" in verified.out
    assert administrative(operator, "exported")[-1]["agent_id"] == "scout"
    assert signed_in.get("/export.zip").text.startswith("PK")


def test_the_fleet_is_searched_filtered_and_turned_round_by_its_address(
    signed_in: Visit, operator: Client
) -> None:
    for name in ("alpha", "beta", "Alphabet"):
        operator.create(name)
    operator.create("seen-alpha", None)
    operator.post("/v1/agents/beta/terminate", {"reason": "x", "by": "y"})
    assert ids(signed_in.get("/?q=ALPHA").text) == ["Alphabet", "alpha", "seen-alpha"]
    assert ids(signed_in.get("/?q=alpha&order=desc").text) == ["seen-alpha", "alpha", "Alphabet"]
    assert ids(signed_in.get("/?state=terminated").text) == ["beta"]
    assert ids(signed_in.get("/?state=observed").text) == ["seen-alpha"]
    assert ids(signed_in.get("/?state=alive").text) == ["Alphabet", "alpha"]
    assert ids(signed_in.get("/?q=nothing-like-it").text) == []
    assert ids(signed_in.get("/?q=%25").text) == []
    assert signed_in.get("/?state=odd").status == 400
    assert signed_in.get("/?after=a/b").status == 400


def test_h33_paging_through_the_fleet_shows_each_agent_once(signed_in: Visit, operator: Client) -> None:
    names = sorted(f"agent-{number:03}" for number in range(110))
    for name in names:
        operator.create(name, None)
    for order, wanted in (("", names), ("desc", names[::-1])):
        first = signed_in.get(f"/?order={order}").text
        assert "Agents <small>110</small>" in first
        second = follow(signed_in, first, "next")
        assert 'rel="next"' not in second
        assert ids(first) + ids(second) == wanted
        assert ids(follow(signed_in, second, "prev")) == ids(first)


def test_an_agents_page_has_its_head_to_keep_and_never_its_token(signed_in: Visit, operator: Client) -> None:
    token = operator.create("scout").token
    status = operator.get("/v1/agents/scout").json
    html = signed_in.get("/agents/scout").text
    assert f"{status['head']['seq']}:{status['head']['hash']}" in html
    assert status["public_key"] in html
    assert status["log_uuid"] in html
    assert "send_email" in html
    assert token is not None
    assert token not in html
    assert signed_in.get("/agents/nobody").status == 404
    assert signed_in.get("/agents/sc%C3%B6ut").status == 400


def test_a_scar_is_added_once_however_often_the_form_is_sent(signed_in: Visit, operator: Client) -> None:
    operator.create("scout")
    html = signed_in.get("/agents/scout").text
    once = re.search(r'name="once" value="([^"]+)"', html)
    assert once is not None
    form = {"csrf": signed_in.csrf(), "once": once[1], "severity": "moderate", "reason": "ran amok"}
    for _ in range(2):
        assert signed_in.post("/agents/scout/scars", form).status == 303
    assert operator.get("/v1/agents/scout").json["scar_score"] == 3
    html = signed_in.get("/agents/scout").text
    assert 'href="/agents/scout/log/2"' in html
    for wrong in ({"severity": "huge"}, {"reason": "  "}, {"action_id": "act-99"}):
        shown = signed_in.post("/agents/scout/scars", {**form, "once": "other", **wrong})
        assert shown.status in {400, 404}, wrong
        # The form stands there again, with what was wrong and what was typed.
        assert '<details class="card" id="add-scar" open>' in shown.text, wrong
        assert wrong.get("action_id", "ran amok") in shown.text
    assert operator.get("/v1/agents/scout").json["scar_score"] == 3


def test_terminating_wants_the_typed_id_a_reason_and_this_visits_form(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout")
    assert "cannot be undone" in signed_in.get("/agents/scout/terminate").text
    form = {"csrf": signed_in.csrf(), "once": "one", "agent_id": "scout", "reason": "project over"}
    place = "/agents/scout/terminate"
    assert signed_in.post(place, {**form, "csrf": "x"}).status == 403
    assert signed_in.post(place, {**form, "agent_id": "Scout"}).status == 400
    assert signed_in.post(place, {**form, "reason": ""}).status == 400
    assert operator.get("/v1/agents/scout").json["alive"] is True
    assert signed_in.post(place, form).status == 303
    assert signed_in.post(place, form).status == 303  # a double click
    status = operator.get("/v1/agents/scout").json
    assert (status["alive"], status["termination_reason"]) == (False, "project over")
    assert signed_in.post(place, {**form, "once": "two"}).status == 409
    assert signed_in.get(place).status == 409


def test_an_auditor_sees_all_and_changes_nothing(visit: Visit, operator: Client) -> None:
    operator.create("scout")
    visit.sign_in(key_of(operator, "auditor"))
    html = visit.get("/agents/scout").text
    assert "Verify the chain" in html
    assert "Terminate" not in html
    assert "Add a scar" not in html
    csrf = visit.csrf("/agents/scout")
    form = {"csrf": csrf, "agent_id": "scout", "reason": "x", "severity": "minor"}
    for place in ("terminate", "scars"):
        assert visit.post(f"/agents/scout/{place}", form).status == 403
    assert visit.get("/agents/scout/terminate").status == 403
    assert visit.post("/keys", {"csrf": csrf, "name": "x", "role": "operator"}).status == 403
    assert visit.get("/keys").status == 200


def test_an_export_is_the_chain_and_on_record(signed_in: Visit, operator: Client) -> None:
    operator.create("scout")
    shown = signed_in.get("/agents/scout/export.jsonl")
    assert shown.status == 200
    assert '"kind":"genesis"' in shown.text
    assert administrative(operator, "exported")


def test_another_tenants_agents_are_not_there(signed_in: Visit, service: Running) -> None:
    root = Client(service.url, service.root_token)
    made = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"}).json
    root.as_(made["token"]).create("secret-agent")
    assert "secret-agent" not in signed_in.get("/").text
    for place in ("", "/log", "/log/0", "/verify", "/terminate", "/export.jsonl"):
        assert signed_in.get(f"/agents/secret-agent{place}").status == 404, place
    csrf = signed_in.csrf()
    for place in ("/verify", "/scars", "/terminate"):
        form = {"csrf": csrf, "severity": "minor", "reason": "x", "agent_id": "secret-agent"}
        assert signed_in.post(f"/agents/secret-agent{place}", form).status == 404, place


def test_h23_what_agents_and_people_write_is_text(signed_in: Visit, operator: Client) -> None:
    policy = {"budget": 9, "scar_limit": 9, "tools": {attack: {"cost": 0} for attack in ATTACKS}}
    scout = operator.create("scout", policy)
    for attack in ATTACKS:
        scout.post("/v1/agents/scout/actions", {"tool": attack, "input": {attack: attack}})
        operator.post("/v1/agents/scout/scars", {"severity": "minor", "reason": attack})
        scout.post("/v1/agents/scout/events", {"type": attack[:100], "data": attack})
    operator.post("/v1/agents/scout/terminate", {"reason": ATTACKS[0], "by": ATTACKS[1]})
    for place in ("/", "/agents/scout", "/agents/scout/log", "/agents/scout/log/2", "/agents/scout/verify"):
        html = signed_in.get(place).text
        assert "<img src=x" not in html, place
        assert "<script>alert" not in html, place
        assert "<svg/onload" not in html, place
        assert "49" not in re.findall(r"<pre[^>]*>([^<]*)", html), place
    assert "{{ 7*7 }}" in signed_in.get("/agents/scout").text
