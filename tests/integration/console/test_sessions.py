"""Finding sessions: everything by the address, each session once in a walk (case H33)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from app.console.telling import NONE, amount, count, length
from app.ledger.session_reading import Limits
from tests.integration.console.browser import Shown, Visit
from tests.integration.console.reading import Shape, table
from tests.integration.console.story import Told, told
from tests.integration.http.client import Client
from tests.integration.http.posting import fragment, node
from tests.integration.http.serving import Running
from tests.support.cookbook_world import NESTED, NOTES, PLAN, RUN

__all__ = ["told"]


def listed(shown: Shown) -> list[str]:
    """Ids of the sessions of a page."""
    assert shown.status == 200, shown.text
    return re.findall(r'href="/sessions/([0-9a-f-]{36})"', shown.text)


def older(shown: Shown) -> str | None:
    found = re.search(r'href="([^"]+)" rel="next"', shown.text)
    return None if found is None else html.unescape(found[1])


def walk(visit: Visit, path: str) -> Iterator[list[str]]:
    """Pages, one after the other."""
    place: str | None = path
    for _ in range(100):
        assert place is not None
        shown = visit.get(place)
        yield listed(shown)
        place = older(shown)
        if place is None:
            return
    pytest.fail("the walk does not end")


def test_sessions_are_counted_as_in_the_account(told: Told) -> None:
    shown = told.visit.get("/sessions")
    Shape(shown.text)
    rows = {row[1]: row for row in table(shown.text, "<caption")}
    sessions = told.world.sessions()
    assert rows.keys() == sessions.keys()
    calls, failed = told.world.calls(), told.world.failed()
    for session, nodes in sessions.items():
        counts = (
            len(nodes),
            sum(one.session == session for one in calls),
            sum(one.session == session for one in failed),
        )
        assert tuple(map(int, rows[session][4:7])) == counts, session


def test_tokens_and_cost_leave_out_what_is_said_twice(told: Told) -> None:
    rows = {row[1]: row for row in table(told.visit.get("/sessions").text, "<caption")}
    assert rows[PLAN][7:] == ["132", "7.5"]
    assert rows[PLAN][3] == "3.08 s"
    assert rows[RUN][7:] == [NONE, NONE]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("agent=buyer", {RUN}),
        ("tool=fetch", {PLAN, NOTES, NESTED}),
        ("tool=fetch&status=success", {PLAN}),
        ("node_type=SELF_CORRECTION", {PLAN}),
        ("status=denied", {RUN}),
        ("since=2026-01-02&until=2026-01-03", {NOTES}),
        ("agent=buyer&tool=&status=&node_type=&since=&until=&session=", {RUN}),
        ("tool=nothing", set()),
    ],
)
def test_a_search_is_its_address(told: Told, query: str, wanted: set[str]) -> None:
    shown = told.visit.get(f"/sessions?{query}")
    assert set(listed(shown)) == wanted
    for name, _, value in (pair.partition("=") for pair in query.split("&")):
        assert f'name="{name}" value="{value}"' in shown.text


def test_a_whole_id_opens_its_session(told: Told) -> None:
    shown = told.visit.get(f"/sessions?session={RUN.upper()}")
    assert (shown.status, shown.headers["location"]) == (303, f"/sessions/{RUN}")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("session=5e55", "session: must be a whole id"),
        ("agent=a%20b", "agent_id: must have"),
        ("since=today", "since: must be a day"),
        ("node_type=call", "node_type: must match"),
        ("after=2026", "after: must be the next"),
        ("after=x%2C" + RUN, "after: must"),
    ],
)
def test_h33_what_cannot_be_asked_is_said_beside_the_form(told: Told, query: str, said: str) -> None:
    shown = told.visit.get(f"/sessions?{query}")
    assert shown.status == 400
    assert said in shown.text
    assert 'name="tool"' in shown.text


@pytest.mark.parametrize("query", ["limit=9", "agnet=buyer", "agent=a&agent=b", "after=1&after=2"])
def test_h33_fields_that_mean_nothing_or_two_things_are_refused(told: Told, query: str) -> None:
    assert told.visit.get(f"/sessions?{query}").status == 400


def test_h33_every_session_stands_once_in_a_walk(signed_in: Visit, operator: Client) -> None:
    agent = operator.create("mailer", None)
    made = []
    for number in range(120):
        made.append(str(uuid4()))
        sent = fragment(node(number), session_id=made[-1])
        assert agent.post("/v1/agents/mailer/traces", sent).status == 200
    pages = list(walk(signed_in, "/sessions?agent=mailer&tool=search"))
    assert [len(page) for page in pages[:2]] == [50, 50]
    assert [session for page in pages for session in page] == made[::-1]


def test_an_empty_page_says_that_it_looked(service: Running, signed_in: Visit, operator: Client) -> None:
    agent = operator.create("mailer", None)
    made = [str(uuid4()) for _ in range(7)]
    for number, session in enumerate(made):
        sent = fragment(node(number, name="search" if number else "rare"), session_id=session)
        assert agent.post("/v1/agents/mailer/traces", sent).status == 200
    # The service looks at 5,000 records a page; two are enough to see it.
    service.app.services.ledger._sessions._limits = Limits(looked_at=2)
    first = signed_in.get("/sessions?tool=rare")
    assert listed(first) == []
    assert "go on" in first.text
    pages = list(walk(signed_in, "/sessions?tool=rare"))
    assert len(pages) > 2
    assert [found for page in pages for found in page] == [made[0]]


def test_nobody_else_sees_them(told: Told) -> None:
    assert Visit(told.service.url).get("/sessions").status == 303


def test_sums_are_those_of_the_view(told: Told) -> None:
    rows = {row[1]: row for row in table(told.visit.get("/sessions").text, "<caption")}
    with psycopg.connect(told.database.admin_url) as connection:
        found = connection.execute(
            "SELECT session_id::text, total_tokens, cost, ended_at - started_at FROM trails.sessions"
        ).fetchall()
    assert {session: [length(ran), count(tokens), amount(cost)] for session, tokens, cost, ran in found} == {
        session: [row[3], *row[7:]] for session, row in rows.items()
    }
