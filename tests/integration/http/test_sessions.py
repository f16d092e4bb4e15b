"""Sessions: found by time, each once in a walk (case H33), and read from records that verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.integration.http.client import Client
from tests.integration.http.posting import SESSION, fragment, node, node_id
from tests.support.postgres import Database
from tests.support.sharing import service, shared

__all__ = ["service", "shared"]

TRAIL = "trails.agent_audit_trails"


def post(client: Client, *nodes: dict[str, Any], agent: str = "mailer", session: str = SESSION) -> Any:
    reply = client.post(f"/v1/agents/{agent}/traces", fragment(*nodes, session_id=session))
    assert reply.status == 200, reply.raw
    return reply.json


def listed(client: Client, query: str = "") -> list[str]:
    """Ids of the sessions of one page."""
    reply = client.get(f"/v1/sessions{query}")
    assert reply.status == 200, reply.raw
    return [entry["session_id"] for entry in reply.json["sessions"]]


def walk(client: Client, query: str) -> Iterator[list[str]]:
    """Pages of sessions, one after the other."""
    after = ""
    while True:
        page = client.get(f"/v1/sessions?{query}{after}").json
        yield [entry["session_id"] for entry in page["sessions"]]
        if page["next"] is None:
            return
        after = f"&after={page['next']}"


def tamper(database: Database, statement: str, *arguments: Any) -> None:
    """A superuser's statement, past everything that the database checks."""
    with psycopg.connect(database.admin_url) as connection:
        connection.execute(f"ALTER TABLE {TRAIL} DISABLE TRIGGER ALL".encode())
        for (name,) in connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'", (TRAIL,)
        ).fetchall():
            connection.execute(f"ALTER TABLE {TRAIL} DROP CONSTRAINT {name}".encode())
        changed = connection.execute(statement.encode(), arguments)
        assert changed.rowcount == 1


@pytest.fixture
def agents(operator: Client) -> tuple[Client, Client]:
    """Two observed agents, ``mailer`` and ``planner``."""
    return operator.create("mailer", None), operator.create("planner", None)


@pytest.fixture
def many(operator: Client, agents: tuple[Client, Client]) -> list[str]:
    """Seven sessions of ``mailer``, newest first."""
    del agents
    made = [str(uuid4()) for _ in range(7)]
    for number, session in enumerate(made):
        post(operator, node(number), session=session)
    return made[::-1]


# --- one session ------------------------------------------------------------------------------------


def test_the_tree_of_several_agents_is_one(operator: Client, agents: tuple[Client, Client]) -> None:
    mailer, planner = agents
    child = post(mailer, node(2, 1, name="search", outputs={"status": "failed"}))
    root = post(planner, node(1, node_type="PLANNING", name="plan"), agent="planner")
    session = operator.get(f"/v1/sessions/{SESSION.upper()}").json
    assert session["agents"] == ["mailer", "planner"]
    assert {name: session[name] for name in ("records", "total_nodes", "depth", "roots", "orphans")} == {
        "records": 2,
        "total_nodes": 2,
        "depth": 2,
        "roots": 1,
        "orphans": 0,
    }
    assert (session["unverified"], session["unverified_records"], session["next"]) == ([], 0, None)
    first, second = session["nodes"]
    sent = node(2, 1, name="search", outputs={"status": "failed"})
    assert {name: second[name] for name in sent} == sent
    assert second["record"] == {"agent_id": "mailer", "seq": child["seq"], "hash": child["hash"]}
    assert second["recorded_at"] == child["timestamp"]
    assert first["record"]["hash"] == root["hash"]
    assert [first["depth"], second["depth"]] == [1, 2]
    outlined = {"node_id": node_id(2), "name": "search", "node_type": "TOOL_CALL", "status": "failed"}
    assert session["tree"][0]["children"] == [{**outlined, "children": []}]


def test_members_that_are_not_ours_stand_apart(operator: Client, agents: tuple[Client, Client]) -> None:
    post(agents[0], node(1, depth="deep", record=[1.0, 2**70]))
    raw = operator.get(f"/v1/sessions/{SESSION}").raw
    [found] = json.loads(raw)["nodes"]
    assert found["further"] == {"depth": "deep", "record": [1, 2**70]}
    assert found["depth"] == 1
    assert str(2**70).encode() in raw


def test_what_the_guard_recorded_cannot_be_painted_over(operator: Client) -> None:
    agent = operator.create("mailer")
    asked = agent.post("/v1/agents/mailer/actions", {"tool": "rm", "session_id": SESSION}).json
    assert asked["decision"] == "denied"
    [denied] = operator.get(f"/v1/sessions/{SESSION}").json["nodes"]
    post(agent, {**node(1), "node_id": denied["node_id"]})
    session = operator.get(f"/v1/sessions/{SESSION}").json
    [found] = session["nodes"]
    assert (found["outputs"]["status"], found["conflict"], found["record"]) == (
        "denied",
        True,
        denied["record"],
    )
    assert session["records"] > 2, "the request and the denial are records of the session, too"


@pytest.mark.parametrize(("column", "said"), [("signed_text", "search"), ("actor", "mailer")])
def test_a_record_that_does_not_verify_is_told_and_left_out(
    operator: Client, agents: tuple[Client, Client], database: Database, column: str, said: str
) -> None:
    mailer, planner = agents
    good = post(planner, node(1), agent="planner")
    bad = post(mailer, node(2, 1, name="search"))
    change = f"UPDATE {TRAIL} SET {column} = replace({column}, %s, 'x') WHERE hash = %s"
    tamper(database, change, said, bad["hash"])
    session = operator.get(f"/v1/sessions/{SESSION}").json
    assert [found["record"]["hash"] for found in session["nodes"]] == [good["hash"]]
    [doubt] = session["unverified"]
    assert (doubt["agent_id"], doubt["seq"], session["unverified_records"]) == ("mailer", bad["seq"], 1)
    assert doubt["reason"]
    assert (session["records"], session["agents"]) == (2, ["planner"])


def test_a_row_that_names_another_agent_is_told(
    operator: Client, agents: tuple[Client, Client], database: Database
) -> None:
    bad = post(agents[0], node(1))
    for name, expected in (("planner", "columns differ"), ("nobody", "registry does not know")):
        tamper(database, f"UPDATE {TRAIL} SET agent_id = %s WHERE hash = %s", name, bad["hash"])
        session = operator.get(f"/v1/sessions/{SESSION}").json
        assert (session["nodes"], session["agents"]) == ([], [])
        assert expected in session["unverified"][0]["reason"]


def test_unknown_sessions_and_chains_without_one_are_404(operator: Client) -> None:
    agent = operator.create("mailer")
    agent.post("/v1/agents/mailer/actions", {"tool": "rm"})
    log_uuid = agent.get("/v1/agents/mailer").json["log_uuid"]
    for session in (SESSION, log_uuid):
        reply = operator.get(f"/v1/sessions/{session}")
        assert (reply.status, reply.json["code"]) == (404, "not_found"), session
    assert listed(operator) == []


@pytest.mark.parametrize(
    "session", ["x", "0b8f7c1e6a0b4a1f9d3c5e7a9b1d3f50", SESSION + "0", "%7B" + SESSION[1:]]
)
def test_an_id_that_is_no_uuid_is_refused(operator: Client, session: str) -> None:
    reply = operator.get(f"/v1/sessions/{session}")
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "session_id" in reply.json["error"]


def test_h33_a_walk_over_nodes_gives_each_once_also_while_the_session_grows(
    operator: Client, agents: tuple[Client, Client]
) -> None:
    post(agents[0], *(node(number, number - 1 if number else None) for number in range(7)))
    seen: list[str] = []
    after = ""
    while True:
        page = operator.get(f"/v1/sessions/{SESSION}?limit=3{after}").json
        seen += [found["node_id"] for found in page["nodes"]]
        assert (page["total_nodes"], page["tree"]) == (7, None)
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
        post(agents[1], node(100 + len(seen), 0), agent="planner")
    assert seen == [node_id(number) for number in range(7)]
    assert operator.get(f"/v1/sessions/{SESSION}").json["total_nodes"] == 9


def test_h33_a_walk_whose_records_changed_is_refused_instead_of_going_wrong(
    operator: Client, agents: tuple[Client, Client], database: Database
) -> None:
    first = post(agents[0], node(1))
    post(agents[0], node(2))
    page = operator.get(f"/v1/sessions/{SESSION}?limit=1").json
    tamper(database, f"DELETE FROM {TRAIL} WHERE hash = %s", first["hash"])
    reply = operator.get(f"/v1/sessions/{SESSION}?limit=1&after={page['next']}")
    assert (reply.status, reply.json["code"]) == (409, "conflict")
    assert "start the walk again" in reply.json["error"]


@pytest.mark.parametrize(
    "after",
    [
        "",
        "1",
        "x,y,z",
        "-1,2026-01-01T00:00:00.000000Z,0123456789abcdef",
        "1,yesterday-and-so-on,0123456789abcdef",
    ],
)
def test_h33_an_edited_place_in_a_session_is_refused(
    operator: Client, agents: tuple[Client, Client], after: str
) -> None:
    post(agents[0], node(1))
    reply = operator.get(f"/v1/sessions/{SESSION}?after={after}")
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert "after" in reply.json["error"]


# --- the list ---------------------------------------------------------------------------------------


def test_an_entry_counts_what_the_session_holds(operator: Client, agents: tuple[Client, Client]) -> None:
    mailer, planner = agents
    first = post(mailer, node(1, node_type="PLANNING"), node(2, 1, outputs={"status": "failed"}))
    last = post(planner, node(3, 1), node(4, 1, metadata={"nested_in": node_id(3)}), agent="planner")
    assert operator.get("/v1/sessions").json == {
        "sessions": [
            {
                "session_id": SESSION,
                "agents": ["mailer", "planner"],
                "records": 2,
                "nodes": 4,
                "tool_calls": 2,
                "failed_tool_calls": 1,
                "first_recorded_at": first["timestamp"],
                "last_recorded_at": last["timestamp"],
            }
        ],
        "next": None,
    }


def test_sessions_are_filtered_by_who_what_and_when(operator: Client, agents: tuple[Client, Client]) -> None:
    mailer, planner = agents
    ids = {name: str(uuid4()) for name in ("failed", "both", "plain")}
    times = {
        "failed": post(mailer, node(1, outputs={"status": "failed"}), session=ids["failed"])["timestamp"]
    }
    both = [
        node(1, name="fetch", outputs={"status": "failed"}),
        node(2, name="search"),
        node(3, node_type="OUTPUT"),
    ]
    times["both"] = post(mailer, *both, session=ids["both"])["timestamp"]
    post(planner, node(9), agent="planner", session=ids["both"])
    times["plain"] = post(planner, node(1, name="plän"), agent="planner", session=ids["plain"])["timestamp"]

    def names(query: str) -> list[str]:
        by_id = {session: name for name, session in ids.items()}
        return [by_id[session] for session in listed(operator, query)]

    assert names("") == ["plain", "both", "failed"]
    assert names("?agent=planner") == ["plain", "both"]
    assert names("?agent=nobody") == []
    assert names("?status=failed") == ["both", "failed"]
    assert names("?status=failed&tool=search") == ["failed"], "one node has both, not two nodes one each"
    assert names("?tool=pl%C3%A4n") == ["plain"]
    assert names("?tool=fetch&node_type=OUTPUT") == []
    assert names("?node_type=OUTPUT&agent=mailer") == ["both"]
    assert names(f"?since={times['both']}") == ["plain", "both"]
    assert names(f"?until={times['both']}") == ["failed"]
    assert names(f"?since={times['both']}&until={times['plain']}") == ["both"]


def test_a_day_is_its_start_in_utc(operator: Client, agents: tuple[Client, Client]) -> None:
    recorded = datetime.fromisoformat(post(agents[0], node())["timestamp"]).astimezone(UTC).date()
    before, after = recorded - timedelta(days=1), recorded + timedelta(days=1)
    assert listed(operator, f"?since={recorded}") == listed(operator, f"?until={after}") == [SESSION]
    assert listed(operator, f"?since={before}&until={after}") == [SESSION]
    assert listed(operator, f"?since={after}") == listed(operator, f"?until={recorded}") == []


def test_a_plus_that_a_url_turned_into_a_space_is_explained(operator: Client) -> None:
    refused = operator.get("/v1/sessions?since=2026-01-01T00:00:00+02:00")
    assert (refused.status, "%2B" in refused.json["error"]) == (400, True)
    assert operator.get("/v1/sessions?since=2026-01-01T00:00:00%2B02:00").status == 200


def test_a_status_that_was_sent_and_replaced_finds_nothing(
    operator: Client, agents: tuple[Client, Client]
) -> None:
    post(agents[0], node(1, outputs={"status": "failed"}))
    assert listed(operator, "?status=failed") == [SESSION]
    post(agents[0], node(1, outputs={"status": "success"}))
    assert listed(operator, "?status=failed") == []


def test_h33_a_walk_sees_every_session_once_while_sessions_come_and_grow(
    operator: Client, many: list[str]
) -> None:
    pages = []
    for page in walk(operator, "limit=3"):
        pages.append(page)
        post(operator, node(500 + len(pages)), session=str(uuid4()))
        for session in many:
            post(operator, node(100 + len(pages)), session=session)
    assert [session for page in pages for session in page] == many
    assert [len(page) for page in pages] == [3, 3, 1]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=1e9",
        "limit=x",
        "limit=1&limit=2",
        "after=",
        "after=x",
        f"after=,{SESSION}",
        f"after=2026-13-01T00:00:00Z,{SESSION}",
        "after=2026-01-01T00:00:00Z,x",
        "since=2026-02-30",
        "since=yesterday",
        "until=2026-1-1",
        "since=",
        "until=2026-01-01T00:00:00",
        "agent=a%20b",
        "node_type=tool_call",
        "status=",
        "tool=",
        "failed=true",
        "tenant=default",
    ],
)
def test_h33_a_query_that_is_none_is_refused(operator: Client, query: str) -> None:
    reply = operator.get(f"/v1/sessions?{query}")
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert query.partition("=")[0] in reply.json["error"]


@pytest.mark.parametrize("limit", ["500", "501", "1000000000", "9999999999999999999"])
def test_h33_a_limit_above_the_most_is_the_most(operator: Client, many: list[str], limit: str) -> None:
    assert listed(operator, f"?limit={limit}") == many
