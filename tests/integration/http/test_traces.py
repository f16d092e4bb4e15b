"""POST …/traces: fragments are kept as sent, or refused by node and member; batches line by line."""

from __future__ import annotations

import json
import threading
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from app.http.posted import MAX_ITEMS, MAX_VALUES
from app.trace.fragment import MAX_NODES
from tests.integration.http.client import Client
from tests.integration.http.posting import (
    SESSION,
    TRACES,
    fragment,
    head,
    node,
    node_id,
    post_lines,
    recorded,
    results,
)
from tests.integration.http.serving import Running
from tests.support.postgres import Database
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]


@pytest.fixture
def agent(operator: Client) -> Client:
    return operator.create("mailer", None)


def refused(operator: Client, body: bytes, words: str = "") -> dict[str, Any]:
    """A document is refused alone and in a batch, where the line beside it is stored; nothing else is."""
    before = head(operator)
    reply = operator.post_raw(TRACES, body)
    assert (reply.status, reply.json["code"]) == (400, "bad_request"), reply.raw
    assert words in reply.json["error"], reply.raw
    assert head(operator) == before
    bad, good = results(post_lines(operator, TRACES, [body.replace(b"\n", b" "), fragment()]))
    assert (bad["line"], bad["status"], bad["code"]) == (1, 400, "bad_request")
    assert words in bad["error"]
    assert (good["line"], good["status"], good["seq"]) == (2, 200, before["seq"] + 1)
    return dict(reply.json)


def with_inputs(raw: bytes) -> bytes:
    """A fragment whose first node has these inputs, written as they stand."""
    return json.dumps(fragment(node(inputs="HERE"))).encode().replace(b'"HERE"', raw)


# --- one fragment ---------------------------------------------------------------------------------------


def test_a_fragment_is_on_record_as_sent(operator: Client, agent: Client) -> None:
    sent = fragment(
        node(1), node(2, 1, mine=[1]), node(3, 99), further={"a": None}, session_id=SESSION.upper()
    )
    reply = agent.post(TRACES, sent)
    (record,) = recorded(operator, "trace")
    assert record["payload"] == sent
    assert record["actor"] == "mailer"
    assert reply.json == {
        "agent_id": "mailer",
        "session_id": SESSION,
        "nodes": 3,
        "seq": record["seq"],
        "hash": record["hash"],
        "timestamp": record["timestamp"],
    }
    assert head(operator) == {"seq": record["seq"], "hash": record["hash"]}


def test_members_are_kept_whatever_they_are_called(operator: Client, agent: Client) -> None:
    sent = fragment(
        node(action_id="act-1", kind="outcome"), action_id="act-1", joined=True, type="x", data=[]
    )
    assert agent.post(TRACES, sent).status == 200
    assert recorded(operator, "trace")[0]["payload"] == sent


def test_what_an_agent_posts_never_speaks_of_a_guarded_action(operator: Client) -> None:
    agent = operator.create("mailer")
    assert (
        agent.post(TRACES, fragment(action_id="act-1", tool="search", cost=0, status="allowed")).status == 200
    )
    assert agent.get("/v1/agents/mailer/actions/act-1").status == 404
    assert agent.post("/v1/agents/mailer/actions", {"tool": "search"}).json["action_id"] == "act-1"
    assert agent.get("/v1/agents/mailer/actions/act-1").json["status"] == "allowed"
    assert operator.get("/v1/agents/mailer/verify").json["ok"] is True


@pytest.mark.parametrize(
    ("sent", "field", "words"),
    [
        (fragment(total_nodes=2), "total_nodes", "1"),
        (fragment(total_nodes=True), "total_nodes", "1"),
        (fragment(session_id="x"), "session_id", "UUID"),
        (fragment(idempotency={}), "idempotency", "Idempotency-Key"),
        ({"session_id": SESSION, "total_nodes": 0, "trace_tree": []}, "trace_tree", "at least one"),
        (fragment(node(1), node(1)), "trace_tree[1].node_id", node_id(1)),
        (fragment(node(1, 2), node(2, 1)), "trace_tree[0].parent_id", "cycle"),
        (fragment(node(1), node(2, parent_id="x")), "trace_tree[1].parent_id", node_id(2)),
        (fragment(node(node_type="tool")), "trace_tree[0].node_type", "TOOL_CALL"),
        (fragment(node(name="")), "trace_tree[0].name", "1 to 1024"),
        (fragment(node(metadata=[])), "trace_tree[0].metadata", "object or null"),
    ],
)
def test_a_flaw_is_named_by_node_and_member(
    operator: Client, agent: Client, sent: dict[str, Any], field: str, words: str  # noqa: ARG001
) -> None:  # fmt: skip
    problem = refused(operator, json.dumps(sent).encode(), words)
    assert (problem["field"], problem["title"]) == (field, "Invalid member")


def test_a_tree_at_every_limit_is_stored_and_one_node_more_is_refused(
    operator: Client, agent: Client
) -> None:
    # 20 members each: the number of nodes is the limit that counts, not that of values.
    more = {f"m{number}": number for number in range(12)}
    nodes = [node(number, number - 1 if number else None, **more) for number in range(MAX_NODES)]
    short = [{**each, "thought_process": None, "metadata": None, "inputs": 1, "outputs": 2} for each in nodes]
    assert {len(each) for each in short} == {20}
    raw = json.dumps(fragment(*short), separators=(",", ":")).encode()
    reply = agent.post_raw(TRACES, raw)
    assert (reply.status, reply.json.get("nodes")) == (200, MAX_NODES), reply.raw[:300]
    assert any(thread.name.startswith("json") for thread in threading.enumerate())
    assert recorded(operator, "trace")[0]["payload"] == fragment(*short)
    one_more = [{**node(number), "inputs": None, "metadata": None} for number in range(MAX_NODES + 1)]
    refused(operator, json.dumps(fragment(*one_more), separators=(",", ":")).encode(), str(MAX_NODES))


def test_values_are_bounded_in_all(operator: Client, agent: Client) -> None:  # noqa: ARG001
    rows = [[0] * 1_000] * (MAX_VALUES // 1_000)
    refused(operator, with_inputs(json.dumps(rows, separators=(",", ":")).encode()), str(MAX_VALUES))
    half = with_inputs(json.dumps(rows[: len(rows) // 2], separators=(",", ":")).encode())
    before = head(operator)
    reply = post_lines(operator, TRACES, [half, half])
    assert (reply.status, str(MAX_VALUES) in reply.json["error"]) == (400, True)
    assert head(operator) == before
    assert len(results(post_lines(operator, TRACES, [half, fragment()]))) == 2
    # Punctuation within strings is no value.
    texts = [fragment(node(inputs="[,{" * 150_000)) for _ in range(2)]
    assert [line["status"] for line in results(post_lines(operator, TRACES, texts))] == [200, 200]


def test_terminated_and_guarded_agents_post_what_is_evidence(operator: Client) -> None:
    agent = operator.create("mailer")
    assert agent.post(TRACES, fragment()).status == 200
    operator.post("/v1/agents/mailer/terminate", {"reason": "r", "by": "A"})
    assert agent.post(TRACES, fragment()).status == 200
    assert [line["status"] for line in results(post_lines(agent, TRACES, [fragment()]))] == [200]
    assert len(recorded(operator, "trace")) == 3
    assert operator.get("/v1/agents/mailer").json["alive"] is False


def test_nothing_is_posted_for_others_or_for_nobody(
    service: Running, operator: Client, agent: Client
) -> None:
    other = operator.create("other", None)
    before = head(operator)
    foreign = Client(service.url, service.app.services.tokens.issue(uuid4(), "mailer"))
    for send in (
        lambda client, path: client.post(path, fragment()),
        lambda client, path: post_lines(client, path, [fragment()]),
        lambda client, path: post_lines(client, path, [b"{"]),
    ):
        assert send(other, TRACES).status == 403
        assert send(foreign, TRACES).status in {403, 404}
        assert send(operator, TRACES.replace("mailer", "nobody")).status in {400, 404}
        assert send(agent.as_(None), TRACES).status == 401
    assert operator.post(TRACES.replace("mailer", "nobody"), fragment()).json["code"] == "not_found"
    assert head(operator) == before


# --- the same again ---------------------------------------------------------------------------------------


def test_p21_a_fragment_sent_again_gets_its_first_receipt(operator: Client, agent: Client) -> None:
    first = agent.post(TRACES, fragment(), Idempotency_Key="k")
    agent.post(TRACES, fragment())
    spaced = json.dumps(fragment(), indent=1, sort_keys=True).encode()
    assert agent.post_raw(TRACES, spaced, Idempotency_Key="k").raw == first.raw
    other = agent.post(TRACES, fragment(node(2)), Idempotency_Key="k")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    stored = recorded(operator, "trace")
    assert len(stored) == 2
    assert {**stored[0]["payload"], "idempotency": None} == fragment(idempotency=None)


def test_p21_a_batch_sent_again_gets_its_first_receipts(operator: Client, agent: Client) -> None:
    batch = [fragment(node(1)), {"bad": 1}, fragment(node(2))]
    first = post_lines(agent, TRACES, batch, Idempotency_Key="k")
    assert [line["status"] for line in results(first)] == [200, 400, 200]
    assert post_lines(agent, TRACES, batch, Idempotency_Key="k").raw == first.raw
    changed = post_lines(agent, TRACES, [batch[0], batch[0], {**batch[2], "more": 1}], Idempotency_Key="k")
    assert (changed.status, changed.json["code"]) == (409, "idempotency_conflict")
    assert len(recorded(operator, "trace")) == 2


# --- batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media_type",
    [
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "Application/X-NDJSON; charset=utf-8",
    ],
)
def test_a_batch_is_answered_line_by_line(operator: Client, agent: Client, media_type: str) -> None:
    lines = [fragment(node(1)), b"", b" \t\r", b'{"session_id":', fragment(node(2), total_nodes=7), b"[]"]
    lines += [json.dumps(fragment(node(3))).encode() + b"\r", b""]
    one, broken, wrong, no_object, three = results(post_lines(agent, TRACES, lines, media_type))
    first, second = recorded(operator, "trace")
    assert one == {
        "line": 1,
        "status": 200,
        "agent_id": "mailer",
        "session_id": SESSION,
        "nodes": 1,
        "seq": first["seq"],
        "hash": first["hash"],
        "timestamp": first["timestamp"],
    }
    assert (broken["line"], broken["status"], broken["code"]) == (4, 400, "bad_request")
    assert broken["place"] in broken["error"]
    assert (wrong["line"], wrong["field"]) == (5, "total_nodes")
    assert (no_object["line"], no_object["status"]) == (6, 400)
    assert (three["line"], three["seq"]) == (7, second["seq"])
    assert second["seq"] == first["seq"] + 1
    assert second["payload"] == fragment(node(3))


def test_a_batch_has_its_limit_of_lines(operator: Client, agent: Client) -> None:
    small = fragment({"node_id": node_id(1), "node_type": "A", "name": "a"})
    before = head(operator)
    reply = post_lines(agent, TRACES, [small] * (MAX_ITEMS + 1))
    assert (reply.status, str(MAX_ITEMS) in reply.json["error"]) == (400, True)
    assert head(operator) == before
    with_blanks = [part for _ in range(MAX_ITEMS) for part in (small, b"")]
    answered = results(post_lines(agent, TRACES, with_blanks))
    assert [line["line"] for line in answered] == [*range(1, 2 * MAX_ITEMS, 2)]
    assert [line["seq"] for line in answered] == [*range(before["seq"] + 1, before["seq"] + 1 + MAX_ITEMS)]
    assert len(recorded(operator, "trace")) == MAX_ITEMS


def test_a_place_in_a_line_is_a_column(agent: Client) -> None:
    _, broken, wrong, nul = results(
        post_lines(agent, TRACES, [fragment(), b'{"a":]', b'{"a":1,"a":2}', with_inputs(rb'"\u0000"')])
    )
    assert (broken["line"], broken["place"]) == (2, "column 6")
    assert broken["error"].endswith(" at column 6")
    assert (wrong["line"], wrong["place"]) == (3, "$.a (column 9)")
    assert nul["place"].startswith("$.trace_tree[0].inputs (column ")


ONE = json.dumps(fragment()).encode()


@pytest.mark.parametrize(
    ("body", "media_type", "says"),
    [
        (ONE + b"\n" + ONE, "application/json", "application/x-ndjson"),
        (ONE + ONE, "application/json", "application/x-ndjson"),
        (b"[" + ONE + b"]", "application/json", "application/x-ndjson"),
        (json.dumps(fragment(), indent=1).encode(), "application/x-ndjson", "application/json"),
    ],
)
def test_a_body_of_another_form_than_its_type_says_is_told_which_type_it_wants(
    operator: Client, agent: Client, body: bytes, media_type: str, says: str
) -> None:
    before = head(operator)
    reply = agent.post_raw(TRACES, body, Content_Type=media_type)
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert says in reply.json["error"]
    assert head(operator) == before


@pytest.mark.parametrize("glue", [b"", b" ", b"\r", b"\t"])
def test_documents_that_lost_the_line_feed_between_them_are_refused(agent: Client, glue: bytes) -> None:
    bad, good = results(post_lines(agent, TRACES, [ONE + glue + ONE, ONE]))
    assert (bad["status"], "--data-binary" in bad["error"]) == (400, True)
    assert good["status"] == 200


@pytest.mark.parametrize("body", [b"", b"\n\n \r\n"])
def test_a_batch_without_a_line_is_refused(agent: Client, body: bytes) -> None:
    reply = agent.post_raw(TRACES, body, Content_Type="application/x-ndjson")
    assert (reply.status, "empty" in reply.json["error"]) == (400, True)


def test_a_batch_of_bad_lines_stores_nothing(operator: Client, agent: Client) -> None:
    before = head(operator)
    assert [line["status"] for line in results(post_lines(agent, TRACES, [b"x", b"\xff", b"{}"]))] == [
        400
    ] * 3
    assert head(operator) == before


async def test_the_good_lines_of_a_batch_are_one_transaction(
    operator: Client, agent: Client, database: Database
) -> None:
    results(post_lines(agent, TRACES, [fragment(node(1)), b"x", fragment(node(2)), fragment(node(3))]))
    stored = [record["hash"] for record in recorded(operator, "trace")]
    connection = await asyncpg.connect(database.admin_url)
    try:
        written = await connection.fetchval(
            "SELECT count(DISTINCT xmin::text) FROM trails.agent_audit_trails WHERE hash = ANY ($1)", stored
        )
    finally:
        await connection.close()
    assert len(stored) == 3
    assert written == 1


# --- what comes in is exact ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [b'{"p":1,"p":2}', rb'{"p":1,"\u0070":2}', rb'[{"a":{"q":1,"\u0071":1}}]'])
def test_c05_duplicate_keys_are_refused(operator: Client, agent: Client, inputs: bytes) -> None:  # noqa: ARG001
    refused(operator, with_inputs(inputs), "duplicate key")


def test_c05_a_duplicate_at_the_top_is_refused(operator: Client, agent: Client) -> None:  # noqa: ARG001
    raw = json.dumps(fragment()).encode()
    refused(operator, raw[:-1] + b',"session_id":"' + str(uuid4()).encode() + b'"}', "duplicate key")
    refused(operator, raw[:-1] + rb',"trace\u005ftree":[]}', "duplicate key")


@pytest.mark.parametrize("inputs", [rb'{"q":"a\u0000b"}', rb'{"k\u0000":1}', rb'"\ud800"', b'"a\x00b"'])
def test_c07_nul_and_lone_surrogates_are_refused(operator: Client, agent: Client, inputs: bytes) -> None:  # noqa: ARG001
    assert refused(operator, with_inputs(inputs))["place"]


def test_c07_a_nul_in_one_line_costs_the_others_nothing(operator: Client, agent: Client) -> None:
    lines: list[Any] = [fragment(node(number)) for number in range(10)]
    lines[4] = with_inputs(rb'{"q":"a\u0000b"}')
    answered = results(post_lines(agent, TRACES, lines))
    assert [line["line"] for line in answered if line["status"] != 200] == [5]
    assert "trace_tree[0].inputs.q" in answered[4]["place"]
    assert len(recorded(operator, "trace")) == 9


async def test_c09_big_integers_keep_every_digit(operator: Client, agent: Client, database: Database) -> None:
    numbers = {"a": 9007199254740993, "b": 9223372036854775808, "c": -int("9" * 30), "d": int("8" * 128)}
    sent = fragment(node(inputs=numbers))
    assert agent.post(TRACES, sent).status == 200
    assert results(post_lines(agent, TRACES, [sent]))[0]["status"] == 200
    stored = recorded(operator, "trace")
    assert [record["payload"] for record in stored] == [sent, sent]
    connection = await asyncpg.connect(database.admin_url)
    try:
        mirrored = await connection.fetch(
            "SELECT trace_data #>> '{trace_tree,0,inputs}' FROM trails.agent_audit_trails"
            " WHERE hash = ANY ($1)",
            [record["hash"] for record in stored],
        )
    finally:
        await connection.close()
    assert [json.loads(row[0]) for row in mirrored] == [numbers, numbers]


def test_c09_an_integer_of_5000_digits_is_refused(operator: Client, agent: Client) -> None:  # noqa: ARG001
    refused(operator, with_inputs(b"9" * 5_000), "128")
    refused(operator, with_inputs(b"9" * 129), "128")


@pytest.mark.parametrize("depth", [126, 1_200, 100_000])
def test_c12_deep_nesting_is_refused(operator: Client, agent: Client, depth: int) -> None:  # noqa: ARG001
    # The fragment, the tree and the node are three levels.
    refused(operator, with_inputs(b"[" * depth + b"]" * depth), "128")
    refused(operator, with_inputs(b'{"a":' * depth + b"1" + b"}" * depth), "128")


def test_c12_a_document_at_the_limit_is_kept_and_verified(operator: Client, agent: Client) -> None:
    deep = with_inputs(b"[" * 125 + b"]" * 125)
    assert agent.post_raw(TRACES, deep).status == 200
    assert results(post_lines(agent, TRACES, [deep]))[0]["status"] == 200
    assert [record["payload"] for record in recorded(operator, "trace")] == [json.loads(deep)] * 2


@pytest.mark.parametrize("said", ["2024-01-01T00:00:00.123456789Z", "2023-12-31T23:59:59.9999996Z"])
def test_c13_a_nodes_own_time_is_kept_to_the_last_digit(operator: Client, agent: Client, said: str) -> None:
    sent = fragment(node(metadata={"timestamp": said}))
    assert agent.post(TRACES, sent).status == 200
    assert recorded(operator, "trace")[0]["payload"] == sent


@pytest.mark.parametrize(
    "said",
    ["2016-12-31T23:59:60Z", "2024-01-01T24:00:00Z", "2024-03-31T02:30:00", "2024-W01-1", 1704067200, None],
)
def test_c14_a_nodes_own_time_is_evidence_in_any_spelling(
    operator: Client, agent: Client, said: object
) -> None:
    # Nodes come from tracers of all kinds, and a tree is worth more than its clock: what is no instant by
    # the one rule is kept as it was said, and is no time for anybody.
    sent = fragment(node(metadata={"timestamp": said}))
    reply = agent.post(TRACES, sent)
    (record,) = recorded(operator, "trace")
    assert record["payload"] == sent
    assert reply.json["timestamp"] == record["timestamp"] != said


@pytest.mark.parametrize("said", ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_t13_the_records_time_is_the_services(operator: Client, agent: Client, said: str) -> None:
    before = agent.post(TRACES, fragment()).json
    stamped = agent.post(TRACES, fragment(node(metadata={"timestamp": said}), timestamp=said)).json
    after = agent.post(TRACES, fragment()).json
    assert before["timestamp"] <= stamped["timestamp"] <= after["timestamp"]
    assert before["seq"] + 2 == stamped["seq"] + 1 == after["seq"]
    record = recorded(operator, "trace")[1]
    assert record["timestamp"] == stamped["timestamp"]
    assert record["payload"]["trace_tree"][0]["metadata"]["timestamp"] == said
