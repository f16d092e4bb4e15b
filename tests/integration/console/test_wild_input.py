"""Whatever is typed or sent: every field of every form and address, and every name that an agent chooses.

No page fails, nothing that was written acts, and nothing steers or hides text (cases H21 and H23).
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest

from app.console.json_text import visible
from app.console.pages import PAGES
from tests.integration.console.browser import Shown, Visit
from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node, node_id
from tests.support.faults import FULL, rounds
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

WILD: Final = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 6151*7919 }}{% include 'layout.html' %}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066\u200b",
    "👩\u200d👩\u200d👧 ünï שלום مرحبا",
    "a\x00b",
    "x\r\nSet-Cookie: a=b\x1b[31m\u0085\u2028",
    "n" * 1_000,
    "=HYPERLINK(1)",
    "../../etc/passwd",
    "%00%2e%2e%252f",
    "\U0010ffff\ufffe",
)
STEERS: Final = frozenset("\u202e\u2066\u200b\u0085\u2028\x00\x1b\U0010ffff\ufffe")


class _Outside(HTMLParser):
    """The text that a page shows, but for what somebody typed into its own field."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.acts: list[str] = []
        self._in_field = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._in_field = tag == "textarea"
        if tag in {"script", "img", "link"}:
            source = str(named.get("src") or named.get("href"))
            if not source.startswith("/static/"):
                self.acts.append(f"{tag} {source}")
        self.acts += [name for name in named if name.startswith("on") or name == "style"]
        place = named.get("href")
        if tag == "a" and place is not None and not re.match(r"/(?![/\\])|[?#]|$", place):
            self.acts.append(place)

    def handle_endtag(self, _tag: str) -> None:
        self._in_field = False

    def handle_data(self, data: str) -> None:
        if not self._in_field:
            self.text.append(data)


def judge(shown: Shown, what: object) -> str:
    """Fails unless an answer is a page in order that shows text as text; returns what it shows."""
    assert shown.status < 500, (what, shown.text)
    assert "a=b" not in shown.headers.get("set-cookie", ""), what
    page = _Outside(shown.text)
    assert page.acts == [], what
    text = "".join(page.text)
    assert not STEERS & set(text), (what, STEERS & set(text))
    assert "48709769" not in text, what
    return text


@pytest.fixture
def scout(operator: Client) -> Client:
    """An agent with something behind every page."""
    agent = operator.create(
        "scout",
        {"budget": 50, "scar_limit": 90, "tools": {}, "default_rule": {"cost": 1, "requires_approval": True}},
    )
    agent.post("/v1/agents/scout/actions", {"tool": "send_email", "session_id": SESSION})
    return agent


NAMED: Final = {
    "{agent_id:str}": "scout",
    "{action_id:str}": "act-1",
    "{session_id:str}": SESSION,
    "{seq:str}": "1",
    "{key_id:str}": "0" * 16,
    "{name:str}": "console.css",
}
QUERIES: Final = (
    "q", "state", "order", "before", "after", "agent", "tool", "status", "node_type", "since", "until",
    "session", "node", "of", "failed", "type", "from", "open", "kind", "actor", "action", "act", "seq",
    "run", "checkpoint", "misses", "next", "x\u202e<b>",
)  # fmt: skip


def paths(method: str) -> list[str]:
    found = []
    for handler in PAGES:
        if method in handler.http_methods:
            [path] = handler.paths
            for name, value in NAMED.items():
                path = path.replace(name, value)
            found.append(path)
    return [path for path in found if path not in {"/approvals/stream", "/export.zip", "/guides/api"}]


@pytest.mark.usefixtures("scout")
@pytest.mark.parametrize("shift", range(rounds(1, len(WILD))))
def test_h23_whatever_an_address_asks_for_is_answered_in_words(signed_in: Visit, shift: int) -> None:
    """Every field of every page with some of it, in the long form with all of it."""
    wild = itertools.islice(itertools.cycle(WILD), shift, None)
    for path in paths("GET"):
        for field in QUERIES:
            address = f"{path}?{quote(field)}={quote(next(wild))}"
            judge(signed_in.get(address), address)
        for place in range(2, len(path.split("/"))):
            parts = path.split("/")
            parts[place] = quote(next(wild), safe="")
            judge(signed_in.get("/".join(parts)), parts)


FORM_FIELDS: Final = (
    "decision", "note", "reason", "scar", "seen", "severity", "action_id", "agent_id", "once", "role", "name",
    "expires_at", "x\u202e<b>",
)  # fmt: skip
SOUND: Final = {
    "decision": "reject",
    "reason": "no",
    "seen": "0" * 64,
    "severity": "minor",
    "agent_id": "",
    "role": "auditor",
    "name": "Ada",
}


@pytest.mark.usefixtures("scout")
@pytest.mark.parametrize("shift", range(rounds(1, len(WILD))))
def test_h23_whatever_a_form_holds_is_answered_in_words(
    signed_in: Visit, operator: Client, shift: int
) -> None:
    wild = itertools.islice(itertools.cycle(WILD), shift, None)
    csrf = signed_in.csrf()
    for path in paths("POST"):
        if path in {"/sign-out", "/sign-in"}:
            continue
        for field in FORM_FIELDS:
            once = f"{path} {field}"
            shown = signed_in.post(path, {**SOUND, "once": once, "csrf": csrf, field: next(wild)})
            judge(shown, (path, field))
    for page in ("/", "/agents/scout", "/agents/scout/log", "/administration", "/keys", "/approvals"):
        judge(signed_in.get(page), page)
    for record in operator.get("/v1/agents/scout/log").json["records"]:
        judge(signed_in.get(f"/agents/scout/log/{record['seq']}"), record)


@pytest.mark.usefixtures("scout")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"&&&",
        b"=",
        b"%",
        b"%zz=1",
        b"csrf=%ff",
        b"csrf=%ed%a0%80",
        "csrf=é".encode(),
        b"csrf=a&csrf=b",
        b"&".join(b"f%d=1" % number for number in range(50)),
        b"reason=" + b"x" * 70_000,
        b'{"csrf": 1}',
    ],
    ids=range(12),
)
def test_what_is_no_form_is_refused(signed_in: Visit, body: bytes) -> None:
    for path in paths("POST"):
        shown = signed_in._send("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})
        assert shown.status in {400, 401, 403, 413, 429}, (path, body[:40], shown.status)
        judge(shown, path)


def test_a_reason_is_on_record_as_it_was_typed(signed_in: Visit, scout: Client) -> None:
    reason = "not\r\nthis \u202e<b>👩\u200d👧</b> " + "n" * 1_000
    page = signed_in.get("/approvals/scout/act-1").text
    found = re.search(r'name="seen" value="([^"]+)"', page)
    assert found is not None
    form = {"csrf": signed_in.csrf(), "seen": found[1], "decision": "reject", "reason": reason}
    shown = signed_in.post("/approvals/scout/act-1", form)
    assert shown.status == 303, shown.text
    told = scout.get("/v1/agents/scout/actions/act-1").json
    assert told["reason"]["reason"] == reason.replace("\r\n", "\n")
    text = judge(signed_in.get("/approvals/scout/act-1"), "decided")
    assert visible("\u202e<b>👩\u200d👧</b>") in text


@pytest.mark.parametrize("wild", WILD if FULL else WILD[::3])
def test_h23_whatever_an_agent_calls_things_is_shown_as_text(
    signed_in: Visit, operator: Client, scout: Client, wild: str
) -> None:
    answers = [
        scout.post("/v1/agents/scout/actions", {"tool": wild[:128], "input": {wild: wild}}),
        scout.post("/v1/agents/scout/events", {"type": wild[:128], "data": {wild: [wild]}}),
        scout.post(
            "/v1/agents/scout/traces",
            fragment(
                node(1, name=wild, outputs={"status": "failed", "error": wild}, node_type=wild),
                node(2, 1, name=wild, outputs={"status": wild}, metadata={"model": wild, wild: wild}),
            ),
        ),
        operator.post("/v1/agents/scout/scars", {"severity": "minor", "reason": wild}),
        operator.post("/v1/agents/scout/token/revoke", {"reason": wild}),
    ]
    assert all(answer.status < 500 for answer in answers), [answer.raw for answer in answers]
    places = [
        "/",
        "/agents/scout",
        "/agents/scout/log",
        "/administration",
        "/approvals",
        "/approvals/scout/act-2",
        "/sessions",
        f"/sessions/{SESSION}",
        f"/sessions/{SESSION}?node={node_id(1)}",
        f"/sessions/{SESSION}?node={node_id(2)}",
        "/failures",
        "/agents/scout/terminate",
        *(f"/agents/scout/log/{seq}" for seq in range(8)),
    ]
    for place in places:
        judge(signed_in.get(place), place)


FORMULAS: Final = (
    "=HYPERLINK(1)", "+1", "-1+cmd", "@SUM(1)", "\t=1", "\r=1", " =1", "\uff1d1", 'a"b', "a,b\nc", '=1,2"\n',
)  # fmt: skip


def test_h24_the_table_of_failures_holds_no_formula(signed_in: Visit, operator: Client) -> None:
    operator.create("mailer", None)
    nodes = [
        node(number, None, name=text, outputs={"status": "failed", "error": {"message": text}})
        for number, text in enumerate(FORMULAS)
    ]
    assert operator.post("/v1/agents/mailer/traces", fragment(*nodes)).status == 200
    shown = signed_in.get("/export/failures.csv?" + urlencode({"agent": "mailer"}))
    assert shown.status == 200
    rows = [row for row in csv.reader(io.StringIO(shown.text)) if "mailer" in row]
    assert len(rows) == len(FORMULAS)
    assert len({len(row) for row in rows}) == 1
    for row in rows:
        for cell in row:
            is_number = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", cell)
            assert is_number or not re.match(r"[\s\ufeff]*[=+@\uff1d\uff0b\uff20-]", cell), cell
    line = next(
        json.loads(line)
        for line in signed_in.get("/agents/mailer/export.jsonl").text.splitlines()
        if '"kind":"trace"' in line
    )
    tree: list[Any] = line["payload"]["trace_tree"]
    assert [one["name"] for one in tree] == list(FORMULAS), "what was signed stays"
