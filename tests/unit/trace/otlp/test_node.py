"""What becomes of a span: type, name, inputs, outputs, status and metadata of its node."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID, uuid5

import msgspec
import pytest

from app.chain.canonical import canonical
from app.trace.otlp.ids import NODE_SPACE, SESSION_SPACE, agent_id_from
from app.trace.otlp.node import content_hash, node_of, node_text
from app.trace.otlp.protobuf import decode_protobuf
from tests.support.spans import START_NS, Sent, protobuf, tool


def made(span: Sent) -> Any:
    """The node of a span, as JSON; its text is canonical."""
    node = node_of(decode_protobuf(protobuf(span)).spans[0])
    assert node_text(node) == canonical(node.value)
    return node.value


def of(**attributes: Any) -> Any:
    """The node of a span with these attributes; ``__`` stands for a dot in their names."""
    return made(Sent(attributes={name.replace("__", "."): value for name, value in attributes.items()}))


def operation(name: str) -> dict[str, Any]:
    return {"gen_ai.operation.name": name}


def kind(name: str) -> dict[str, Any]:
    return {"openinference.span.kind": name}


ASKING = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "name": "x", "arguments": {}}]}])
SAYING = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "done"}]}])
OI_CALL = {"llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "x"}


@pytest.mark.parametrize(
    ("attributes", "node_type", "source"),
    [
        (operation("execute_tool"), "TOOL_CALL", "gen_ai"),
        ({"mcp.method.name": "tools/call"}, "TOOL_CALL", "mcp"),
        ({"mcp.method.name": "tools/list"}, "PLANNING", "default"),
        (operation("retrieval"), "RETRIEVAL", "gen_ai"),
        (operation("embeddings"), "RETRIEVAL", "gen_ai"),
        (operation("search_memory"), "RETRIEVAL", "gen_ai"),
        (operation("invoke_agent"), "AGENT", "gen_ai"),
        (operation("create_agent"), "AGENT", "gen_ai"),
        (operation("invoke_workflow"), "AGENT", "gen_ai"),
        (operation("plan"), "PLANNING", "gen_ai"),
        (operation("chat"), "OUTPUT", "gen_ai"),
        ({**operation("chat"), "gen_ai.output.messages": SAYING}, "OUTPUT", "gen_ai"),
        ({**operation("chat"), "gen_ai.output.messages": ASKING}, "PLANNING", "gen_ai"),
        ({**operation("chat"), "gen_ai.response.finish_reasons": ["tool_calls"]}, "PLANNING", "gen_ai"),
        (operation("evaluate"), "SELF_CORRECTION", "gen_ai"),
        (kind("TOOL"), "TOOL_CALL", "openinference"),
        (kind("tool"), "TOOL_CALL", "openinference"),
        (kind("RETRIEVER"), "RETRIEVAL", "openinference"),
        (kind("RERANKER"), "RETRIEVAL", "openinference"),
        (kind("EMBEDDING"), "RETRIEVAL", "openinference"),
        (kind("AGENT"), "AGENT", "openinference"),
        (kind("CHAIN"), "AGENT", "openinference"),
        (kind("LLM"), "OUTPUT", "openinference"),
        ({**kind("LLM"), **OI_CALL}, "PLANNING", "openinference"),
        (kind("PROMPT"), "PLANNING", "openinference"),
        (kind("GUARDRAIL"), "SELF_CORRECTION", "openinference"),
        (kind("EVALUATOR"), "SELF_CORRECTION", "openinference"),
        ({"traceloop.span.kind": "tool"}, "TOOL_CALL", "traceloop"),
        ({"traceloop.span.kind": "workflow"}, "AGENT", "traceloop"),
        ({"traceloop.span.kind": "task"}, "AGENT", "traceloop"),
        ({"llm.request.type": "chat"}, "OUTPUT", "traceloop"),
        (
            {"llm.request.type": "chat", "gen_ai.completion.0.tool_calls.0.name": "x"},
            "PLANNING",
            "traceloop",
        ),
        ({"tool.name": "x"}, "TOOL_CALL", "tool_name"),
        ({}, "PLANNING", "default"),
        # Precedence, when several conventions are on one span.
        ({**operation("execute_tool"), **kind("LLM")}, "TOOL_CALL", "gen_ai"),
        ({**operation("something new"), **kind("TOOL")}, "TOOL_CALL", "openinference"),
        ({**kind("AGENT"), "traceloop.span.kind": "tool"}, "AGENT", "openinference"),
        ({**kind("UNKNOWN"), "gen_ai.tool.name": "x"}, "TOOL_CALL", "tool_name"),
        ({**operation("chat"), "gen_ai.tool.name": "x"}, "OUTPUT", "gen_ai"),
    ],
)
def test_the_conventions_say_what_a_span_is(attributes: dict[str, Any], node_type: str, source: str) -> None:
    node = made(Sent(attributes=attributes))
    assert (node["node_type"], node["metadata"]["node_type_source"]) == (node_type, source)


@pytest.mark.parametrize("name", ["gen_ai.choice", "gen_ai.content.completion"])
def test_a_choice_in_an_event_may_ask_for_tools(name: str) -> None:
    message = json.dumps({"role": "assistant", "tool_calls": [{"id": "1"}]})
    span = Sent(attributes=operation("chat"), events=((name, {"message": message}),))
    assert made(span)["node_type"] == "PLANNING"
    assert made(msgspec.structs.replace(span, events=((name, {"message": "{}"}),)))["node_type"] == "OUTPUT"


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({"gen_ai.tool.name": "t", "gen_ai.agent.name": "a", "gen_ai.request.model": "m"}, "t"),
        ({"tool.name": "t"}, "t"),
        ({"traceloop.span.kind": "tool", "traceloop.entity.name": "t"}, "t"),
        ({"gen_ai.agent.name": "a", "gen_ai.request.model": "m"}, "a"),
        ({"gen_ai.workflow.name": "w", "gen_ai.request.model": "m"}, "w"),
        ({"gen_ai.request.model": "m", "gen_ai.response.model": "n"}, "n"),
        ({"llm.model_name": "m"}, "m"),
        ({"mcp.method.name": "tools/call"}, "search"),
        ({"gen_ai.tool.name": ""}, "tools/call search"),
        ({"gen_ai.tool.name": 5}, "tools/call search"),
    ],
)
def test_the_name_is_the_tools_else_the_agents_else_the_models(attributes: dict[str, Any], name: str) -> None:
    node = made(Sent(name="tools/call search", attributes=attributes))
    assert node["name"] == name
    assert node["metadata"]["span_name"] == "tools/call search"


def test_ids_are_made_from_those_of_the_span() -> None:
    span = Sent(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, parent_span_id=b"\x03" * 8)
    node = made(span)
    trace = "01" * 16
    assert node["node_id"] == str(uuid5(NODE_SPACE, trace + "02" * 8))
    assert node["parent_id"] == str(uuid5(NODE_SPACE, trace + "03" * 8)), "kept though it never came"
    assert made(msgspec.structs.replace(span, parent_span_id=b""))["parent_id"] is None
    assert node["metadata"]["otel"]["trace_id"] == trace


@pytest.mark.parametrize(
    ("attributes", "session", "source"),
    [
        ({}, str(UUID(hex="ab" * 16)), "trace_id"),
        ({"gen_ai.conversation.id": ""}, str(UUID(hex="ab" * 16)), "trace_id"),
        ({"session.id": "s1"}, str(uuid5(SESSION_SPACE, "s1")), "session.id"),
        (
            {"session.id": "s1", "gen_ai.conversation.id": "CD" * 16},
            str(UUID(hex="cd" * 16)),
            "gen_ai.conversation.id",
        ),
        (
            {"gen_ai.conversation.id": "0AA22998-C5DC-721A-80E9-45C19DCFDA67"},
            "0aa22998-c5dc-721a-80e9-45c19dcfda67",
            "gen_ai.conversation.id",
        ),
        (
            {"traceloop.association.properties.thread_id": "t"},
            str(uuid5(SESSION_SPACE, "t")),
            "traceloop.association.properties.thread_id",
        ),
    ],
)
def test_the_session_is_the_conversation_else_the_trace(
    attributes: dict[str, Any], session: str, source: str
) -> None:
    span = decode_protobuf(protobuf(Sent(trace_id=b"\xab" * 16, attributes=attributes))).spans[0]
    node = node_of(span)
    assert node.session_id == session
    metadata: Any = node.value["metadata"]
    assert metadata["session_source"] == source
    assert metadata["session"] == attributes.get(source, "ab" * 16)


@pytest.mark.parametrize(
    ("attributes", "inputs"),
    [
        ({"gen_ai.tool.call.arguments": '{"a": 1}'}, {"a": 1}),
        ({"gen_ai.tool.call.arguments": '{"a":1.0}'}, {"a": 1}),
        ({"gen_ai.tool.call.arguments": {"a": [1]}}, {"a": [1]}),
        ({"gen_ai.tool.call.arguments": "{'a': 1}"}, "{'a': 1}"),
        ({"gen_ai.tool.call.arguments": '{"a":1,"a":2}'}, '{"a":1,"a":2}'),
        ({"gen_ai.tool.call.arguments": '{"a":NaN}'}, '{"a":NaN}'),
        ({"gen_ai.tool.call.arguments": '{"a":"\\u0000"}'}, '{"a":"\\u0000"}'),
        ({"gen_ai.tool.call.arguments": '{"a":"\\ud800"}'}, '{"a":"\\ud800"}'),
        ({"gen_ai.tool.call.arguments": "[" * 65 + "]" * 65}, "[" * 65 + "]" * 65),
        (
            {"gen_ai.input.messages": "[]", "gen_ai.system_instructions": '[{"type": "text"}]'},
            {"messages": [], "system_instructions": [{"type": "text"}]},
        ),
        ({"input.value": '{"a":1}', "input.mime_type": "application/json"}, {"a": 1}),
        ({"input.value": '{"a":1}'}, '{"a":1}'),
        (
            {"llm.input_messages.1.message.role": "user", "llm.input_messages.0.message.role": "system"},
            [{"message": {"role": "system"}}, {"message": {"role": "user"}}],
        ),
        ({"traceloop.entity.input": '{"a": 1}'}, {"a": 1}),
        (
            {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hi"},
            [{"role": "user", "content": "hi"}],
        ),
        ({"gen_ai.prompt.0": "x", "gen_ai.prompt.0.role": "user"}, {"0": "x", "0.role": "user"}),
        ({}, None),
    ],
)
def test_inputs_are_read_from_where_they_are(attributes: dict[str, Any], inputs: Any) -> None:
    node = made(Sent(attributes=attributes))
    assert node["inputs"] == inputs
    assert node["metadata"]["otel"].get("attributes") == attributes, "everything raw is kept"


@pytest.mark.parametrize(
    ("attributes", "outputs"),
    [
        ({"gen_ai.tool.call.result": '"done"'}, {"value": "done"}),
        ({"gen_ai.tool.call.result": "done"}, {"value": "done"}),
        ({"gen_ai.tool.call.result": "null"}, {"value": None}),
        ({"gen_ai.tool.call.result": "007"}, {"value": "007"}),
        ({"gen_ai.tool.call.result": "1.50"}, {"value": "1.50"}),
        ({"gen_ai.output.messages": SAYING}, {"value": json.loads(SAYING)}),
        ({"output.value": "x"}, {"value": "x"}),
        ({"llm.output_messages.0.message.content": "x"}, {"value": [{"message": {"content": "x"}}]}),
        ({"traceloop.entity.output": "[1]"}, {"value": [1]}),
        ({"gen_ai.completion.0.content": "x"}, {"value": [{"content": "x"}]}),
        ({}, {}),
    ],
)
def test_outputs_are_read_from_where_they_are(attributes: dict[str, Any], outputs: Any) -> None:
    assert made(Sent(attributes=attributes))["outputs"] == {"status": "success", **outputs}


def test_messages_in_events_are_read() -> None:
    events = (("gen_ai.user.message", {"content": "hi"}), ("gen_ai.choice", {"message": "{}"}))
    node = made(Sent(events=events))
    assert node["inputs"] == [{"event": "gen_ai.user.message", "content": "hi"}]
    assert node["outputs"]["value"] == [{"event": "gen_ai.choice", "message": "{}"}]


THINKING = [{"parts": [{"type": "thinking", "content": "a"}, {"type": "reasoning", "content": "b"}]}]
OI_THINKING = {
    "llm.output_messages.0.message.contents.0.message_content.type": "reasoning",
    "llm.output_messages.0.message.contents.0.message_content.text": "a",
}


@pytest.mark.parametrize(
    ("attributes", "thought"),
    [
        ({"gen_ai.output.messages": json.dumps(THINKING)}, "a\nb"),
        (OI_THINKING, "a"),
        ({"gen_ai.output.messages": SAYING}, None),
        ({"gen_ai.output.messages": json.dumps([None, {"parts": [None, {"type": "thinking"}]}])}, None),
    ],
)
def test_the_thought_process_is_what_the_model_said_of_it(
    attributes: dict[str, Any], thought: str | None
) -> None:
    assert made(Sent(attributes=attributes))["thought_process"] == thought


@pytest.mark.parametrize(
    ("attributes", "content"),
    [
        ({}, "absent"),
        ({"gen_ai.tool.call.arguments": ""}, "captured"),
        ({"gen_ai.tool.call.result": "null"}, "captured"),
        ({"input.value": "__REDACTED__"}, "redacted"),
        ({"input.value": "x", "output.value": "<REDACTED>"}, "redacted"),
        ({"llm.input_messages.0.message.content": "__REDACTED__"}, "redacted"),
        ({"gen_ai.agent.name": "__REDACTED__"}, "absent"),
    ],
)
def test_an_auditor_can_tell_empty_from_not_captured(attributes: dict[str, Any], content: str) -> None:
    assert made(Sent(attributes=attributes))["metadata"]["content"] == content


EXCEPTION = ("exception", {"exception.type": "ValueError", "exception.message": "boom"})


@pytest.mark.parametrize(
    ("span", "error"),
    [
        (Sent(), None),
        (Sent(code=1), None),
        (Sent(code=2, message="timeout"), {"type": "error", "message": "timeout"}),
        (Sent(code=2), {"type": "error", "message": "error"}),
        (Sent(attributes={"error.type": "500"}), {"type": "500", "message": "500"}),
        (Sent(attributes={"error.type": ""}), None),
        (Sent(events=(EXCEPTION,)), {"type": "ValueError", "message": "boom"}),
        (Sent(code=1, events=(EXCEPTION,)), None),
        (Sent(code=2, message="long", events=(EXCEPTION,)), {"type": "ValueError", "message": "boom"}),
        (Sent(attributes={"gen_ai.task.status": "failure"}), {"type": "error", "message": "error"}),
    ],
)
def test_a_sign_of_failure_makes_a_failure(span: Sent, error: Any) -> None:
    outputs = made(span)["outputs"]
    assert outputs["status"] == ("success" if error is None else "failed")
    assert outputs.get("error") == error


FAILED_MESSAGE = {"type": "tool", "status": "error", "content": "no"}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"isError": True, "content": [{"type": "text", "text": "no"}]}, "no"),
        ({"is_error": True, "error": "no"}, "no"),
        (FAILED_MESSAGE, "no"),
        ({"tool_call_id": "c", "status": "error", "content": "no"}, "no"),
        ({"output": FAILED_MESSAGE}, "no"),
        ({"data": {"kwargs": {"update": FAILED_MESSAGE}}}, "no"),
        ({"update": {"messages": [{"type": "ai"}, FAILED_MESSAGE]}}, "no"),
        ([FAILED_MESSAGE], "no"),
        ({"isError": False}, None),
        ({"isError": "true"}, None),
        ({"status": "error"}, None),
        ({"type": "tool", "status": "success"}, None),
        ({"rows": [FAILED_MESSAGE]}, None),
        ("error", None),
    ],
)
def test_a_tool_can_fail_softly(result: Any, message: str | None) -> None:
    attributes = {"gen_ai.tool.call.result": json.dumps(result)}
    outputs = made(tool("t", code=1, attributes=attributes))["outputs"]
    assert outputs["status"] == ("success" if message is None else "failed")
    assert outputs.get("error") == (None if message is None else {"type": "tool_error", "message": message})
    # What another span holds is no word on itself: an agent that saw a failure did not fail.
    assert of(**operation("invoke_agent"), **attributes)["outputs"]["status"] == "success"


def test_metadata_tells_times_and_measures() -> None:
    attributes = {
        "gen_ai.request.model": "asked",
        "gen_ai.response.model": "answered",
        "gen_ai.provider.name": "p",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.completion_tokens": 4,
        "llm.token_count.total": 7,
        "llm.cost.total": 0.0625,
    }
    metadata = made(Sent(attributes=attributes))["metadata"]
    assert metadata.pop("otel")
    assert metadata == {
        "timestamp": "2026-10-03T08:27:35.123456Z",
        "start_time_unix_nano": str(START_NS),
        "end_time_unix_nano": str(START_NS + 1_500_000),
        "duration_ms": 1.5,
        "model": "answered",
        "provider": "p",
        "tokens": {"input": 3, "output": 4, "total": 7},
        "cost": 0.0625,
        "content": "absent",
        "session": metadata["session"],
        "session_source": "trace_id",
        "span_name": "work",
        "node_type_source": "model",
    }


@pytest.mark.parametrize(
    ("start", "end", "timestamp", "duration"),
    [
        (999_999_999, 1_000_000_999, "1970-01-01T00:00:00.999999Z", 0.001),
        (1_704_067_259_999_999_600, 1_704_067_259_999_999_999, "2024-01-01T00:00:59.999999Z", 0),
        (0, 5, None, None),
        (5_000, 4_000, "1970-01-01T00:00:00.000005Z", None),
        (2**64 - 1, 2**64 - 1, "2554-07-21T23:34:33.709551Z", 0),
    ],
)
def test_c13_times_are_cut_to_microseconds_and_kept_in_full(
    start: int, end: int, timestamp: str | None, duration: float | None
) -> None:
    metadata = made(Sent(start_ns=start, end_ns=end))["metadata"]
    assert metadata.get("timestamp") == timestamp
    assert metadata.get("duration_ms") == duration
    assert (metadata["start_time_unix_nano"], metadata["end_time_unix_nano"]) == (str(start), str(end))


@pytest.mark.parametrize("count", [-1, 1.5, "3", True, 2**53 + 1])
def test_what_is_no_count_is_no_tokens(count: Any) -> None:
    assert "tokens" not in of(gen_ai__usage__input_tokens=count)["metadata"]


def test_the_content_hash_can_be_computed_from_the_record() -> None:
    node = made(tool("t", attributes={"x": 1.5}))
    recorded = json.loads(canonical(node))
    assert content_hash(recorded) == hashlib.sha256(canonical(node["metadata"]["otel"]).encode()).hexdigest()
    recorded["metadata"]["otel"]["attributes"]["x"] = 1.25
    assert content_hash(recorded) != content_hash(node)
    assert content_hash({"node_id": "x"}) is None


@pytest.mark.parametrize(
    ("name", "agent_id"),
    [
        ("mailer", "mailer"),
        ("a" * 64, "a" * 64),
        ("unknown_service:python", "unknown_service-python-703e424b"),
        ("a" * 65, "a" * 55 + "-635361c4"),
        ("../x", "---x-"),
        ("é", "--"),
    ],
)
def test_a_name_becomes_an_agent_id_of_its_own(name: str, agent_id: str) -> None:
    made_id = agent_id_from(name)
    assert made_id.startswith(agent_id)
    assert len(made_id) <= 64
    changed = name != made_id
    assert made_id.endswith(hashlib.sha256(name.encode()).hexdigest()[:8]) is changed
