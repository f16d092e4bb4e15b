"""Every link of the console leads to a page, from the first one on, whatever is on record."""

from __future__ import annotations

import re
from collections import deque
from html import unescape
from typing import Final
from urllib.parse import urldefrag

from tests.integration.console.browser import Visit
from tests.integration.console.conftest import key_of
from tests.integration.console.story import Told, told
from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node
from tests.support import otlp
from tests.support.spans import protobuf, tool

__all__ = ["told"]

MOST: Final = 400
"""Pages that are looked at: all of a small world, and of a larger one those next to the first page."""

_LINK: Final = re.compile(r'\b(?:href|hx-get|src)="(/[^"]*)"')


def walk(visit: Visit) -> dict[str, int]:
    """Status by address of what can be reached by links alone."""
    waiting, found = deque(["/"]), dict[str, int]()
    known = {"/"}
    while waiting and len(found) < MOST:
        place = waiting.popleft()
        answer = visit.get(place)
        found[place] = answer.status
        if not answer.headers.get("content-type", "").startswith("text/html"):
            continue
        for link in _LINK.findall(answer.text):
            to = urldefrag(unescape(link)).url
            if to not in known and not to.startswith(("/static/", "/guides", "/approvals/stream")):
                known.add(to)
                waiting.append(to)
    return found


def wrong(found: dict[str, int]) -> dict[str, int]:
    return {place: status for place, status in found.items() if status not in {200, 303}}


def test_every_link_of_a_world_with_all_kinds_of_records(signed_in: Visit, operator: Client) -> None:
    agent = operator.create("scout")
    for number, name in enumerate(("search", "search", "rm", "send_email", "send_email", "send_email")):
        agent.post("/v1/agents/scout/actions", {"tool": name, "input": number, "session_id": SESSION})
    for place, body in {
        "actions/act-1/outcome": {"status": "failure", "detail": "index is down"},
        "actions/act-2/outcome": {"status": "unknown", "detail": ""},
        "actions/act-4/approve": {"approver": "alice", "note": "fine"},
        "actions/act-4/claim": {"tool": "send_email", "input": 3},
        "actions/act-5/reject": {"approver": "bob", "reason": "no", "scar": "minor"},
        "scars": {"severity": "minor", "reason": "rude", "action_id": "act-4"},
        "events": {"events": [{"type": "tick", "data": {"a": [1]}, "occurred_at": "2026-01-01T00:00:00Z"}]},
        "traces": fragment(node(1), node(2, 1, outputs={"status": "failed"}), session_id=SESSION),
    }.items():
        assert operator.post(f"/v1/agents/scout/{place}", body).status == 200, place
    operator.create("ended")
    operator.post("/v1/agents/ended/terminate", {"reason": "done", "by": "alice"})
    operator.create("seen", None)
    otlp.post(operator, protobuf(tool("search")))
    key_of(operator, "auditor")
    found = walk(signed_in)
    assert wrong(found) == {}
    for place in ("/agents/scout/log", "/approvals/scout/act-6", f"/sessions/{SESSION}", "/keys"):
        assert place in found, sorted(found)


def test_every_link_of_the_story(told: Told) -> None:
    assert wrong(walk(told.visit)) == {}
