"""A fragment of a trace tree: a whole compiled tree or any part of one, checked and kept as sent.

``{session_id, total_nodes, trace_tree: [nodes]}``. Children may arrive before their parents and some parents
never come, so a parent outside the fragment is sound. Refused is what can be seen to be wrong in the
fragment itself: a count that is not the count, an id twice, a cycle, a member of a wrong type. Members that
are not ours are kept, in the fragment and in its nodes.

A batch holds thousands of nodes, so that a sound one is passed by cheap comparisons; only one with a fault
is looked at closely, to name the node and its member.
"""

from __future__ import annotations

import re
from typing import NoReturn
from uuid import UUID

import msgspec

from app.chain.strict import JsonObject, JsonValue
from app.errors import InvalidMemberError
from app.trace.node import is_uuid

MAX_NODES = 10_000
"""Nodes of one fragment; a larger tree is sent as several."""

MAX_NAME_CHARS = 1_024
"""Longest name of a node, in characters."""

RESERVED_MEMBERS = frozenset({"idempotency", "redacted"})
"""Members of a payload that the service itself writes."""

_NODE_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_USUAL_TYPES = frozenset(
    {"PLANNING", "TOOL_CALL", "SELF_CORRECTION", "OUTPUT", "AGENT", "LLM_CALL", "RETRIEVAL"}
)
"""Found by a hash; any other one is matched against the pattern."""

_A_UUID = "must be a UUID such as 123e4567-e89b-12d3-a456-426614174000"
_A_UUID_OR_NULL = f"{_A_UUID}, or null"
_A_NAME = f"must be a string of 1 to {MAX_NAME_CHARS} characters"
_A_TYPE = "must match [A-Z][A-Z0-9_]{0,63}, such as TOOL_CALL"
_SHOWN_IDS = 8


class Fragment(msgspec.Struct, frozen=True):
    """A sound fragment: its session, the number of its nodes, and the whole of it as sent."""

    session_id: UUID
    nodes: int
    payload: JsonObject

    @classmethod
    def parse(cls, value: JsonValue) -> Fragment:
        """Reads ``{session_id, total_nodes, trace_tree}``.

        Raises:
            InvalidMemberError: names the member and, in the tree, the node.
        """
        if type(value) is not dict:
            raise InvalidMemberError("trace", "must be an object")
        reserved = next((name for name in RESERVED_MEMBERS if name in value), None)
        if reserved is not None:
            instead = "; send the header Idempotency-Key" if reserved == "idempotency" else ""
            raise InvalidMemberError(reserved, f"is the service's own{instead}")
        session_id = value.get("session_id")
        if not is_uuid(session_id):
            raise InvalidMemberError("session_id", _unless_missing(value, "session_id", _A_UUID))
        tree = _tree(value)
        _check_nodes(tree)
        return cls(UUID(session_id), len(tree), value)


def _tree(value: JsonObject) -> list[JsonValue]:
    tree, total = value.get("trace_tree"), value.get("total_nodes")
    if type(tree) is not list or not tree:
        reason = _unless_missing(value, "trace_tree", "must be an array of at least one node")
        raise InvalidMemberError("trace_tree", reason)
    if len(tree) > MAX_NODES:
        raise InvalidMemberError(
            "trace_tree", f"has {len(tree)} nodes; send at most {MAX_NODES} in one fragment"
        )
    if type(total) is not int or total != len(tree):
        reason = f"must be the number of nodes in trace_tree, {len(tree)}"
        raise InvalidMemberError("total_nodes", _unless_missing(value, "total_nodes", reason))
    return tree


def _check_nodes(tree: list[JsonValue]) -> None:
    """One pass over all nodes; a second one over their parents unless each stands before its children."""
    seen: set[str] = set()
    in_order = True
    for index, node in enumerate(tree):
        if type(node) is not dict:
            raise InvalidMemberError(f"trace_tree[{index}]", "must be an object")
        node_id, parent_id = node.get("node_id"), node.get("parent_id")
        if not is_uuid(node_id):
            _refuse(tree, index, "node_id", _A_UUID)
        if parent_id is not None:
            if not is_uuid(parent_id):
                _refuse(tree, index, "parent_id", _A_UUID_OR_NULL)
            in_order = in_order and parent_id.lower() in seen
        known = len(seen)
        seen.add(node_id.lower())
        if len(seen) == known:
            _refuse(tree, index, "node_id", f"stands twice: trace_tree[{_first(tree, node_id)}] has it too")
        _check_members(tree, index, node)
    if not in_order:
        _check_cycles(tree)


def _check_members(tree: list[JsonValue], index: int, node: JsonObject) -> None:
    node_type, name = node.get("node_type"), node.get("name")
    if type(node_type) is not str or (
        node_type not in _USUAL_TYPES and _NODE_TYPE.fullmatch(node_type) is None
    ):
        _refuse(tree, index, "node_type", _A_TYPE)
    if type(name) is not str or not 0 < len(name) <= MAX_NAME_CHARS:
        _refuse(tree, index, "name", _A_NAME)
    thought, metadata = node.get("thought_process"), node.get("metadata")
    if thought is not None and type(thought) is not str:
        _refuse(tree, index, "thought_process", "must be a string or null")
    if metadata is not None and type(metadata) is not dict:
        _refuse(tree, index, "metadata", "must be an object or null")


def _check_cycles(tree: list[JsonValue]) -> None:
    """Follows parents within the fragment; each node is walked over once, however deep the tree is."""
    parents = {node_id: parent_id for node_id, parent_id in map(_ids, tree) if parent_id is not None}
    sound: set[str] = set()
    for index, node in enumerate(tree):
        path: dict[str, None] = {}
        at: str | None = _ids(node)[0]
        while at is not None and at in parents and at not in sound:
            if at in path:
                _refuse_cycle(tree, index, list(path), at)
            path[at] = None
            at = parents[at]
        sound.update(path)


def _refuse_cycle(tree: list[JsonValue], index: int, path: list[str], again: str) -> NoReturn:
    cycle = [*path[path.index(again) :], again]
    shown = " → ".join([*cycle[:_SHOWN_IDS], *(["…"] if len(cycle) > _SHOWN_IDS else [])])
    _refuse(tree, index, "parent_id", f"leads in a cycle: {shown}")


def _ids(node: JsonValue) -> tuple[str, str | None]:
    """Id and parent of a node that was checked, in lower case: two spellings of one UUID are one id."""
    node_id, parent_id = node["node_id"], node.get("parent_id")  # type: ignore[index,call-overload,union-attr]
    return node_id.lower(), None if parent_id is None else parent_id.lower()  # type: ignore[union-attr]


def _first(tree: list[JsonValue], node_id: str) -> int:
    wanted = node_id.lower()
    return next(index for index, node in enumerate(tree) if _ids(node)[0] == wanted)


def _unless_missing(value: JsonObject, member: str, reason: str) -> str:
    """What is wrong with a member that has no sound value."""
    return reason if member in value else f"is required; it {reason}"


def _refuse(tree: list[JsonValue], index: int, member: str, reason: str) -> NoReturn:
    """Names the node by its place and, where it has one, by its id; ``member`` has no sound value."""
    node: JsonObject = tree[index]  # type: ignore[assignment]  # its type was checked
    node_id, reason = node.get("node_id"), _unless_missing(node, member, reason)
    named = f" (node {node_id})" if is_uuid(node_id) else ""
    raise InvalidMemberError(f"trace_tree[{index}].{member}", reason, f"trace_tree[{index}]{named}: {member}")
