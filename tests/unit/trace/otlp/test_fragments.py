"""Spans of one request become fragments: by agent, session and trace, within every limit of a record."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.canonical import canonical
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse
from app.trace.fragment import Fragment
from app.trace.otlp import fragments as module
from app.trace.otlp.fragments import AgentSpans, arrange, conflict_event, rejection_event
from app.trace.otlp.ids import node_id_of
from app.trace.otlp.protobuf import decode_protobuf
from tests.support.spans import Sent, child, protobuf, tool
from tests.unit.trace.otlp.test_decoding import SPANS


def arranged(*spans: Sent, agent: str | None = None, **more: Any) -> dict[str, AgentSpans]:
    return arrange(decode_protobuf(protobuf(*spans, **more)), agent)


def names(spans: AgentSpans) -> list[list[Any]]:
    return [[item.node.value["name"] for item in fragment.nodes] for fragment in spans.fragments]


def test_one_fragment_for_each_trace_and_session() -> None:
    root = Sent(name="a")
    sessions = [
        msgspec.structs.replace(root, span_id=bytes([n]) * 8, attributes={"session.id": f"s{n}"})
        for n in (1, 2)
    ]
    [(agent, spans)] = arranged(root, Sent(name="b"), child(Sent(name="c"), root), *sessions).items()
    assert agent == "svc"
    assert names(spans) == [["a", "c"], ["b"], ["a"], ["a"]]


@pytest.mark.parametrize(
    ("span", "resource", "agent"),
    [
        ({}, {"service.name": "svc"}, "svc"),
        ({}, {}, "unknown_service"),
        ({"service.name": "own"}, {"service.name": "svc"}, "own"),
        ({"gen_ai.agent.name": "n"}, {"service.name": "svc"}, "n"),
        ({"gen_ai.agent.name": "n"}, {"gen_ai.agent.id": "i"}, "i"),
        ({"gen_ai.agent.id": "i", "gen_ai.agent.name": "n"}, {"gen_ai.agent.id": "r"}, "i"),
        ({"gen_ai.agent.id": ""}, {"service.name": 5}, "unknown_service"),
    ],
)
def test_the_agent_is_named_by_the_span_before_its_resource(
    span: dict[str, Any], resource: dict[str, Any], agent: str
) -> None:
    assert list(arranged(Sent(attributes=span), resource=resource)) == [agent]


def test_with_an_agents_token_all_of_it_is_that_agents() -> None:
    bad = Sent(name="", attributes={"service.name": "other"})
    [(agent, spans)] = arranged(Sent(attributes={"gen_ai.agent.id": "i"}), bad, agent="mine").items()
    assert (agent, len(spans.fragments), len(spans.rejected)) == ("mine", 1, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(SPANS, max_size=4))
def test_every_fragment_is_canonical_sound_and_within_the_limits_of_a_record(spans: list[Sent]) -> None:
    """The ledger believes the text and that it is within limits: this is what it rests on."""
    for of_agent in arranged(*spans).values():
        for fragment in of_agent.fragments:
            assert fragment.payload_text == canonical(fragment.payload)
            parse(fragment.payload_text.encode(), max_depth=RECORD_DEPTH - 1, max_string=RECORD_STRING)
            assert Fragment.parse(fragment.payload).nodes == len(fragment.keys)


def worst() -> list[Sent]:
    """Spans that are as deep, as long and as many as they may be."""
    deep: Any = b"x"
    for _ in range(24):
        deep = [deep]
    nested = "[" * 64 + "]" * 64
    long = "x" * 2**20
    thoughts = json.dumps([{"parts": [{"type": "thinking", "content": "y" * 500_000}] * 2}])
    return [
        Sent(attributes={"d": deep}, events=(("e", {"d": deep}),)),
        tool("t", attributes={"gen_ai.tool.call.arguments": nested, "gen_ai.tool.call.result": nested}),
        Sent(attributes={"gen_ai.input.messages": nested, "gen_ai.system_instructions": nested}),
        Sent(attributes={"gen_ai.operation.name": "chat", "gen_ai.output.messages": thoughts}),
        Sent(attributes={"input.value": long}, message=long[:900_000], code=2),
        Sent(name=long),
        Sent(attributes={f"gen_ai.prompt.0.{'a.' * 40}{n}": deep for n in range(3)}),
        Sent(attributes={f"k{n}": n for n in range(10_000)}),
        Sent(attributes={"gen_ai.tool.call.arguments": "[" + "1," * 99_999 + "1]"}),
        Sent(attributes={"gen_ai.tool.call.arguments": "[" + "1," * 100_000 + "1]"}),
        Sent(attributes={"gen_ai.tool.call.arguments": "[" + "1, " * 100_000 + "1]"}),
    ]


@pytest.mark.parametrize("number", range(len(worst())))
def test_the_worst_span_allowed_is_within_the_limits_of_a_record(number: int) -> None:
    span = worst()[number]
    [of_agent] = arranged(span).values()
    assert not of_agent.rejected
    [fragment] = of_agent.fragments
    assert fragment.payload_text == canonical(fragment.payload)
    parse(fragment.payload_text.encode(), max_depth=RECORD_DEPTH - 1, max_string=RECORD_STRING)
    event = conflict_event(fragment.nodes[0].node, {"agent_id": "a", "seq": 1, "hash": "0" * 64})
    assert event["session_id"] == fragment.session_id
    parse(canonical(event).encode(), max_depth=RECORD_DEPTH - 1, max_string=RECORD_STRING)


def test_h04_a_span_that_is_too_large_as_a_node_is_rejected_alone() -> None:
    large = Sent(name="large", attributes={f"k{n}": "x" * 900_000 for n in range(5)})
    [of_agent] = arranged(Sent(name="a"), large, Sent(name="b")).values()
    assert names(of_agent) == [["a"], ["b"]]
    assert of_agent.rejected[0].reason == "the span: more than 4194304 bytes as a node"


def test_a_large_trace_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 3)
    root = Sent()
    [of_agent] = arranged(root, *[child(Sent(), root) for _ in range(6)]).values()
    assert [len(fragment.nodes) for fragment in of_agent.fragments] == [3, 3, 1]


def test_a_trace_of_large_spans_is_split_too() -> None:
    root = Sent()
    big = [child(Sent(attributes={"x": "x" * 1_000_000, "y": "y" * 1_000_000}), root) for _ in range(3)]
    [of_agent] = arranged(root, *big).values()
    assert [len(fragment.nodes) for fragment in of_agent.fragments] == [3, 1]


def test_the_same_span_twice_in_a_request_is_one() -> None:
    span = Sent(attributes={"x": 1})
    [of_agent] = arranged(span, span).values()
    assert [len(fragment.nodes) for fragment in of_agent.fragments] == [1]


@pytest.mark.parametrize("value", [2, 1.5, True])
def test_another_span_under_the_same_id_is_posted_after_it(value: Any) -> None:
    span = Sent(attributes={"x": 1})
    [of_agent] = arranged(span, msgspec.structs.replace(span, attributes={"x": value})).values()
    first, second = of_agent.fragments
    assert first.keys == second.keys


def nested(spans: list[Sent]) -> list[Any]:
    """``nested_in`` of each node of a request, in the order sent."""
    found: dict[Any, Any] = {}
    for of_agent in arranged(*spans).values():
        for fragment in of_agent.fragments:
            for item in fragment.nodes:
                metadata: Any = item.node.value["metadata"]
                found[item.node.span_id] = metadata.get("nested_in")
    return [found[span.span_id.hex()] for span in spans]


def node_id(span: Sent) -> str:
    return node_id_of(span.trace_id.hex(), span.span_id.hex())


def test_a_call_seen_from_both_ends_is_marked_at_its_inner_end() -> None:
    client = tool("search")
    server = tool("search", client, kind=2, attributes={"service.name": "tools"})
    for order in ([client, server], [server, client]):
        assert nested(order) == [node_id(client) if span is server else None for span in order]


@pytest.mark.parametrize(
    ("outer", "inner", "is_marked"), [(0, 0, True), (2, 0, True), (2, 2, True), (0, 2, False)]
)
def test_a_failure_that_the_outer_end_does_not_know_of_is_not_marked(
    outer: int, inner: int, is_marked: bool
) -> None:
    client = tool("search", code=outer)
    assert nested([client, tool("search", client, code=inner)])[1] == (node_id(client) if is_marked else None)


@pytest.mark.parametrize("prefix", ["", "metadata.", "gen_ai.", "traceloop.association.properties."])
def test_no_sender_writes_a_mark_by_itself(prefix: str) -> None:
    client = tool("delegate")
    written = {f"{prefix}nested_in": node_id(client), "metadata": {"nested_in": node_id(client)}}
    assert nested([client, tool("search", client, attributes=written)]) == [None, None]


def test_spans_of_the_transport_may_stand_between() -> None:
    client = tool("search")
    http = child(Sent(name="POST", kind=3), client)
    assert nested([tool("search", http), http, client]) == [node_id(client), None, None]


def test_calls_of_other_tools_and_of_agents_between_are_calls_of_their_own() -> None:
    outer = tool("delegate")
    agent = child(Sent(attributes={"gen_ai.operation.name": "invoke_agent"}), outer)
    assert nested([outer, tool("search", outer)]) == [None, None]
    assert nested([outer, agent, tool("delegate", agent)]) == [None, None, None]
    assert nested([tool("search", outer), tool("search", outer)]) == [None, None], "siblings"


def test_parents_that_lead_in_a_circle_are_rejected() -> None:
    trace = b"\x01" * 16
    ring = [
        Sent(name=f"r{n}", trace_id=trace, span_id=bytes([n]) * 8, parent_span_id=bytes([n % 3 + 1]) * 8)
        for n in (1, 2, 3)
    ]
    own = Sent(name="own", span_id=b"\x07" * 8, parent_span_id=b"\x07" * 8)
    below = child(Sent(name="below"), ring[0])
    [of_agent] = arranged(*ring, own, below).values()
    assert names(of_agent) == [["below"]]
    assert {(item.name, item.reason) for item in of_agent.rejected} == {
        (name, "parent_span_id: leads in a cycle") for name in ("r1", "r2", "r3", "own")
    }


def test_rejected_spans_are_told_of_within_bounds() -> None:
    [of_agent] = arranged(*[Sent(name="") for _ in range(150)]).values()
    event: Any = rejection_event(of_agent.rejected, "digest")
    assert event["data"]["count"] == 150
    assert len(event["data"]["spans"]) == 100
    assert event["data"]["spans"][0]["reason"] == "name: is missing"
