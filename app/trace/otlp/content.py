"""What went into a span and what came out of it, from whichever convention carries it.

Content may be captured, redacted or absent, and the three must stay apart: an auditor has to tell an empty
answer from one that was never recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from app.chain.strict import MAX_STRING, JsonObject, JsonValue
from app.trace.otlp.plain import is_plain_value
from app.trace.otlp.text_json import as_text, parsed

CAPTURED: Final = "captured"
REDACTED: Final = "redacted"
ABSENT: Final = "absent"

REDACTION_MARKS: Final = ("__REDACTED__", "<REDACTED>")
"""What instrumentations write in the place of content that they were told to leave out."""

_JSON_MIME: Final = frozenset({"application/json", "json"})


class Found(msgspec.Struct, frozen=True):
    """A content: its value, where it was found (None: nowhere), whether it was redacted.

    ``plain`` says that the quick encoder writes its numbers canonically.
    """

    value: JsonValue
    source: str | None
    plain: bool = True
    redacted: bool = False


NOTHING: Final = Found(None, None)


def inputs_of(attributes: JsonObject, events: list[JsonValue]) -> Found:
    """The arguments of a tool, the messages to a model, the input of anything else."""
    for key in ("gen_ai.tool.call.arguments", "tool_arguments"):
        if key in attributes:
            return _read(attributes, key)
    if "gen_ai.input.messages" in attributes or "gen_ai.system_instructions" in attributes:
        return _together(attributes)
    if "input.value" in attributes:
        return _value_of(attributes, "input")
    return (
        _messages(attributes, "llm.input_messages.")
        or _first(attributes, ("traceloop.entity.input", "pydantic_ai.all_messages", "tool.parameters"))
        or _messages(attributes, "gen_ai.prompt.")
        or (_of_events(events, _PROMPT_EVENTS) if events else None)
        or NOTHING
    )


def outputs_of(attributes: JsonObject, events: list[JsonValue]) -> Found:
    """The result of a tool, the messages of a model, the output of anything else."""
    for key in ("gen_ai.tool.call.result", "tool_response", "gen_ai.output.messages"):
        if key in attributes:
            return _read(attributes, key)
    if "output.value" in attributes:
        return _value_of(attributes, "output")
    return (
        _messages(attributes, "llm.output_messages.")
        or _first(attributes, ("traceloop.entity.output", "final_result"))
        or _messages(attributes, "gen_ai.completion.")
        or (_of_events(events, _CHOICE_EVENTS) if events else None)
        or NOTHING
    )


_PROMPT_EVENTS: Final = frozenset(
    {
        "gen_ai.system.message",
        "gen_ai.user.message",
        "gen_ai.assistant.message",
        "gen_ai.tool.message",
        "gen_ai.content.prompt",
    }
)
_CHOICE_EVENTS: Final = frozenset({"gen_ai.choice", "gen_ai.content.completion"})


def content_word(found: tuple[Found, Found]) -> str:
    """``captured``, ``redacted`` (any part of it) or ``absent``."""
    if found[0].redacted or found[1].redacted:
        return REDACTED
    return ABSENT if found[0].source is None and found[1].source is None else CAPTURED


def asks_for_tools(attributes: JsonObject, outputs: Found, events: list[JsonValue]) -> bool:
    """Whether a model's answer is a request to call tools."""
    value = outputs.value
    if outputs.source == "gen_ai.output.messages" and isinstance(value, list):
        return any(map(_has_tool_call, value))
    if _has_reason(attributes.get("gen_ai.response.finish_reasons")):
        return True
    for key in attributes:
        if ".tool_calls." in key and key.startswith(("llm.output_messages.", "gen_ai.completion.")):
            return True
        if key.endswith(".finish_reason") and _has_reason(attributes[key]):
            return True
    return any(map(_is_tool_choice, events)) if events else False


_MAX_THOUGHT: Final = MAX_STRING // 4
"""Characters that are surely not more bytes than a string may have; ``metadata.otel`` has all of them."""


def thoughts_of(attributes: JsonObject, outputs: Found) -> str | None:
    """What the model said of its reasoning; None when nothing was recorded."""
    thoughts: list[str] = []
    if outputs.source == "gen_ai.output.messages":
        thoughts += _thinking_parts(outputs.value)
    elif "llm.output_messages." in "\n".join(attributes):
        thoughts += _thinking_contents(attributes)
    return "\n".join(thoughts)[:_MAX_THOUGHT] if thoughts else None


# --- reading ---------------------------------------------------------------------------------------------


def _read(attributes: JsonObject, key: str) -> Found:
    """An attribute whose text is JSON by convention; a structured one is taken as it is."""
    value = attributes[key]
    if isinstance(value, str):
        document = parsed(value)
        return Found(document.value, key, document.plain_numbers, _is_redacted(value))
    return Found(value, key, is_plain_value(value))


def _first(attributes: JsonObject, keys: tuple[str, ...]) -> Found | None:
    for key in keys:
        if key in attributes:
            return _read(attributes, key)
    return None


def _together(attributes: JsonObject) -> Found:
    if "gen_ai.system_instructions" not in attributes:
        messages = _read(attributes, "gen_ai.input.messages")
        return Found({"messages": messages.value}, messages.source, messages.plain, messages.redacted)
    names = {"messages": "gen_ai.input.messages", "system_instructions": "gen_ai.system_instructions"}
    found = {name: _read(attributes, key) for name, key in names.items() if key in attributes}
    return Found(
        {name: part.value for name, part in found.items()},
        next(iter(found.values())).source,
        all(part.plain for part in found.values()),
        any(part.redacted for part in found.values()),
    )


def _value_of(attributes: JsonObject, side: str) -> Found:
    """OpenInference: ``input.value`` or ``output.value``, parsed when its mime type is JSON."""
    key = f"{side}.value"
    value = attributes[key]
    if isinstance(value, str):
        is_json = attributes.get(f"{side}.mime_type") in _JSON_MIME
        document = parsed(value) if is_json else as_text(value)
        return Found(document.value, key, document.plain_numbers, _is_redacted(value))
    return Found(value, key, is_plain_value(value))


def _messages(attributes: JsonObject, prefix: str) -> Found | None:
    """Messages rebuilt from flat attributes such as ``llm.input_messages.0.message.role``."""
    if prefix not in "\n".join(attributes):  # as in most spans: asked at once
        return None
    tree: JsonObject = {}
    redacted = False
    for key, value in attributes.items():
        if key.startswith(prefix):
            _put(tree, key[len(prefix) :].split("."), value)
            redacted = redacted or (isinstance(value, str) and _is_redacted(value))
    if not tree:
        return None
    value = _as_lists(tree)
    return Found(value, prefix.rstrip("."), is_plain_value(value), redacted)


def _put(tree: JsonObject, path: list[str], value: JsonValue) -> None:
    """Puts a value where its path leads; a path that another value already ends is kept as one long name."""
    at = tree
    for place, step in enumerate(path[:_MAX_PATH]):
        below = at.setdefault(step, {}) if place + 1 < len(path[:_MAX_PATH]) else None
        if not isinstance(below, dict):
            at[".".join(path[place:])] = value
            return
        at = below


_MAX_PATH: Final = 12


def _as_lists(value: JsonValue) -> JsonValue:
    """Objects whose names are all numbers become lists in that order."""
    if not isinstance(value, dict):
        return value
    members = {name: _as_lists(member) for name, member in value.items()}
    if members and all(name.isascii() and name.isdigit() and len(name) <= _MAX_INDEX for name in members):
        return [members[name] for name in sorted(members, key=int)]
    return members


_MAX_INDEX: Final = 6


def _of_events(events: list[JsonValue], names: frozenset[str]) -> Found | None:
    """The older form: one event a message."""
    found = [
        {"event": event["name"], **_event_attributes(event)}
        for event in events
        if isinstance(event, dict) and event["name"] in names
    ]
    if not found:
        return None
    value: JsonValue = [*found]
    redacted = any(
        isinstance(member, str) and _is_redacted(member) for message in found for member in message.values()
    )
    return Found(value, "events", is_plain_value(value), redacted)


def _event_attributes(event: JsonObject) -> JsonObject:
    attributes = event.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _is_redacted(text: str) -> bool:
    return "REDACTED" in text and any(mark in text for mark in REDACTION_MARKS)


# --- what a model's answer holds -------------------------------------------------------------------------


def _has_tool_call(message: JsonValue) -> bool:
    if not isinstance(message, dict):
        return False
    if message.get("tool_calls"):
        return True
    parts = message.get("parts")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_call" for part in parts
    )


_ASKING: Final = frozenset({"tool_call", "tool_calls", "tool_use", "function_call"})


def _has_reason(reasons: JsonValue) -> bool:
    found = reasons if isinstance(reasons, list) else [reasons]
    return any(isinstance(reason, str) and reason in _ASKING for reason in found)


def _is_tool_choice(event: JsonValue) -> bool:
    if not isinstance(event, dict) or event["name"] not in _CHOICE_EVENTS:
        return False
    attributes = _event_attributes(event)
    if attributes.get("tool_calls") or _has_reason(attributes.get("finish_reason")):
        return True
    message = attributes.get("message")
    return _has_tool_call(parsed(message).value if isinstance(message, str) else message)


def _thinking_parts(messages: JsonValue) -> Iterator[str]:
    """Parts of type ``reasoning`` or ``thinking``."""
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("parts") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") in ("reasoning", "thinking"):
                text = part.get("content") or part.get("text")
                if isinstance(text, str) and text:
                    yield text


def _thinking_contents(attributes: JsonObject) -> Iterator[str]:
    """OpenInference: ``llm.output_messages.0.message.contents.0.message_content.type`` is ``reasoning``."""
    for key, value in attributes.items():
        if (
            key.startswith("llm.output_messages.")
            and key.endswith(".message_content.type")
            and value in ("reasoning", "thinking")
        ):
            text = attributes.get(key.removesuffix("type") + "text")
            if isinstance(text, str) and text:
                yield text
