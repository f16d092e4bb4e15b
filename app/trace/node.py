"""One node of a trace tree, as a guarded action leaves it on the record.

Every guarded action is a TOOL_CALL node too: its outcome or denial carries a one-node fragment, so that
one SQL query sees the failed tool calls of guarded and of observed agents.
"""

from __future__ import annotations

import enum
import re
import uuid
from typing import TypeGuard
from uuid import UUID

from app.chain.strict import JsonValue

TOOL_CALL = "TOOL_CALL"
"""``node_type`` of a call of a tool."""


_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")


def is_uuid(value: JsonValue) -> TypeGuard[str]:
    """Whether ``value`` is a UUID in its hyphenated form, either case; ``UUID()`` alone reads other forms."""
    return type(value) is str and _UUID.fullmatch(value) is not None


def read_uuid(value: JsonValue) -> UUID | None:
    """The UUID that ``value`` is in its hyphenated form; None for anything else."""
    return UUID(value) if is_uuid(value) else None


class NodeStatus(enum.StrEnum):
    """How a tool call ended: the ``outputs.status`` of its node."""

    SUCCESS = "success"
    FAILED = "failed"
    HARMFUL = "harmful"
    UNKNOWN = "unknown"
    DENIED = "denied"


def action_node_id(log_uuid: UUID, action_id: str) -> UUID:
    """Id of the node of one action: the same for ever, and another one in every other chain.

    A later outcome of the same action is a node of the same id, which replaces the earlier in views.
    """
    return uuid.uuid5(log_uuid, action_id)


def tool_call_node(
    *,
    node_id: UUID,
    parent_id: UUID | None,
    name: str,
    inputs: JsonValue,
    thought_process: str | None,
    status: NodeStatus,
    outputs: dict[str, JsonValue],
    metadata: dict[str, JsonValue],
) -> dict[str, JsonValue]:
    """A TOOL_CALL node.

    Args:
        node_id: the node's own id, see ``action_node_id``.
        parent_id: the node under which the call was made; None at the root.
        name: the tool's name, exactly as requested.
        inputs: what the tool was called with; any JSON value.
        thought_process: the agent's stated reason, if it gave one.
        status: how the call ended; becomes ``outputs.status``.
        outputs: what else there is to say of the end.
        metadata: action_id, timestamp (RFC 3339), cost and the like.
    """
    return {
        "node_id": str(node_id),
        "parent_id": None if parent_id is None else str(parent_id),
        "node_type": TOOL_CALL,
        "name": name,
        "inputs": inputs,
        "thought_process": thought_process,
        "outputs": {**outputs, "status": status.value},
        "metadata": metadata,
    }


def fragment(node: dict[str, JsonValue], session_id: UUID | None) -> dict[str, JsonValue]:
    """The members that put one node on a record: ``session_id`` (if there is one) and the tree."""
    tree: dict[str, JsonValue] = {"total_nodes": 1, "trace_tree": [node]}
    if session_id is not None:
        tree["session_id"] = str(session_id)
    return tree
