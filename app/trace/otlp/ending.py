"""How a span ended: ``success`` or ``failed``, and with which error.

Many libraries leave the status UNSET on success, so that only a sign of failure makes one. A tool call can
fail softly: the span is sound, and its result says that the tool reported an error.
"""

from __future__ import annotations

from typing import Final

from app.chain.strict import JsonObject, JsonValue
from app.trace.otlp.span import Span

SUCCESS: Final = "success"
FAILED: Final = "failed"

_OK: Final = 1
_ERROR: Final = 2

_WRAPPERS: Final = ("output", "data", "kwargs", "update", "result", "messages")
"""Members in which libraries wrap the tool's own answer."""

_WRAPPERS_SET: Final = frozenset(_WRAPPERS)
_MAX_WRAPPERS: Final = 8
_MAX_ITEMS: Final = 100


def error_of(span: Span, result: JsonValue, *, is_tool: bool) -> JsonObject | None:
    """The error that a span ended with, ``{type, message}``; None when it succeeded."""
    attributes = span.attributes
    declared = attributes.get("error.type")
    exception = _exception(span.events) if span.events else None
    failed = (
        span.status_code == _ERROR
        or (declared is not None and declared not in ("", False))
        or (exception is not None and span.status_code != _OK)
        or attributes.get("gen_ai.task.status") == "failure"
    )
    if failed:
        return _described(span, declared, exception or {})
    soft = soft_failure(result) if is_tool else None
    return None if soft is None else {"type": "tool_error", "message": _message_of(soft)}


def _described(span: Span, declared: JsonValue, exception: JsonObject) -> JsonObject:
    kind = (
        _text(declared)
        or _text(exception.get("exception.type"))
        or _text(span.attributes.get("exception.type"))
    )
    message = (
        _text(exception.get("exception.message"))
        or span.status_message
        or _text(span.attributes.get("error.message"))
        or _text(span.attributes.get("exception.message"))
    )
    return {"type": kind or "error", "message": message or kind or "error"}


def _exception(events: list[JsonValue]) -> JsonObject | None:
    """The attributes of the last exception event."""
    for event in reversed(events):
        if isinstance(event, dict) and event.get("name") == "exception":
            attributes = event.get("attributes")
            return attributes if isinstance(attributes, dict) else {}
    return None


def soft_failure(value: JsonValue, depth: int = 0) -> JsonObject | None:
    """The part of a tool's result that says the tool failed; None when nothing does.

    That is ``isError`` or ``is_error`` true (MCP), or a tool message with ``status: error`` (LangChain).
    """
    if depth > _MAX_WRAPPERS:
        return None
    if isinstance(value, list):
        return _first_failure(value[:_MAX_ITEMS], depth + 1)
    if not isinstance(value, dict):
        return None
    if value.get("isError") is True or value.get("is_error") is True or _is_failed_message(value):
        return value
    if _WRAPPERS_SET.isdisjoint(value):
        return None
    return _first_failure([value[name] for name in _WRAPPERS if name in value], depth + 1)


def _first_failure(values: list[JsonValue], depth: int) -> JsonObject | None:
    found = (soft_failure(item, depth) for item in values)
    return next((part for part in found if part is not None), None)


def _is_failed_message(value: JsonObject) -> bool:
    return value.get("status") == "error" and (value.get("type") == "tool" or "tool_call_id" in value)


def _message_of(part: JsonObject) -> str:
    """What the tool said: the text of its content."""
    content = part.get("content", part.get("error", part.get("message")))
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [item.get("text") for item in content if isinstance(item, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
