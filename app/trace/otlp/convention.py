"""What kind of node a span is: three conventions say it, each in its own words.

Precedence: ``gen_ai.operation.name``, ``openinference.span.kind``, ``traceloop.span.kind``, a tool's name; a
span of which none of them says anything is PLANNING.
"""

from __future__ import annotations

from typing import Final

from app.chain.strict import JsonObject

AGENT: Final = "AGENT"
OUTPUT: Final = "OUTPUT"
PLANNING: Final = "PLANNING"
RETRIEVAL: Final = "RETRIEVAL"
SELF_CORRECTION: Final = "SELF_CORRECTION"
TOOL_CALL: Final = "TOOL_CALL"

MODEL_CALL: Final = "MODEL_CALL"
"""PLANNING or OUTPUT, depending on whether the model asked for tools: never the type of a node."""

_OPERATIONS: Final = {
    "execute_tool": TOOL_CALL,
    "retrieval": RETRIEVAL,
    "embeddings": RETRIEVAL,
    "invoke_agent": AGENT,
    "create_agent": AGENT,
    "invoke_workflow": AGENT,
    "plan": PLANNING,
    "chat": MODEL_CALL,
    "text_completion": MODEL_CALL,
    "generate_content": MODEL_CALL,
    "guardrail": SELF_CORRECTION,
    "apply_guardrail": SELF_CORRECTION,
    "evaluate": SELF_CORRECTION,
    "evaluation": SELF_CORRECTION,
}
_OPENINFERENCE: Final = {
    "TOOL": TOOL_CALL,
    "RETRIEVER": RETRIEVAL,
    "RERANKER": RETRIEVAL,
    "EMBEDDING": RETRIEVAL,
    "AGENT": AGENT,
    "CHAIN": AGENT,
    "LLM": MODEL_CALL,
    "PROMPT": PLANNING,
    "GUARDRAIL": SELF_CORRECTION,
    "EVALUATOR": SELF_CORRECTION,
}
_TRACELOOP: Final = {"tool": TOOL_CALL, "agent": AGENT, "workflow": AGENT, "task": AGENT}
_REQUESTS: Final = {
    "chat": MODEL_CALL,
    "completion": MODEL_CALL,
    "embedding": RETRIEVAL,
    "rerank": RETRIEVAL,
}
_SAYING: Final = (
    ("gen_ai.operation.name", _OPERATIONS, "gen_ai"),
    ("mcp.method.name", {"tools/call": TOOL_CALL}, "mcp"),
    ("openinference.span.kind", _OPENINFERENCE, "openinference"),
    ("traceloop.span.kind", _TRACELOOP, "traceloop"),
    ("llm.request.type", _REQUESTS, "traceloop"),
)


def role_of(attributes: JsonObject) -> tuple[str, str]:
    """``(node type or MODEL_CALL, what said so)``."""
    for key, roles, convention in _SAYING:
        said = attributes.get(key)
        if type(said) is str and (role := roles.get(said) or _loosely(key, said)) is not None:
            return role, convention
    if tool_name(attributes) is not None:
        return TOOL_CALL, "tool_name"
    if text(attributes, ("gen_ai.request.model",)) is not None:
        return MODEL_CALL, "model"
    return PLANNING, "default"


def _loosely(key: str, said: str) -> str | None:
    """Operations on memories (``search_memory``…) are many; kinds of OpenInference are written either way."""
    if key == "gen_ai.operation.name":
        return RETRIEVAL if "memory" in said else None
    return _OPENINFERENCE.get(said.upper()) if key == "openinference.span.kind" else None


def text(attributes: JsonObject, keys: tuple[str, ...]) -> str | None:
    """The first of these attributes that is a text and not empty."""
    for key in keys:
        value = attributes.get(key)
        if value and type(value) is str:
            return value
    return None


def tool_name(attributes: JsonObject) -> str | None:
    """The tool's name, if the span names one."""
    named = text(attributes, ("gen_ai.tool.name", "tool.name"))
    if named is None and attributes.get("traceloop.span.kind") == "tool":
        return text(attributes, _ENTITY)
    return named


_ENTITY: Final = ("traceloop.entity.name",)
_AGENTS: Final = ("gen_ai.agent.name", "agent.name")
_NAMES: Final = (
    "gen_ai.workflow.name",
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.model_name",
    "embedding.model_name",
    "reranker.model_name",
)
MODELS: Final = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.response.model",
    "llm.model_name",
    "embedding.model_name",
    "reranker.model_name",
)
PROVIDERS: Final = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system")


def name_of(attributes: JsonObject, span_name: str) -> str:
    """The node's name: tool, else agent, workflow, model, span."""
    return (
        tool_name(attributes)
        or _mcp_tool(attributes, span_name)
        or text(attributes, _AGENTS)
        or ("traceloop.span.kind" in attributes and text(attributes, _ENTITY))
        or text(attributes, _NAMES)
        or span_name
    )


def _mcp_tool(attributes: JsonObject, span_name: str) -> str | None:
    """The tool of an MCP call that names it in the span's name alone: ``tools/call search``."""
    if attributes.get("mcp.method.name") != "tools/call":
        return None
    return span_name.removeprefix("tools/call ").strip() or None


def model_of(attributes: JsonObject) -> str | None:
    """The model that answered, else the one that was asked."""
    return text(attributes, MODELS)


def provider_of(attributes: JsonObject) -> str | None:
    """Whose model it is."""
    return text(attributes, PROVIDERS)
