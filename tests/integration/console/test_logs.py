"""The console's pages on records: pages of a log and its filters, single records, the administration."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import psycopg
import pytest

from app.console.pages import PAGES
from app.http.access import PUBLIC
from db.schema import GUARD_ACTION_KINDS
from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.test_agent_pages import administrative, follow
from tests.integration.http.client import Client
from tests.integration.http.posting import fragment, node
from tests.support.ledgers import TABLE
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

SESSION = "123e4567-e89b-12d3-a456-426614174000"


def seqs(html: str) -> list[int]:
    """The records of a page, in its order."""
    return [int(found) for found in re.findall(r'<span class="seq">([0-9]+)</span>', html)]


def payloads(html: str) -> list[str]:
    return [
        unescape(found) for found in re.findall(r'aria-label="Payload of record [0-9]+">([^<]*)</pre>', html)
    ]


def events(operator: Client, agent: str, count: int, **more: Any) -> None:
    """Posts so many events, in batches."""
    listed = [{"type": "tick", "data": number, **more} for number in range(count)]
    for first in range(0, count, 1_000):
        reply = operator.post(f"/v1/agents/{agent}/events", {"events": listed[first : first + 1_000]})
        assert reply.status == 200, reply.raw


def test_a_log_is_paged_in_both_directions_and_jumped_into(signed_in: Visit, operator: Client) -> None:
    operator.create("scout", None)
    events(operator, "scout", 255)
    last = operator.get("/v1/agents/scout").json["head"]["seq"]  # behind a snapshot, too
    newest = signed_in.get("/agents/scout/log").text
    assert seqs(newest) == list(range(last, last - 100, -1))
    older = follow(signed_in, newest, "next")
    assert seqs(older) == list(range(last - 100, last - 200, -1))
    oldest = follow(signed_in, older, "next")
    assert seqs(oldest) == list(range(last - 200, -1, -1))
    assert 'rel="next"' not in oldest
    assert seqs(follow(signed_in, oldest, "prev")) == seqs(older)
    assert seqs(signed_in.get("/agents/scout/log?seq=120").text)[0] == 120
    assert seqs(signed_in.get("/agents/scout/log?from=0").text) == list(range(99, -1, -1))
    assert seqs(signed_in.get("/agents/scout/log?before=0").text) == []
    assert seqs(signed_in.get("/agents/scout/log?after=9223372036854775807").text) == []


def test_h33_an_address_that_means_nothing_is_refused_in_words(signed_in: Visit, operator: Client) -> None:
    operator.create("scout")
    for query in (
        "before=-1",
        "after=x",
        "seq=1e9",
        "before=99999999999999999999",
        "before=1&after=2",
        "colour=red",
        "since=yesterday",
        "session=no-uuid",
        "before=1&before=2",
        "kind=" + "k" * 300,
    ):
        assert signed_in.get(f"/agents/scout/log?{query}").status == 400, query
    for seq in ("x", "-1", "99", "9" * 30):
        assert signed_in.get(f"/agents/scout/log/{seq}").status == 404, seq


def test_filters_find_records_by_kind_actor_action_session_and_time(
    signed_in: Visit, operator: Client
) -> None:
    scout = operator.create("scout")
    for _ in range(3):
        scout.post("/v1/agents/scout/actions", {"tool": "search", "session_id": SESSION})
    scout.post("/v1/agents/scout/actions/act-2/outcome", {"status": "success", "detail": ""})
    events(operator, "scout", 5)
    log = operator.get("/v1/agents/scout/log").json["records"]

    def found(query: str) -> list[int]:
        shown = signed_in.get(f"/agents/scout/log?{query}")
        assert shown.status == 200, shown.text
        return seqs(shown.text)[::-1]

    def wanted(holds: Any) -> list[int]:
        return [record["seq"] for record in log if holds(record)]

    assert found("kind=event") == wanted(lambda one: one["kind"] == "event")
    assert found("actor=scout") == wanted(lambda one: one["actor"] == "scout")
    act = wanted(lambda one: one["payload"].get("action_id") == "act-2")
    assert len(act) == 3
    assert found("action=act-2") == act
    assert found(f"session={SESSION}") == wanted(lambda one: one["payload"].get("session_id") == SESSION)
    middle = log[4]["timestamp"]
    assert found(f"since={middle}") == wanted(lambda one: one["timestamp"] >= middle)
    assert found(f"until={middle}") == wanted(lambda one: one["timestamp"] < middle)
    assert found("since=2099-01-01") == []
    assert found("kind=event&actor=nobody&since=&until=") == []


@pytest.mark.usefixtures("database")
def test_a_search_looks_at_so_many_records_and_says_where_it_goes_on(
    signed_in: Visit, operator: Client, service: Any
) -> None:
    service.app.services.ledger.trail._window = 100
    operator.create("scout")
    events(operator, "scout", 230)
    html = signed_in.get("/agents/scout/log?kind=policy").text
    assert seqs(html) == []
    assert "the search goes on with Older" in html
    walked = 1
    while not seqs(html):
        html = follow(signed_in, html, "next")
        walked += 1
    assert (seqs(html), walked) == ([1], 3)


def test_a_payload_is_shown_with_its_exact_digits_and_nothing_hidden(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout", None)
    data = (
        '{"big":12345678901234567890123,"small":1e-7,"tiny":0.000001,'
        '"word":"a\\u202eb\\u0007","k\\u2066":0,"of":[[],{}]}'
    )
    reply = operator.post_raw("/v1/agents/scout/events", f'{{"type":"t","data":{data}}}'.encode())
    assert reply.status == 200
    for place in ("/agents/scout/log", "/agents/scout/log/1"):
        shown = payloads(signed_in.get(place).text)[0]
        for digits in ("12345678901234567890123", "1e-7", "0.000001", "\\u202e", "\\u2066", "\\u0007"):
            assert digits in shown, place
        assert json.loads(shown)["data"] == json.loads(data)


def test_a_large_payload_is_cut_in_the_list_and_whole_on_its_own_page(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout", None)
    operator.post("/v1/agents/scout/events", {"type": "t", "data": ["x" * 20] * 2_000})
    html = signed_in.get("/agents/scout/log").text
    assert len(html) < 30_000
    assert "own page</a> has more" in html
    alone = signed_in.get("/agents/scout/log/1").text
    assert len(json.loads(payloads(alone)[0])["data"]) == 2_000


def test_a_record_has_an_address_its_neighbours_and_its_export_line(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout")
    events(operator, "scout", 2)
    lines = operator.get("/v1/agents/scout/log").raw.decode()
    html = signed_in.get("/agents/scout/log/2").text
    line = re.search(r'<pre id="line"[^>]*>([^<]*)</pre>', html)
    assert line is not None
    assert unescape(line[1]) in lines
    assert json.loads(unescape(line[1]))["seq"] == 2
    assert 'rel="prev" href="/agents/scout/log/1"' in html
    assert 'rel="next" href="/agents/scout/log/3"' in html
    assert 'rel="next"' not in signed_in.get("/agents/scout/log/3").text
    assert 'rel="prev"' not in signed_in.get("/agents/scout/log/0").text


def test_h23_nothing_in_an_export_line_reorders_the_page_and_the_copy_is_exact(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout", None)
    steers = "".join(chr(code) for code in (0x202E, 0x2066, 0x200B, 0x2028, 0xAD, 0xFEFF, 0x85, 0xE0041))
    word = f'a"<b>{steers}z'
    assert operator.post("/v1/agents/scout/events", {"type": word, "data": {word: word}}).status == 200
    page = signed_in.get("/agents/scout/log/1").text
    found = re.search(r'<pre id="line"[^>]* data-exact="([^"]*)">([^<]*)</pre>', page)
    assert found is not None
    exact, seen = (unescape(text) for text in found.groups())
    assert exact in operator.get("/v1/agents/scout/log").raw.decode()
    assert json.loads(seen) == json.loads(exact)
    assert not set(steers) & set(seen)
    assert not set(steers) & set(page.replace(found[1], ""))
    assert not set(steers) & set(signed_in.get("/agents/scout/log").text)
    plain = signed_in.get("/agents/scout/log/0").text
    assert "data-exact" not in plain
    assert "steer or hide" not in plain


@pytest.mark.usefixtures("database")
def test_times_say_their_zone(signed_in: Visit, operator: Client) -> None:
    operator.create("scout")
    assert operator.post("/v1/keys", {"role": "auditor", "name": "Ada"}).status == 200
    for place in ("/agents/scout/log", "/administration", "/agents/scout", "/keys"):
        page = signed_in.get(place).text
        times = re.findall(r"<time [^>]*>([^<]+)</time>", page)
        assert times, place
        if place == "/keys":
            assert all(re.fullmatch(r"[0-9 :-]{19}", time) for time in times)
            heads = [text for text in re.findall(r'<th scope="col">([^<]+)</th>', page) if "UTC" in text]
            assert heads == ["Made (UTC)", "Expires (UTC)", "Last used (UTC)", "Made (UTC)"]
        else:
            assert all(re.fullmatch(r"[0-9 :-]{19} UTC|[0-9T:.-]+Z", time) for time in times), (place, times)


def test_t13_a_senders_time_stands_beside_ours_and_is_flagged_when_it_is_far_off(
    signed_in: Visit, operator: Client
) -> None:
    operator.create("scout", None)
    for occurred in ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", None):
        body = {"type": "t", "data": 1, "occurred_at": occurred}
        assert operator.post("/v1/agents/scout/events", body).status == 200
    node = {
        "node_id": SESSION, "parent_id": None, "node_type": "PLANNING", "name": "n", "inputs": {},
        "thought_process": None, "outputs": {}, "metadata": {"timestamp": "2021-05-05T00:00:00Z"},
    }  # fmt: skip
    tree = {"session_id": SESSION, "total_nodes": 1, "trace_tree": [node]}
    assert operator.post("/v1/agents/scout/traces", tree).status == 200
    pages = {seq: signed_in.get(f"/agents/scout/log/{seq}").text for seq in (1, 2, 3, 4)}
    assert "d behind the service" in pages[1]
    assert "d ahead of the service" in pages[2]
    assert "trace_tree[0].metadata.timestamp" in pages[4]
    assert ["Skewed clock" in pages[seq] for seq in (1, 2, 3, 4)] == [True, True, False, True]
    # Whatever they say, the log is in the order and within the days of the service's own times.
    html = signed_in.get("/agents/scout/log?since=2026-01-01").text
    assert seqs(html) == [4, 3, 2, 1, 0]
    assert html.count('<span class="tag warn">skewed clock</span>') == 3


def tamper(database: Database, change: str, agent: str = "scout", seq: int = 1) -> None:
    """A superuser changes one row."""
    with psycopg.connect(database.admin_url) as admin:
        admin.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER ALL".encode())
        for name in ("hash", "mirror", "text"):
            query = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
            for (found,) in admin.execute(query.encode(), [TABLE]).fetchall():
                admin.execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT {found}".encode())
            del name
        where = "WHERE agent_id = %s AND seq = %s"
        admin.execute(f"UPDATE {TABLE} SET {change} {where}".encode(), [agent, seq])


def test_a_record_that_does_not_verify_is_shown_as_such_and_its_chain_is_quarantined(
    signed_in: Visit, operator: Client, database: Database
) -> None:
    operator.create("scout", None)
    events(operator, "scout", 3)
    tamper(database, "signed_text = replace(signed_text, 'tick', '<b>ck')", seq=2)
    html = signed_in.get("/agents/scout/log").text
    assert html.count('<span class="tag bad">does not verify</span>') == 1
    assert "nothing of it is proven" in html
    assert "<b>ck" not in html
    assert "(content)" in signed_in.get("/agents/scout/log/2").text
    home = signed_in.get("/").text
    assert "quarantined" in home
    assert operator.get("/v1/agents/scout").status == 503
    assert "does not verify" in signed_in.get("/agents/scout").text
    # The log can be looked at all the same.
    assert seqs(signed_in.get("/agents/scout/log").text) == [3, 2, 1, 0]


def test_a_record_that_was_replaced_by_one_of_another_link_does_not_verify(
    signed_in: Visit, operator: Client, database: Database
) -> None:
    operator.create("scout", None)
    events(operator, "scout", 3)
    tamper(database, "seq = 9", seq=2)
    html = signed_in.get("/agents/scout/log/3").text
    assert "Does not verify (link)" in html


@pytest.mark.usefixtures("database")
def test_t15_looking_at_records_is_on_record_once_an_hour_for_each_key_and_agent(
    visit: Visit, operator: Client
) -> None:
    for name in ("scout", "other"):
        operator.create(name)
    visit.sign_in(key_of(operator, "auditor", "Grace"))
    for place in ("/log?kind=policy", "/log", "/log/0", "/log/1"):
        assert visit.get(f"/agents/scout{place}").status == 200
    visit.get("/agents/other/log/1")
    visit.get("/")
    visit.get("/agents/other")
    for _ in range(3):
        visit.get("/administration")
    told = administrative(operator, "viewed")
    assert [(one["actor"], one["agent_id"], one["filter"]) for one in told] == [
        ("Grace", "scout", {"kind": "policy"}),
        ("Grace", "other", {"seq": "1"}),
        ("Grace", "_administration", {}),
    ]
    assert {one["key"] for one in told} == {operator.get("/v1/keys").json["keys"][0]["key_id"]}


def test_t15_looking_at_a_session_is_on_record_and_at_none_is_not(signed_in: Visit, operator: Client) -> None:
    operator.create("scout", None)
    operator.post("/v1/agents/scout/events", {"type": "t", "data": 1, "session_id": SESSION})
    missing = SESSION.replace("1", "2")
    for session_id in (missing, SESSION, SESSION):
        signed_in.get(f"/sessions/{session_id}")
    told = administrative(operator, "viewed")
    assert [one["session"] for one in told] == [SESSION]
    session = operator.get(f"/v1/sessions/{SESSION}").json
    assert (session["agents"], session["records"]) == (["scout"], 1), "which looking at it has not changed"


def test_h17_no_page_is_kept_by_anybody(signed_in: Visit, operator: Client) -> None:
    operator.create("scout")
    named = {"{agent_id:str}": "scout", "{seq:str}": "0", "{key_id:str}": "0" * 16}
    for handler in PAGES:
        if handler.opt.get(PUBLIC) or "GET" not in handler.http_methods:
            continue
        [path] = handler.paths
        for name, value in named.items():
            path = path.replace(name, value)
        if "{" in path or path == "/approvals/stream":  # a stream does not end
            continue
        headers = signed_in.get(path).headers
        assert headers["cache-control"] == "no-store", path


@pytest.mark.usefixtures("database")
def test_the_administration_tells_each_act_in_words(visit: Visit, operator: Client) -> None:
    operator.create("scout")
    visit.sign_in(key_of(operator, "operator", "Ada"))
    operator.get("/v1/agents/scout/verify")
    issued = operator.post("/v1/keys", {"role": "writer", "name": "pipeline"}).json["key"]
    operator.send("DELETE", f"/v1/keys/{issued['key_id']}")
    operator.post("/v1/agents/scout/token/revoke", {"reason": "<lost>"})
    html = visit.get("/administration").text
    for said in (
        "created agent scout",
        "issued the operator key Ada",
        "verified scout: 2 records, intact",
        f"revoked the writer key pipeline ({issued['key_id']})",
        "revoked the token of agent scout: &lt;lost&gt;",
        "looked at records of _administration in the console",
    ):
        assert said in html, said
    only = visit.get("/administration?act=key_revoked").text
    assert len(seqs(only)) == 1
    assert len(seqs(visit.get("/administration?actor=Ada").text)) == 2, "signed in, and looked"
    assert visit.get("/agents/_administration").headers["location"] == "/administration"
    assert visit.get("/agents/_administration/log").headers["location"] == "/administration"
    assert visit.get("/agents/_administration/log/0").status == 200


@pytest.mark.usefixtures("database")
def test_a_key_is_issued_shown_once_and_revoked(signed_in: Visit, operator: Client) -> None:
    html = signed_in.get("/keys").text
    once = re.search(r'name="once" value="([^"]+)"', html)
    assert once is not None
    form = {"csrf": signed_in.csrf(), "once": once[1], "name": "night shift", "role": "auditor"}
    form |= {"agent_id": "", "expires_at": "2099-12-31"}
    shown = signed_in.post("/keys", form)
    token = re.search(r'<code id="token">(trk_[^<]+)</code>', shown.text)
    assert token is not None
    assert operator.as_(token[1]).get("/v1/agents").status == 200
    assert signed_in.post("/keys", form).status == 409
    html = signed_in.get("/keys").text
    assert "night shift" in html
    assert "2099-12-31" in html
    assert token[1] not in html
    assert operator.get("/v1/public-key").json["public_key"] in html
    [key] = operator.get("/v1/keys").json["keys"]
    place = f"/keys/{key['key_id']}/revoke"
    assert "Revoke for good" in signed_in.get(place).text
    assert signed_in.post(place, {"csrf": "x"}).status == 403
    assert signed_in.post(place, {"csrf": signed_in.csrf()}).status == 303
    assert operator.as_(token[1]).get("/v1/agents").status == 401
    assert "revoked" in signed_in.get("/keys").text
    assert signed_in.get("/keys/0000/revoke").status == 404
    for wrong in ({"role": "root"}, {"name": ""}, {"expires_at": "never"}, {"role": "agent"}):
        assert signed_in.post("/keys", {**form, "once": "x", **wrong}).status == 400, wrong


def test_every_kind_of_record_stands_in_the_log_and_by_itself(signed_in: Visit, operator: Client) -> None:
    """A log that cannot be shown for one of its records hides all of them."""
    agent = operator.create("scout")
    for number, tool in enumerate(("search", "rm", "send_email", "send_email")):
        agent.post("/v1/agents/scout/actions", {"tool": tool, "input": number})
    for place, body in {
        "act-1/outcome": {"status": "failure", "detail": "index is down"},
        "act-3/approve": {"approver": "alice", "note": "fine"},
        "act-3/claim": {"tool": "send_email", "input": 2},
        "act-4/reject": {"approver": "bob", "reason": "no", "scar": "minor"},
    }.items():
        assert operator.post(f"/v1/agents/scout/actions/{place}", body).status == 200, place
    events(operator, "scout", 1, occurred_at="2026-01-01T00:00:00Z")
    operator.post("/v1/agents/scout/traces", fragment(node()))
    operator.post("/v1/agents/scout/terminate", {"reason": "done", "by": "alice"})
    agent.post("/v1/agents/scout/actions", {"tool": "search"})
    records = operator.get("/v1/agents/scout/log").json["records"]
    kinds = {record["kind"] for record in records}
    assert kinds >= {*GUARD_ACTION_KINDS, "genesis", "policy", "scar", "terminated", "event", "trace"}, kinds
    page = signed_in.get("/agents/scout/log").text
    assert seqs(page) == [record["seq"] for record in reversed(records)]
    for words in ("tool_not_allowed", "terminated", "index is down", "send_email", "fine", "tick", "1 nodes"):
        assert words in page, words
    for record in records:
        alone = signed_in.get(f"/agents/scout/log/{record['seq']}")
        assert alone.status == 200, record["kind"]
        assert record["hash"] in alone.text
