"""Ids: what a span, a session and a service are called here, always the same for the same span.

Two names never become one agent: where making a valid id changed a name, a digest of the name is added.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final
from uuid import UUID

from app.chain.strict import JsonObject, JsonValue
from app.trace.node import is_uuid

NODE_SPACE: Final = UUID("5c0b4f0e-0f6c-5b1d-9f0a-7b1f6f2f0a01")
"""Namespace of node ids: ``uuid5(NODE_SPACE, trace_id + span_id)``, both in lower-case hex."""

SESSION_SPACE: Final = UUID("5c0b4f0e-0f6c-5b1d-9f0a-7b1f6f2f0a02")
"""Namespace of sessions whose own id is no UUID: ``uuid5(SESSION_SPACE, id)``."""

UNKNOWN_SERVICE: Final = "unknown_service"
"""What OpenTelemetry calls a service without a name."""

MAX_AGENT_ID: Final = 64

_NODE_SPACE_BYTES: Final = NODE_SPACE.bytes
_SESSION_SPACE_BYTES: Final = SESSION_SPACE.bytes
_NO_ID_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")
_HEX_32: Final = re.compile(r"[0-9a-fA-F]{32}")

_AGENT_KEYS: Final = ("gen_ai.agent.id", "gen_ai.agent.name", "service.name")
_SESSION_KEYS: Final = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)


@lru_cache(maxsize=8_192)
def node_id_of(trace_id: str, span_id: str) -> str:
    """The node id of a span: a UUID made from its trace id and its span id (lower-case hex)."""
    return _uuid5(_NODE_SPACE_BYTES, trace_id + span_id)


def session_of(attributes: JsonObject, trace_id: str) -> tuple[str, str, str]:
    """``(session UUID, its own id, where that was found)``; without any it is the trace."""
    for key in _SESSION_KEYS:
        own = attributes.get(key)
        if own and type(own) is str:
            return session_uuid(own), own, key
    return _hyphened(trace_id), trace_id, "trace_id"


def session_uuid(own: str) -> str:
    """The UUID of a session: its own id where that is one (or 32 hex digits), else one made from it."""
    if is_uuid(own):
        return own.lower()
    if _HEX_32.fullmatch(own) is not None:
        return _hyphened(own.lower())
    return _uuid5(_SESSION_SPACE_BYTES, own)


def agent_of(attributes: JsonObject, resource: JsonObject) -> str:
    """The id of the agent that a span belongs to when the caller's token does not say it.

    ``gen_ai.agent.id``, else ``gen_ai.agent.name``, else ``service.name``; the span's before the resource's.
    """
    return agent_id_from(_agent_name(attributes, resource))


def _agent_name(attributes: JsonObject, resource: JsonObject) -> str:
    of_resource = resource.get("attributes")
    for key in _AGENT_KEYS:
        for source in (attributes, of_resource):
            name: JsonValue = source.get(key) if isinstance(source, dict) else None
            if name and isinstance(name, str):
                return name
    return UNKNOWN_SERVICE


@lru_cache(maxsize=1_024)
def agent_id_from(name: str) -> str:
    """``name`` as an agent id; one that had to be changed ends in eight digits of its own digest."""
    made = _NO_ID_CHARACTER.sub("-", name)
    if made == name and len(name) <= MAX_AGENT_ID:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{made[: MAX_AGENT_ID - 1 - len(digest)]}-{digest}"


def _uuid5(space: bytes, name: str) -> str:
    """As ``str(uuid.uuid5(…))``, in a third of the time: this is done for every span."""
    digest = hashlib.sha1(space + name.encode("utf-8"), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def _hyphened(hex_32: str) -> str:
    return f"{hex_32[:8]}-{hex_32[8:12]}-{hex_32[12:16]}-{hex_32[16:20]}-{hex_32[20:]}"
