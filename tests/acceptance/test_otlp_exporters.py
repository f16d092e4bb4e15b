"""Spans of the real exporter, and of agents whose model is a script, over a socket to a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.integration.http.client import Client
from tests.support.otlp import nodes, records
from tests.support.server import ServerProcess


@contextmanager
def tracing(server: ServerProcess, service: str, **options: Any) -> Iterator[TracerProvider]:
    """A provider that exports to the server; all is delivered when the block ends."""
    exporter = OTLPSpanExporter(
        endpoint=f"{server.base_url}/v1/traces",
        headers={"authorization": f"Bearer {server.operator_token}"},
        **options,
    )
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider
    finally:
        assert provider.force_flush(20_000)
        provider.shutdown()


@pytest.fixture
def operator(server: ServerProcess) -> Client:
    return Client(server.base_url, server.operator_token)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_real_exporter_delivers(
    server: ServerProcess, operator: Client, compression: Compression
) -> None:
    with tracing(server, "svc", compression=compression) as provider:
        tracer = provider.get_tracer("tests")
        with tracer.start_as_current_span("root"):
            for number in range(200):
                with tracer.start_as_current_span(f"s{number}", attributes={"n": number, "f": 0.5}):
                    pass
    stored = nodes(operator, "svc")
    assert sorted(node["name"] for node in stored) == sorted(["root", *[f"s{n}" for n in range(200)]])
    [root] = [node for node in stored if node["parent_id"] is None]
    assert {node["parent_id"] for node in stored if node is not root} == {root["node_id"]}


def calls(operator: Client, agent: str) -> list[tuple[str, str]]:
    found = [node for node in nodes(operator, agent) if node["node_type"] == "TOOL_CALL"]
    found.sort(key=lambda node: int(node["metadata"]["start_time_unix_nano"]))
    return [(node["name"], node["outputs"]["status"]) for node in found]


def test_pydantic_ai_sends_its_runs(server: ServerProcess, operator: Client) -> None:
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.capabilities import Instrumentation
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.models.instrumented import InstrumentationSettings

    def script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("42")])
        return ModelResponse(
            parts=[
                ThinkingPart("look it up"),
                ToolCallPart("find", {"q": "answer"}, tool_call_id="c1"),
                ToolCallPart("fail", {}, tool_call_id="c2"),
            ]
        )

    with tracing(server, "svc") as provider:
        agent = Agent(
            FunctionModel(script),
            name="deep-thought",
            capabilities=[Instrumentation(InstrumentationSettings(tracer_provider=provider))],
        )

        @agent.tool_plain
        def find(q: str) -> dict[str, str]:
            return {"found": q}

        @agent.tool_plain
        def fail() -> str:
            raise ModelRetry("not now")

        # Not run_sync, which leaves an event loop behind that nobody closes.
        assert asyncio.run(agent.run("what is it?")).output == "42"

    assert calls(operator, "deep-thought") == [("find", "success"), ("fail", "failed")]
    stored = nodes(operator, "deep-thought")
    assert [node["node_type"] for node in stored].count("AGENT") == 1
    [find_call] = [node for node in stored if node["name"] == "find"]
    assert (find_call["inputs"], find_call["outputs"]["value"]) == ({"q": "answer"}, {"found": "answer"})
    assert [node["thought_process"] for node in stored if node["node_type"] == "PLANNING"] == ["look it up"]
    assert len({record["payload"]["session_id"] for record in records(operator, "deep-thought")}) == 1


def test_langchain_through_openinference_sends_its_runs(server: ServerProcess, operator: Client) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from openinference.instrumentation.langchain import LangChainInstrumentor

    @tool
    def find(q: str) -> str:
        """Finds."""
        return f"found {q}"

    @tool
    def fail(q: str) -> str:
        """Fails."""
        raise ValueError(q)

    with tracing(server, "chain") as provider:
        instrumentor = LangChainInstrumentor()
        instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
        try:
            model = GenericFakeChatModel(messages=iter([AIMessage("done")]))
            asked = {"name": "find", "args": {"q": "x"}, "id": "c1", "type": "tool_call"}
            answered = find.invoke(asked)
            assert isinstance(answered, ToolMessage)
            with pytest.raises(ValueError, match="y"):
                fail.invoke({"q": "y"})
            assert model.invoke([HumanMessage("hi")]).content == "done"
        finally:
            instrumentor.uninstrument()

    assert calls(operator, "chain") == [("find", "success"), ("fail", "failed")]
    stored = {node["name"]: node for node in nodes(operator, "chain")}
    assert stored["fail"]["outputs"]["error"] == {"type": "ValueError", "message": "y"}
    [output] = [node for node in stored.values() if node["node_type"] == "OUTPUT"]
    assert "done" in str(output["outputs"]["value"])
