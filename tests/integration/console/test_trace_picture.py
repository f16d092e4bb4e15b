"""The picture of a session: what stands where, what is marked, and what a sender's words cannot do."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from app.ledger.session_reading import Limits
from tests.integration.console.browser import Shown, Visit
from tests.integration.console.reading import Shape, text_of
from tests.integration.console.story import Told, told
from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node, node_id
from tests.integration.http.serving import Running
from tests.integration.http.test_sessions import TRAIL, tamper
from tests.support.cookbook_world import BROKEN, NESTED, NOTES, PLAN, RUN, Sent, ident
from tests.support.postgres import Database

__all__ = ["told"]

MAX_PAGE_BYTES = 3_000_000
NOBODYS = "5f0c64a2-93c8-4d5b-8a94-7d2f5be0a1c3"
"""An id that nothing has."""


def lines(page: str) -> list[str]:
    """The text of each line of the picture."""
    parts = re.split(r'<li id="n\d+"[^>]*>', page)[1:]
    return [text_of(re.split(r"<details|</li>", part)[0]) for part in parts]


def shown(visit: Visit, path: str) -> Shown:
    found = visit.get(path)
    assert found.status == 200, found.text
    Shape(found.text)
    return found


def picture(told: Told, session: str, query: str = "") -> str:
    return shown(told.visit, f"/sessions/{session}{query}").text


def detail(told: Told, session: str, number: int, agent: str) -> str:
    page = picture(told, session, f"?node={ident(number)}&of={agent}")
    return text_of(page[page.index('<aside id="detail"') :])


def post(client: Client, *nodes: dict[str, Any], session: str = SESSION) -> Any:
    reply = client.post("/v1/agents/mailer/traces", fragment(*nodes, session_id=session))
    assert reply.status == 200, reply.raw
    return reply.json


@pytest.mark.parametrize("session", [RUN, PLAN, NOTES, BROKEN, NESTED])
def test_every_node_of_the_account_has_its_line(told: Told, session: str) -> None:
    nodes = told.world.sessions()[session]
    found = lines(picture(told, session))
    assert len(found) == len(nodes)
    for one in nodes:
        status = one.status or ""
        assert any(one.type in line and one.name in line and status in line for line in found), one.name


def test_the_head_counts_as_the_list_does(told: Told) -> None:
    for session, nodes in told.world.sessions().items():
        page = text_of(picture(told, session))
        calls = [one for one in told.world.calls() if one.session == session]
        failed = [one for one in calls if one.status == "failed"]
        assert f"Nodes {len(nodes)} Tool calls {len(calls)} Failed {len(failed)} " in page


def test_what_failed_is_what_failed_and_what_did_harm(signed_in: Visit, operator: Client) -> None:
    operator.create("mailer", None)
    post(
        operator,
        node(1, node_type="TOOL_CALL", outputs={"status": "failed"}),
        node(2, node_type="TOOL_CALL", outputs={"status": "harmful"}),
        node(3, node_type="TOOL_CALL", outputs={"status": "success"}),
    )
    page = text_of(shown(signed_in, f"/sessions/{SESSION}").text)
    assert "Nodes 3 Tool calls 3 Failed 1 Harmful 1 " in page
    assert "What failed 2 " in page


def test_decisions_of_the_guard_are_counted_from_its_records(told: Told) -> None:
    acts = [act for act in told.world.acts if act.session == RUN]
    reported = sum(act.outcome is not None for act in acts)
    denied = sum(act.decision == "denied" for act in acts)
    page = text_of(picture(told, RUN))
    assert f"Guard {len(acts)} asked for, {reported} allowed and reported, {denied} denied What" in page


def test_models_are_those_of_the_auditors_query(told: Told) -> None:
    page = picture(told, PLAN)
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page, re.DOTALL)
    assert [text_of(row) for row in rows] == [
        "m-large 1 100 20 120 0.5",
        "no model named 1 5 7 12 4",
    ]


def test_the_failed_path_and_what_put_it_right_are_marked(told: Told) -> None:
    page = picture(told, PLAN)
    classes = dict(re.findall(r'<li id="n(\d+)" class="node([^"]*)"', page))
    marked = {
        text_of(line): classes[number].split()
        for number, line in re.findall(
            r'<li id="n(\d+)"[^>]*><div class="line">.*?<a href[^>]*>(.*?)</a>', page, re.DOTALL
        )
    }
    assert marked["plan"] == ["path"]
    assert marked["try a mirror"] == ["fix"]
    assert sorted(classes.values()).count(" wrong") == 1
    told_first = page[page.index('id="failed"') : page.index('class="row filter"')]
    assert "fetch failed timeout" in text_of(told_first)
    only = lines(picture(told, PLAN, "?failed=1"))
    assert [line.split()[1] for line in only] == ["PLANNING", "TOOL_CALL", "SELF_CORRECTION", "TOOL_CALL"]


def test_orphans_cycles_and_conflicts_are_told(told: Told) -> None:
    page = picture(told, BROKEN)
    assert "1 node names a parent that never came" in page
    cycle = page[page.index("In a cycle of parents, or below one") :]
    assert len(lines(cycle)) == 2
    conflicts = text_of(picture(told, NOTES))
    assert "3 nodes were sent with different contents" in conflicts
    assert "other agents sent a node of the same id: draft of planner" in detail(told, NOTES, 22, "scribe")
    twice = detail(told, NOTES, 21, "scribe")
    assert "scribe sent it 2 times, and not always the same; the latest is shown" in twice
    assert "It names a parent" not in twice
    assert "Orphan" in detail(told, BROKEN, 30, "scribe")
    assert "cycle" in detail(told, BROKEN, 31, "scribe")


def test_the_inner_end_of_a_call_leads_to_the_outer(told: Told) -> None:
    assert "inner end of another call, fetch" in detail(told, NESTED, 41, "scribe")


def test_the_detail_says_where_the_node_stands(told: Told) -> None:
    [one] = [one for one in told.world.sent if one.session == PLAN and one.name == "try a mirror"]
    page = picture(told, PLAN, f"?node={ident(12)}&of=planner")
    assert f'href="/agents/planner/log/{one.seq}"' in page
    assert "try a mirror" in shown(told.visit, f"/agents/planner/log/{one.seq}").text
    record = json.loads(_log(told, "planner")[one.seq])
    assert record["hash"] in page
    said = detail(told, PLAN, 14, "planner")
    assert "120 (100 in, 20 out)" in said
    assert "2026-01-01 09:10:04 UTC, says the sender" in said


def _log(told: Told, agent: str) -> list[str]:
    client = Client(told.service.url, told.service.operator_token)
    return [json.dumps(record) for record in client.get(f"/v1/agents/{agent}/log?limit=5000").json["records"]]


def test_what_the_guard_recorded_is_shown_before_what_was_posted_over_it(told: Told) -> None:
    painted: Sent = next(one for one in told.world.sent if one.guarded and one.session == RUN)
    page = picture(told, RUN, f"?node={painted.id}&of=buyer")
    said = text_of(page[page.index('<aside id="detail"') :])
    assert "written by the guard" in said
    assert "what the guard recorded is shown" in said
    assert "failed" in said


def test_htmx_gets_the_node_alone(told: Told) -> None:
    path = f"/sessions/{PLAN}?failed=1&node={ident(11)}&of=planner"
    alone = told.visit.get(path, HX_Request="true", HX_Target="detail")
    assert alone.status == 200
    assert alone.text.startswith('<article class="card"')
    assert "<html" not in alone.text
    assert "?failed=1&amp;node=" in alone.text
    closed = told.visit.get(f"/sessions/{PLAN}?failed=1", HX_Request="true", HX_Target="detail")
    assert "<article" not in closed.text


def test_the_same_tree_as_json(told: Told) -> None:
    client = Client(told.service.url, told.service.operator_token)
    found = told.visit.get(f"/sessions/{PLAN}/tree.json")
    assert found.headers["content-type"] == "application/json"
    assert found.text == client.get(f"/v1/sessions/{PLAN}").raw.decode()


@pytest.mark.parametrize("path", [f"/sessions/{NOBODYS}", "/sessions/x", f"/sessions/{PLAN}?node={NOBODYS}"])
def test_what_is_not_there(told: Told, path: str) -> None:
    assert told.visit.get(path).status == 404


@pytest.mark.parametrize(
    "query", ["node=1", "from=0", "from=x", "q=" + "x" * 201, "nodes=1", "of=a%20b&node=" + PLAN]
)
def test_what_cannot_be_asked(told: Told, query: str) -> None:
    assert told.visit.get(f"/sessions/{PLAN}?{query}").status == 400


def test_another_tenants_sessions_are_not_there(service: Running, operator: Client) -> None:
    post(operator.create("mailer", None), node(1, outputs={"status": "failed"}))
    root = Client(service.url, service.root_token)
    stranger = root.post("/v1/tenants", {"slug": "acme", "name": "Acme", "operator": "Ada"})
    assert stranger.status == 200, stranger.raw
    visit = Visit(service.url).sign_in(stranger.json["token"])
    for path in (f"/sessions/{SESSION}", f"/sessions/{SESSION}/tree.json", f"/sessions/{SESSION}?failed=1"):
        assert visit.get(path).status == 404, path
    assert SESSION not in shown(visit, "/sessions").text
    assert SESSION not in shown(visit, "/failures").text
    assert "No failed call in this period" in shown(visit, "/failures").text


def test_a_session_beyond_what_is_shown_says_how_to_read_it(
    service: Running, signed_in: Visit, operator: Client
) -> None:
    post(operator.create("mailer", None), node(1), node(2), node(3))
    # The service shows 20,000 nodes at most; two are enough to see it.
    service.app.services.ledger._sessions._limits = Limits(nodes=2)
    found = signed_in.get(f"/sessions/{SESSION}")
    assert found.status == 413
    assert "has 3 nodes" in found.text
    assert "session_paths" in found.text
    assert signed_in.get(f"/sessions/{SESSION}?node={node_id(1)}", HX_Target="detail").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/sessions",
        "/failures",
        "/failures?since=x",
        f"/sessions/{PLAN}",
        f"/sessions/{PLAN}/tree.json",
        f"/sessions/{NOBODYS}",
        f"/sessions/{PLAN}?node={ident(11)}",
    ],
)
def test_h17_no_answer_is_kept(told: Told, path: str) -> None:
    for more in ({}, {"HX_Request": "true", "HX_Target": "detail"}):
        headers = told.visit.get(path, **more).headers
        assert headers["cache-control"] == "no-store"
        assert "Cookie" in headers["vary"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("place", ["", "/tree.json"])
def test_nobody_sees_a_session_without_signing_in(told: Told, place: str) -> None:
    assert Visit(told.service.url).get(f"/sessions/{PLAN}{place}").status == 303


def test_t13_the_senders_time_is_told_apart_from_the_records(signed_in: Visit, operator: Client) -> None:
    agent = operator.create("mailer", None)
    far = {"timestamp": "2099-01-01T00:00:00Z", "duration_ms": 5}
    for number, metadata in enumerate(
        [far, {"timestamp": "2020-01-01T00:00:00Z"}, {"duration_ms": -1}, {"duration_ms": 10**100}, {}]
    ):
        post(agent, node(number, metadata=metadata))
    page = shown(signed_in, f"/sessions/{SESSION}").text
    assert "all times that the senders say" in page
    said = shown(signed_in, f"/sessions/{SESSION}?node={node_id(0)}").text
    assert "Clock skew: the sender says 2099-01-01 00:00:00 UTC" in text_of(said)
    assert "says what cannot be" in shown(signed_in, f"/sessions/{SESSION}?node={node_id(2)}").text
    for bar in Shape(page).all("rect"):
        x, width = (float((bar[name] or "").rstrip("%")) for name in ("x", "width"))
        assert 0 <= x <= x + width <= 100.1


def test_what_does_not_verify_is_listed_first(signed_in: Visit, operator: Client, database: Database) -> None:
    agent = operator.create("mailer", None)
    post(agent, node(1, name="good"))
    bad = post(agent, node(2, 1, name="search"))
    change = f"UPDATE {TRAIL} SET signed_text = replace(signed_text, 'search', 'x') WHERE hash = %s"
    tamper(database, change, bad["hash"])
    page = shown(signed_in, f"/sessions/{SESSION}").text
    assert "1 of its 2 records do not verify" in page
    assert page.index("do not verify") < page.index('class="totals"')
    assert len(lines(page)) == 1


ATTACK = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>{{ 7*7 }}[x](javascript:1)\u202e"


def test_h23_what_an_agent_wrote_is_text(signed_in: Visit, operator: Client) -> None:
    agent = operator.create("mailer", None)
    wild = {
        "name": ATTACK,
        "inputs": {ATTACK: [ATTACK]},
        "thought_process": ATTACK,
        "outputs": {"status": ATTACK, "error": {"message": ATTACK}},
        "metadata": {ATTACK: ATTACK, "model": ATTACK, "timestamp": ATTACK, "nested_in": ATTACK},
        ATTACK: ATTACK,
    }
    post(agent, node(1, **wild), node(2, 1, name=ATTACK, outputs={"status": "failed", "error": ATTACK}))
    pages = [
        shown(signed_in, path).text
        for path in (
            f"/sessions/{SESSION}",
            f"/sessions/{SESSION}?node={node_id(1)}",
            f"/sessions/{SESSION}?q=%3Cscript%3Ealert(1)%3C/script%3E&type=%3Cb%3E",
            "/sessions",
            "/failures",
            "/failures?tool=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
            "/sessions?tool=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        )
    ]
    for page in pages:
        shape = Shape(page)
        assert all(str(script.get("src")).startswith("/static/") for script in shape.all("script"))
        assert all(found.get("src", "/static/").startswith("/static/") for found in shape.all("img"))
        assert not [name for _, found in shape.elements for name in found if name.startswith("on")]
        assert not [found for found in shape.all("a") if not re.match(r"[/?#]", found.get("href") or "")]
        assert not [found for _, found in shape.elements if "style" in found]
        assert "\u202e" not in page
    assert "49" not in text_of(pages[0][pages[0].index('<ol class="nodes">') :])
    assert "<img src=x onerror=alert(1)>" in html.unescape(pages[1])


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_a_large_session_comes_in_pages_of_bounded_size(
    signed_in: Visit, operator: Client, shape: str
) -> None:
    agent = operator.create("mailer", None)
    above = [None, *([0] * 4_499 if shape == "wide" else range(4_499))]
    nodes = [node(n, parent, thought_process="w" * 500) for n, parent in enumerate(above)]
    post(agent, *nodes)
    place: str | None = f"/sessions/{SESSION}"
    own: set[str] = set()
    for _ in range(3):
        assert place is not None
        page = shown(signed_in, place)
        assert len(page.text.encode()) < MAX_PAGE_BYTES
        own |= set(re.findall(r'<li id="n(\d+)"', page.text))
        found = re.search(r'href="([^"]+)" rel="next"', page.text)
        place = None if found is None else f"/sessions/{SESSION}" + html.unescape(found[1])
    assert place is None
    assert len(own) == 4_500
