"""Spans over HTTP: what is stored, once, and what is told of the rest (cases C06, C07, C13, H04, H06)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from app.chain.canonical import canonical
from tests.integration.http.client import Client
from tests.integration.http.serving import Running
from tests.support.otlp import JSON, PROTOBUF, agents, nodes, post, records, send
from tests.support.postgres import Database
from tests.support.spans import Sent, as_json, child, protobuf, tool
from tests.support.standing import database, service, standing, tenant

__all__ = ["database", "service", "standing", "tenant"]

EXPORTS = sorted((Path(__file__).parents[4] / "shared" / "data" / "otlp").glob("*.pb"))

Admin: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

CALLS = """
    SELECT tool, status FROM trails.tool_calls
     ORDER BY (metadata ->> 'start_time_unix_nano')::numeric
"""


@pytest.fixture
async def admin(database: Database, tenant: dict[str, Any]) -> AsyncIterator[Admin]:
    """A connection that sees what the test's tenant has, in place of the superuser's."""
    connection = await asyncpg.connect(database.app_url)
    await connection.execute("SELECT set_config('trails.tenants', $1, false)", tenant["tenant"]["tenant_id"])
    yield connection
    await connection.close()


@pytest.mark.skipif(not EXPORTS, reason="the exports of real programs are not beside this checkout")
@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
async def test_real_exports_give_their_tool_calls(
    operator: Client, admin: Admin, path: Path, media_type: str
) -> None:
    source = path if media_type == PROTOBUF else path.with_suffix(".otlp.json")
    told = post(operator, source.read_bytes(), media_type, zipped=True)
    assert (told.rejected, told.message) == (0, "")
    expected = json.loads(path.with_suffix(".expect.json").read_bytes())["tools"]
    assert [[row["tool"], row["status"]] for row in await admin.fetch(CALLS)] == expected
    # Whichever way it came: the same spans again, in the other encoding, are known.
    other = path.with_suffix(".otlp.json") if media_type == PROTOBUF else path
    again = post(operator, other.read_bytes(), JSON if media_type == PROTOBUF else PROTOBUF)
    assert again == told, "the receipt is that of the records which hold the spans"
    assert len(await admin.fetch(CALLS)) == len(expected)
    assert not records(operator, next(iter(told.receipts)), "event")


def test_h06_stored_values_are_equal_for_both_encodings(operator: Client) -> None:
    span = Sent(
        attributes={
            "f": 1e21,
            "half": 0.1,
            "n": 2**53 + 1,
            "b": b"\xff",
            "nan": float("nan"),
            "l": [1.0, None],
        },
        events=(("e", {"x": 1e-7}),),
        links=((b"\x01" * 16, b"\x02" * 8),),
        trace_state="a=b",
        flags=256,
        dropped=3,
    )
    post(operator, protobuf(span), PROTOBUF)
    other = msgspec.structs.replace(span, trace_id=b"\x09" * 16)
    post(operator, as_json(other), JSON)
    first, second = ({**node["metadata"]["otel"], "trace_id": ""} for node in nodes(operator, "svc"))
    assert canonical(first) == canonical(second)
    assert first["attributes"]["n"] == 2**53 + 1


def test_c01_floats_are_spelt_by_the_one_rule(operator: Client) -> None:
    values = [1e-7, 1e16, 1e21, 123456789012345680.0, 5e-324, 0.1, 1.0, 100.0, -0.0]
    post(operator, protobuf(Sent(attributes={"v": values})))
    line = operator.get("/v1/agents/svc/log").raw.decode()
    assert '"v":[1e-7,10000000000000000,1e+21,123456789012345680,5e-324,0.1,1,100,0]' in line
    records(operator, "svc")


def test_the_receipt_is_that_of_the_last_record(operator: Client) -> None:
    told = post(operator, protobuf(Sent(), Sent(attributes={"gen_ai.agent.name": "other"}), Sent()))
    for agent, (seq, record_hash) in told.receipts.items():
        last = records(operator, agent)[-1]
        assert (last["seq"], last["hash"]) == (seq, record_hash)
    assert set(told.receipts) == {"svc", "other"}


def test_an_empty_export_is_accepted_and_stores_nothing(operator: Client) -> None:
    for body, media_type in ((b"", PROTOBUF), (b"{}", JSON)):
        reply = send(operator, body, media_type)
        assert (reply.status, reply.raw) == (200, body)
    assert agents(operator) == []


def test_a_request_of_thousands_of_traces_is_stored_whole(operator: Client) -> None:
    spans = [Sent(name=f"s{n}") for n in range(3_000)]
    assert post(operator, protobuf(*spans)).rejected == 0
    assert post(operator, protobuf(*spans)).rejected == 0
    assert len(nodes(operator, "svc")) == 3_000


# --- once ------------------------------------------------------------------------------------------------


def test_spans_that_come_again_are_stored_once_however_they_are_batched(operator: Client) -> None:
    root = Sent(name="root")
    spans = [root, *[child(Sent(name=f"s{n}"), root) for n in range(9)]]
    post(operator, protobuf(*spans[:4]))
    for batch in (spans[2:7], spans, spans[::-1], spans[9:], spans[:1]):
        assert post(operator, protobuf(*batch)).rejected == 0
    assert sorted(node["name"] for node in nodes(operator, "svc")) == sorted(span.name for span in spans)
    assert not records(operator, "svc", "event")


def test_other_content_under_the_same_id_is_a_conflict_on_record(operator: Client) -> None:
    span = Sent(attributes={"x": 1})
    first = post(operator, protobuf(span, Sent(name="neighbour")))
    for number in (2, 3, 2):  # the second one comes again
        changed = msgspec.structs.replace(span, attributes={"x": number})
        told = post(operator, protobuf(changed, Sent(name=f"new {number}")))
        assert told.rejected == 0
        assert "other content" in told.message
    events = [record["payload"] for record in records(operator, "svc", "event")]
    seq, record_hash = first.receipts["svc"]
    for event in events:
        assert event["type"] == "span_conflict"
        assert event["session_id"] == str(UUID(bytes=span.trace_id))
        assert event["data"]["first"]["hash"] in {record["hash"] for record in records(operator, "svc")}
        assert event["data"]["span_id"] == span.span_id.hex()
    later = [event["data"]["node"]["metadata"]["otel"]["attributes"] for event in events]
    assert later == [{"x": 2}, {"x": 3}]
    # Two traces in one request are two records; the receipt is that of the last.
    assert events[0]["data"]["first"]["seq"] == seq - 1
    assert events[0]["data"]["first"]["hash"] != record_hash
    kept = [node["metadata"]["otel"] for node in nodes(operator, "svc")]
    assert [otel["attributes"] for otel in kept if otel["name"] == "work"] == [{"x": 1}]


def test_another_span_under_the_same_id_in_one_request_is_a_conflict_too(operator: Client) -> None:
    span = Sent(attributes={"x": 1})
    later = msgspec.structs.replace(span, attributes={"x": 2})
    assert "other content" in post(operator, protobuf(span, span, later)).message
    assert len(nodes(operator, "svc")) == 1
    assert len(records(operator, "svc", "event")) == 1


async def test_a_span_is_one_of_its_tenant_alone(
    service: Running, operator: Client, database: Database
) -> None:
    span = Sent(attributes={"secret": "of the first"})
    post(operator, protobuf(span))
    # Another tenant's agent: what is on record elsewhere is neither known nor told there.
    foreign = Client(service.url, service.app.services.tokens.issue(uuid4(), "svc"))
    reply = send(foreign, protobuf(msgspec.structs.replace(span, attributes={"secret": "of the second"})))
    assert reply.status == 404
    assert reply.headers["trails-receipt"] is None
    everywhere = await asyncpg.connect(database.admin_url)
    stored = "SELECT count(*) FROM trails.spans WHERE trace_id = $1"
    assert await everywhere.fetchval(stored, span.trace_id) == 1
    await everywhere.close()
    assert not records(operator, "svc", "event")


# --- whose ------------------------------------------------------------------------------------------------


def test_an_agents_spans_are_its_own_whatever_they_name(operator: Client) -> None:
    agent = operator.create("mailer", None)
    spans = [Sent(attributes={"gen_ai.agent.id": "other"}), Sent(name="")]
    told = post(agent, protobuf(*spans))
    assert told.rejected == 1
    assert list(told.receipts) == ["mailer"]
    assert agents(operator) == ["mailer"]
    assert len(nodes(operator, "mailer")) == 1
    assert records(operator, "mailer")[0]["actor"] == "mailer"


async def test_who_posts_another_agents_ids_first_takes_nothing_from_its_trail(
    operator: Client, admin: Admin
) -> None:
    mallory, victim = operator.create("mallory", None), operator.create("victim", None)
    root = Sent(name="run")
    real = [tool("pay", root, code=2, attributes={"gen_ai.agent.id": "victim"}), tool("find", root)]
    for span in real:
        post(mallory, protobuf(msgspec.structs.replace(span, code=1, message="all is well")))
    told = post(victim, protobuf(real[0]))
    assert (told.rejected, told.message, list(told.receipts)) == (0, "", ["victim"])
    by_exporter = msgspec.structs.replace(
        real[1], attributes={**real[1].attributes, "gen_ai.agent.id": "victim"}
    )
    assert list(post(operator, protobuf(by_exporter)).receipts) == ["victim"]
    for sender, span in ((victim, real[0]), (operator, by_exporter)):  # known where it stands
        assert post(sender, protobuf(span)).receipts["victim"] is not None
    rows = await admin.fetch("SELECT agent_id, tool, status FROM trails.tool_calls ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [
        ("mallory", "find", "success"),
        ("mallory", "pay", "success"),
        ("victim", "find", "success"),
        ("victim", "pay", "failed"),
    ]
    failed = await admin.fetch("SELECT agent_id, tool FROM trails.failed_tool_calls")
    assert [tuple(row) for row in failed] == [("victim", "pay")]
    session = records(operator, "victim")[0]["payload"]["session_id"]
    shown = operator.get(f"/v1/sessions/{session}").json["nodes"]
    assert sorted((node["record"]["agent_id"], node["name"], node["conflict"]) for node in shown) == [
        ("mallory", "find", True),
        ("mallory", "pay", True),
        ("victim", "find", True),
        ("victim", "pay", True),
    ]
    for agent in ("mallory", "victim"):
        assert not records(operator, agent, "event")
    assert await admin.fetchval("SELECT count(*) FROM trails.spans") == 4


def test_a_conflict_is_found_with_its_session(operator: Client) -> None:
    span = Sent(attributes={"gen_ai.conversation.id": "talk"})
    post(operator, protobuf(span))
    post(operator, protobuf(msgspec.structs.replace(span, name="other")))
    [event] = records(operator, "svc", "event")
    assert event["payload"]["session_id"] == records(operator, "svc")[0]["payload"]["session_id"]
    assert event["payload"]["data"]["first"].keys() == {"agent_id", "seq", "hash"}


def test_an_agents_name_on_the_resource_is_that_of_all_its_spans(operator: Client) -> None:
    root = Sent(attributes={"gen_ai.agent.name": "poet"})
    below = child(Sent(name="POST"), root)
    post(operator, protobuf(root, below))
    assert [len(nodes(operator, agent)) for agent in ("poet", "svc")] == [1, 1]
    resource = {"service.name": "svc", "gen_ai.agent.name": "painter"}
    # However they are batched: a span's agent is told from the span and its resource alone.
    for batch in ([below], [root, below]):
        post(operator, protobuf(*batch, resource=resource))
    assert [node["name"] for node in nodes(operator, "painter")] == ["POST"]
    assert len(nodes(operator, "poet")) == 1


def test_agents_that_are_new_are_observed(operator: Client) -> None:
    post(
        operator,
        protobuf(
            Sent(attributes={"gen_ai.agent.name": "a b"}), Sent(attributes={"gen_ai.agent.name": "a.b"})
        ),
    )
    found = agents(operator)
    assert len(found) == 2
    assert all(agent.startswith("a-b-") for agent in found)
    assert operator.get(f"/v1/agents/{found[0]}").json["budget"] is None


def test_spans_of_a_terminated_guarded_agent_are_recorded(operator: Client) -> None:
    agent = operator.create("mailer")
    operator.post("/v1/agents/mailer/terminate", {"reason": "r", "by": "A"})
    post(agent, protobuf(Sent()))
    assert len(nodes(operator, "mailer")) == 1


# --- what is rejected -------------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_h04_three_bad_spans_of_ten(operator: Client, media_type: str) -> None:
    bad = [
        Sent(name="short", span_id=b"\x01" * 4),
        Sent(name="", span_id=b"\x02" * 8),
        Sent(name="large", span_id=b"\x03" * 8, attributes={"q": "x" * (2**20 + 1)}),
    ]
    good = [Sent(name=f"good {n}") for n in range(7)]
    body = (protobuf if media_type == PROTOBUF else as_json)(*good[:3], *bad, *good[3:])
    told = post(operator, body, media_type)
    assert told.rejected == 3
    for words in ("01010101", "must be 8 bytes", "02" * 8, "is missing", "03" * 8, "more than 1048576 bytes"):
        assert words in told.message
    assert len(nodes(operator, "svc")) == 7
    [event] = records(operator, "svc", "event")
    data = event["payload"]["data"]
    assert (event["payload"]["type"], data["count"]) == ("spans_rejected", 3)
    assert [span["span_id"] for span in data["spans"]] == ["01" * 4, "02" * 8, "03" * 8]
    assert told.receipts == {"svc": (event["seq"], event["hash"])}
    # The same request again after a lost answer says the same and records nothing further.
    assert post(operator, body, media_type) == told
    assert len(records(operator, "svc", "event")) == 1


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_spans_of_an_agent_that_is_called_as_a_key_are_rejected(operator: Client, media_type: str) -> None:
    assert operator.post("/v1/keys", {"role": "writer", "name": "Ingest"}).status == 200
    create = operator.post("/v1/agents", {"agent_id": "INGEST", "policy": None})
    assert (create.status, create.json["code"]) == (409, "name_in_use")
    spans = [Sent(), *(Sent(attributes={"gen_ai.agent.name": "ingest"}) for _ in range(2))]
    told = post(operator, (protobuf if media_type == PROTOBUF else as_json)(*spans), media_type)
    assert told.rejected == 2
    assert "agent ingest is not created" in told.message
    assert list(told.receipts) == ["svc"]
    assert agents(operator) == ["svc"]


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_c07_one_nul_among_ten_spans(operator: Client, media_type: str) -> None:
    spans = [Sent(attributes={"q": "a\0b" if n == 4 else "ab"}) for n in range(10)]
    told = post(operator, (protobuf if media_type == PROTOBUF else as_json)(*spans), media_type)
    assert told.rejected == 1
    assert "U+0000" in told.message
    assert len(nodes(operator, "svc")) == 9


@pytest.mark.parametrize("media_type", [PROTOBUF, JSON])
def test_c06_a_duplicate_attribute_is_never_chosen_in_silence(operator: Client, media_type: str) -> None:
    span = Sent(attributes=(("gen_ai.tool.name", "read"), ("gen_ai.tool.name", "delete_all")))
    told = post(operator, (protobuf if media_type == PROTOBUF else as_json)(span, Sent()), media_type)
    assert told.rejected == 1
    assert "gen_ai.tool.name: stands twice" in told.message
    [node] = nodes(operator, "svc")
    assert node["name"] == "work"


def test_c13_nanoseconds_are_kept_and_the_instant_is_cut(operator: Client) -> None:
    post(operator, protobuf(Sent(start_ns=1_704_067_259_999_999_600)))
    [node] = nodes(operator, "svc")
    assert node["metadata"]["timestamp"] == "2024-01-01T00:00:59.999999Z"
    assert node["metadata"]["start_time_unix_nano"] == "1704067259999999600"


async def test_t13_the_service_signs_its_own_time_beside_the_senders(operator: Client, admin: Admin) -> None:
    for start in (10**9, 4_070_908_800 * 10**9):  # 1970 and 2099
        post(operator, protobuf(Sent(start_ns=start, end_ns=start)))
    rows = await admin.fetch(
        "SELECT clock_skewed, recorded_at > now() - interval '1 minute' FROM trails.trace_nodes"
    )
    assert [tuple(row) for row in rows] == [(True, True), (True, True)]


def test_a_logs_export_is_told_what_it_is(operator: Client) -> None:
    logs = protobuf(Sent(trace_id=b"", span_id=b"", name="")).replace(b"tests", b"logs!")
    told = post(operator, logs)
    assert told.rejected == 1
    reply = send(operator, b'{"resourceLogs":[]}', JSON)
    assert (reply.status, reply.json["code"]) == (400, 3)


# --- one call, two spans ----------------------------------------------------------------------------------


ORDERS = ["client first", "server first", "together"]


def ordered(client: Sent, server: Sent, order: str) -> list[list[Sent]]:
    """The deliveries of the two ends of a call."""
    return {
        "client first": [[client], [server]],
        "server first": [[server], [client]],
        "together": [[server, client]],
    }[order]


async def marks(admin: Admin) -> dict[str, str | None]:
    """The mark of each agent's one call, as the views show it."""
    rows = await admin.fetch("SELECT agent_id, metadata ->> 'nested_in' FROM trails.trace_nodes")
    return dict(map(tuple, rows))


@pytest.mark.parametrize("code", [0, 2])
@pytest.mark.parametrize("order", ORDERS)
async def test_a_call_seen_from_both_ends_counts_once(
    operator: Client, admin: Admin, order: str, code: int
) -> None:
    client = tool("search", code=code, attributes={"service.name": "client"})
    server = tool("search", client, kind=2, code=code, attributes={"service.name": "server"})
    for _ in range(2):  # all of it once more changes nothing
        for batch in ordered(client, server, order):
            post(operator, protobuf(*batch))
        calls = await admin.fetch("SELECT agent_id, tool, status FROM trails.tool_calls")
        assert [tuple(call) for call in calls] == [("client", "search", "failed" if code else "success")]
        outer = nodes(operator, "client")[0]["node_id"]
        assert await marks(admin) == {"client": None, "server": outer}
        # Marked before it is stored when that is possible, else sent again by the service.
        assert len(records(operator, "server")) == (2 if order == "server first" else 1)
    assert not records(operator, "server", "event")
    session = records(operator, "server")[0]["payload"]["session_id"]
    [inner] = [
        node for node in operator.get(f"/v1/sessions/{session}").json["nodes"] if node["node_id"] != outer
    ]
    assert inner["conflict"] is False, "the mark is the service's own word"


@pytest.mark.parametrize("order", ORDERS)
async def test_a_failure_inside_a_call_that_did_not_fail_counts_beside_it(
    operator: Client, admin: Admin, order: str
) -> None:
    client = tool("search", attributes={"service.name": "client"})
    server = tool("search", client, code=2, attributes={"service.name": "server"})
    for batch in ordered(client, server, order):
        post(operator, protobuf(*batch))
    assert await marks(admin) == {"client": None, "server": None}
    rows = await admin.fetch("SELECT agent_id, status FROM trails.tool_calls ORDER BY 1")
    assert [tuple(row) for row in rows] == [("client", "success"), ("server", "failed")]


async def test_spans_of_the_transport_may_stand_between_the_deliveries(
    operator: Client, admin: Admin
) -> None:
    client = tool("search", attributes={"service.name": "client"})
    out = child(Sent(name="POST", kind=3, attributes={"service.name": "client"}), client)
    into = child(Sent(name="POST", kind=2, attributes={"service.name": "server"}), out)
    server = tool("search", into, attributes={"service.name": "server"})
    for batch in ([out, client], [server, into]):
        post(operator, protobuf(*batch))
    rows = await admin.fetch("SELECT agent_id FROM trails.tool_calls")
    assert [tuple(row) for row in rows] == [("client",)]


async def test_calls_of_other_tools_across_requests_count_each(operator: Client, admin: Admin) -> None:
    outer = tool("delegate")
    inner = [tool("search", outer), tool("fetch", outer)]
    for batch in ([inner[0]], [outer], [inner[1]]):
        post(operator, protobuf(*batch))
    assert await admin.fetchval("SELECT count(*) FROM trails.tool_calls") == 3


@pytest.mark.parametrize("name", ["mallory", "operator"])
@pytest.mark.parametrize("sender", ["token", "exporter"])
@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_no_agents_call_becomes_the_inner_end_of_another_agents(
    operator: Client, admin: Admin, first: str, sender: str, name: str
) -> None:
    """A call that fails under what another agent's token claims to be its outer end.

    That agent may bear the name of the key that the operator's exporter posts with.
    """
    mallory = operator.create(name, None)
    poster = operator.create("victim", None) if sender == "token" else operator
    outer = tool("pay", code=2)
    inner = tool("pay", outer, code=2, attributes={"gen_ai.agent.id": "victim"})
    deliveries = [(poster, inner), (mallory, outer)]
    for client, span in deliveries if first == "inner" else deliveries[::-1]:
        post(client, protobuf(span))
    assert await marks(admin) == {name: None, "victim": None}
    assert len(records(operator, "victim")) == len(records(operator, name)) == 1
    assert await admin.fetchval("SELECT count(*) FROM trails.failed_tool_calls") == 2


@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_what_an_agent_posted_itself_is_no_inner_end_of_what_an_exporter_posted_of_another(
    operator: Client, admin: Admin, first: str
) -> None:
    outer = tool("pay", code=2, attributes={"service.name": "client"})
    deliveries = [(operator.create("victim", None), tool("pay", outer, code=2)), (operator, outer)]
    for client, span in deliveries if first == "inner" else deliveries[::-1]:
        post(client, protobuf(span))
    assert await marks(admin) == {"client": None, "victim": None}
    assert len(records(operator, "victim")) == 1
    assert await admin.fetchval("SELECT count(*) FROM trails.failed_tool_calls") == 2


@pytest.mark.parametrize("order", ["client first", "server first"])
async def test_both_ends_in_one_chain_are_found_whoever_posted_them(
    operator: Client, admin: Admin, order: str
) -> None:
    agent = operator.create("svc", None)
    outer, inner = tool("search"), tool("search")
    inner = child(inner, outer)
    for batch, client in zip(ordered(outer, inner, order), (agent, operator), strict=True):
        post(client, protobuf(*batch))
    assert await admin.fetchval("SELECT count(*) FROM trails.trace_nodes") == 2
    assert await admin.fetchval("SELECT count(*) FROM trails.tool_calls") == 1


async def test_many_inner_ends_are_sent_again_at_once(operator: Client, admin: Admin) -> None:
    outer = tool("search", attributes={"service.name": "client"})
    inner = [tool("search", outer, attributes={"service.name": f"server-{n % 2}"}) for n in range(1_200)]
    post(operator, protobuf(*inner))
    for _ in range(2):
        post(operator, protobuf(outer))
        assert await admin.fetchval("SELECT count(*) FROM trails.tool_calls") == 1
        assert len(nodes(operator, "server-0")) == 2 * 600


def test_a_spans_content_hash_is_that_of_what_is_on_record(operator: Client) -> None:
    post(operator, protobuf(Sent(attributes={"x": [1.5, {"y": "z"}]})))
    [node] = nodes(operator, "svc")
    otel: Any = node["metadata"]["otel"]
    assert len(hashlib.sha256(canonical(otel).encode()).hexdigest()) == 64
    assert otel["attributes"] == {"x": [1.5, {"y": "z"}]}
    assert otel["resource"] == {"attributes": {"service.name": "svc"}}
    assert otel["scope"] == {"name": "tests", "version": "1"}
