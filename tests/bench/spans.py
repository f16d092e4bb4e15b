"""OTLP exports to be posted: traces of an agent's run, no two alike, in protobuf."""

from __future__ import annotations

import json
import random
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

SPANS = 20
"""Spans of one trace: the root, then model and tool calls in turn."""

_START_NS = 1_790_000_000_000_000_000
_TEXT_BYTES = 100

Attributes = dict[str, str | int]


def export(rng: random.Random, traces: int, service: str = "bench") -> bytes:
    """One request of so many traces, all by one service, which is one agent."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(_pairs({"service.name": service}))
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = "bench"
    for _ in range(traces):
        _add_trace(rng, of_scope, service)
    message: bytes = request.SerializeToString()
    return message


def _add_trace(rng: random.Random, of_scope: Any, service: str) -> None:
    trace_id, root = rng.randbytes(16), rng.randbytes(8)
    for number in range(SPANS):
        span = of_scope.spans.add(
            trace_id=trace_id,
            span_id=rng.randbytes(8) if number else root,
            parent_span_id=root if number else b"",
            start_time_unix_nano=_START_NS + number * 1_000,
            end_time_unix_nano=_START_NS + number * 1_000 + 1_000_000,
        )
        span.status.code = 1
        if not number:
            span.name, attributes = f"invoke_agent {service}", _agent(service)
        elif number % 2:
            span.name, attributes = "chat gpt-4o", _model(rng)
        else:
            span.name, attributes = "execute_tool search", _tool(rng, number)
        if number and number % 10 == 0:
            span.status.code, span.status.message = 2, "timeout"
            attributes["error.type"] = "timeout"
        span.attributes.extend(_pairs(attributes))


def _agent(service: str) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": service,
        "openinference.span.kind": "AGENT",
    }


def _model(rng: random.Random) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.input.messages": _message(rng, "user"),
        "gen_ai.output.messages": _message(rng, "assistant"),
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4o",
        "llm.token_count.prompt": 120,
        "llm.token_count.completion": 30,
    }


def _tool(rng: random.Random, number: int) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": f"call_{number}",
        "gen_ai.tool.call.arguments": json.dumps({"q": _text(rng)}),
        "gen_ai.tool.call.result": json.dumps({"r": _text(rng)}),
        "openinference.span.kind": "TOOL",
        "tool.name": "search",
    }


def _message(rng: random.Random, role: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": _text(rng)}]}])


def _text(rng: random.Random) -> str:
    return rng.randbytes(_TEXT_BYTES).hex()


def _pairs(attributes: Attributes) -> list[KeyValue]:
    return [
        KeyValue(
            key=key,
            value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value),
        )
        for key, value in attributes.items()
    ]
