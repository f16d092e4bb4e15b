"""A session's tree, assembled from all sendings of its nodes: the rules of the view ``trails.trace_nodes``.

A node is what one chain says under one ``node_id``. What the guard wrote of an action stands before whatever
was posted under the same id, in whichever order, so that no agent can paint over a denial; else the latest
sending counts. Two chains that send the same id are two nodes.

A parent is looked for in the node's own chain first, then among what the guard wrote, then in order. A node
without a parent is a root (depth 1); one whose parent never came is an orphan and begins a part of its own,
also at depth 1; what no root leads to stands in a cycle across fragments, or below one, and has no depth. No
chain closes such a cycle over another's nodes: what no root leads to hangs on its own chain's nodes alone,
and is an orphan where it names another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from app.chain.canonical import canonical
from app.chain.strict import JsonObject, JsonValue
from app.trace.instant import parse_instant
from app.trace.node import is_uuid

GUARD_KINDS: Final = frozenset({"outcome", "action_denied", "action_rejected"})
"""Records of the guard that carry the node of an action."""

OUTLINE_DEPTH: Final = 60
"""Levels of the nested outline: a level is two of JSON, and readers of JSON allow 128."""

_DIGEST_BYTES: Final = 16
_MAX_UNIX_NANO: Final = 253_402_300_800 * 10**9
"""The end of the year 9999 in nanoseconds: what PostgreSQL and Python can both hold."""

_MAX_UNIX_NANO_DIGITS: Final = 21


class Source(msgspec.Struct, frozen=True):
    """The record that a sending came in: its chain, its place, its time (µs), whether the guard wrote it."""

    log_uuid: UUID
    agent_id: str
    seq: int
    hash: str
    recorded_us: int
    guarded: bool


class Sending(msgspec.Struct, frozen=True):
    """One node as one record holds it: what its place in the tree depends on, not its contents.

    ``position`` is its index in the record's ``trace_tree``, ``digest`` tells contents that differ.
    """

    source: Source
    position: int
    node_id: str
    parent_id: str | None
    node_type: str
    name: str
    status: str | None
    started_us: int | None
    digest: bytes

    @property
    def key(self) -> tuple[UUID, str]:
        """What makes it the same node as another sending: chain and id."""
        return self.source.log_uuid, self.node_id


class TreeNode(msgspec.Struct, frozen=True):
    """One node in its place.

    Args:
        shown: the sending that counts.
        depth: 1 at a root or an orphan; None in a cycle or below one.
        orphan: it names a parent that never came.
        sendings: how often its chain sent it; 1 when the guard wrote it.
        conflict: its sendings differ, or another chain sent the same id.
        children: indices of its children in ``Tree.nodes``, in order.
    """

    shown: Sending
    depth: int | None
    orphan: bool
    sendings: int
    conflict: bool
    children: tuple[int, ...] = ()

    @property
    def cyclic(self) -> bool:
        """Whether no root leads to it."""
        return self.depth is None


class Tree(msgspec.Struct, frozen=True):
    """All nodes, each parent before its children (pre-order); what stands in cycles comes last."""

    nodes: tuple[TreeNode, ...]

    @property
    def depth(self) -> int:
        """Depth of the deepest node; 0 without nodes."""
        return max((node.depth or 0 for node in self.nodes), default=0)

    @property
    def roots(self) -> int:
        """Nodes without a parent, orphans not counted."""
        return sum(node.depth == 1 and not node.orphan for node in self.nodes)

    @property
    def orphans(self) -> int:
        """Nodes whose parent never came."""
        return sum(node.orphan for node in self.nodes)


def sendings_of(source: Source, payload: JsonObject) -> list[Sending]:
    """The nodes of one record's payload; what is no node (an id that is no UUID) is left out."""
    tree = payload.get("trace_tree")
    if not isinstance(tree, list):
        return []
    return [
        _sending(source, position, node)
        for position, node in enumerate(tree)
        if isinstance(node, dict) and is_uuid(node.get("node_id"))
    ]


def assemble(sendings: Iterable[Sending]) -> Tree:
    """The tree of a session from all that was sent of it, in any order."""
    groups: dict[tuple[UUID, str], list[Sending]] = {}
    for sending in sendings:
        groups.setdefault(sending.key, []).append(sending)
    chains_of: dict[str, int] = {}
    for _, node_id in groups:
        chains_of[node_id] = chains_of.get(node_id, 0) + 1
    judged = [_judged(group, shared=chains_of[group[0].node_id] > 1) for group in groups.values()]
    return Tree(_placed(sorted(judged, key=lambda node: _order(node.shown))))


def outline(tree: Tree, *, depth: int = OUTLINE_DEPTH) -> list[JsonValue]:
    """The nested skeleton of the tree: ``{node_id, name, node_type, status, children}`` from the roots down.

    A node at the last level that has children carries ``"cut": true`` instead. Nodes in cycles hang on no
    root and are not in it.
    """
    made: list[dict[str, JsonValue]] = []
    tops: list[JsonValue] = []
    for node in tree.nodes:
        made.append(
            {
                "node_id": node.shown.node_id,
                "name": node.shown.name,
                "node_type": node.shown.node_type,
                "status": node.shown.status,
                "children": [],
            }
        )
        if node.depth == 1:
            tops.append(made[-1])
    for node, entry in zip(tree.nodes, made, strict=True):
        if node.children and node.depth is not None:
            if node.depth < depth:
                entry["children"] = [made[index] for index in node.children]
            else:
                entry["cut"] = True
    return tops


def _sending(source: Source, position: int, node: dict[str, JsonValue]) -> Sending:
    metadata, outputs, parent = node.get("metadata"), node.get("outputs"), node.get("parent_id")
    return Sending(
        source=source,
        position=position,
        node_id=str(node["node_id"]).lower(),
        parent_id=parent.lower() if isinstance(parent, str) else None,
        node_type=_text(node.get("node_type")) or "",
        name=_text(node.get("name")) or "",
        status=_text(outputs.get("status")) if isinstance(outputs, dict) else None,
        started_us=started_us(metadata) if isinstance(metadata, dict) else None,
        digest=hashlib.blake2b(canonical(_as_sent(node)).encode(), digest_size=_DIGEST_BYTES).digest(),
    )


def _as_sent(node: JsonObject) -> JsonObject:
    """The node without the mark of a call's inner end, which the service sets when it learns of the outer."""
    metadata = node.get("metadata")
    if not isinstance(metadata, dict) or "nested_in" not in metadata:
        return node
    return {**node, "metadata": {name: value for name, value in metadata.items() if name != "nested_in"}}


def started_us(metadata: JsonObject) -> int | None:
    """When a node says that it began (µs since 1970): ``timestamp``, else ``start_time_unix_nano``."""
    written = metadata.get("timestamp")
    if isinstance(written, str):
        try:
            return parse_instant(written)
        except ValueError:
            pass
    return unix_us(metadata.get("start_time_unix_nano"))


def unix_us(nanos: JsonValue) -> int | None:
    """Nanoseconds since 1970 as OpenTelemetry writes them, a number or its digits, in µs; 0 means unknown."""
    if isinstance(nanos, str):
        digits = nanos.isascii() and nanos.isdigit() and len(nanos) <= _MAX_UNIX_NANO_DIGITS
        nanos = int(nanos) if digits else None
    if isinstance(nanos, bool) or not isinstance(nanos, int | float) or not 0 < nanos < _MAX_UNIX_NANO:
        return None
    return int(nanos) // 1000


def _text(value: JsonValue) -> str | None:
    """A value as the views show it: a string as it is, anything else as JSON, null as nothing."""
    return value if value is None or isinstance(value, str) else canonical(value)


def _order(sending: Sending) -> tuple[int, int, int, int, int]:
    """Siblings stand in the order in which they began, as far as they say so; else in that of the records."""
    source = sending.source
    began = source.recorded_us if sending.started_us is None else sending.started_us
    return began, source.recorded_us, source.log_uuid.int, source.seq, sending.position


def _judged(group: Sequence[Sending], *, shared: bool) -> TreeNode:
    """The sending that counts, and whether others say something else; not placed yet."""
    shown = max(group, key=lambda one: (one.source.guarded, one.source.seq, one.position))
    posted = {one.digest for one in group if not one.source.guarded}
    # The guard's own later word (unknown, then success) is no conflict; a post that says otherwise is one.
    differing = posted - {shown.digest} if shown.source.guarded else posted
    conflict = shared or (bool(differing) if shown.source.guarded else len(differing) > 1)
    sendings = 1 if shown.source.guarded else len(group)
    return TreeNode(shown=shown, depth=None, orphan=False, sendings=sendings, conflict=conflict)


def _placed(nodes: Sequence[TreeNode]) -> tuple[TreeNode, ...]:
    """Links the nodes, which are in the order of siblings, and brings them into pre-order."""
    parents = _parents(nodes)
    order, depths = _walk(parents)
    lost = [index for index in range(len(nodes)) if index not in depths]
    if lost:
        for index in lost:
            parent = parents[index]
            if parent is not None and _is_foreign(nodes[index], nodes[parent]):
                parents[index] = None
        order, depths = _walk(parents)
    children = _children(parents)
    order += [index for index in range(len(nodes)) if index not in depths]
    place = {index: at for at, index in enumerate(order)}
    return tuple(
        msgspec.structs.replace(
            nodes[index],
            depth=depths.get(index),
            orphan=parents[index] is None and nodes[index].shown.parent_id is not None,
            children=tuple(place[child] for child in children[index]),
        )
        for index in order
    )


def _is_foreign(child: TreeNode, parent: TreeNode) -> bool:
    return child.shown.source.log_uuid != parent.shown.source.log_uuid


def _parents(nodes: Sequence[TreeNode]) -> list[int | None]:
    """Of each node the index of its parent."""
    by_id: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        by_id.setdefault(node.shown.node_id, []).append(index)
    for same in by_id.values():
        same.sort(key=lambda index: _rank(nodes[index].shown))
    return [_parent(nodes, by_id, node.shown) for node in nodes]


def _parent(nodes: Sequence[TreeNode], by_id: dict[str, list[int]], child: Sending) -> int | None:
    known = by_id.get(child.parent_id, []) if child.parent_id is not None else []
    own = (index for index in known if nodes[index].shown.source.log_uuid == child.source.log_uuid)
    return next(own, known[0] if known else None)


def _rank(sending: Sending) -> tuple[bool, int, int, int, int]:
    """Which of several chains' nodes of one id others hang under: the guard's, then the first on record."""
    source = sending.source
    return not source.guarded, source.recorded_us, source.log_uuid.int, source.seq, sending.position


def _children(parents: Sequence[int | None]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for index, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(index)
    return children


def _walk(parents: Sequence[int | None]) -> tuple[list[int], dict[int, int]]:
    """Indices in pre-order from the tops down, and their depths; trees may be deeper than Python's stack."""
    children = _children(parents)
    order: list[int] = []
    depths: dict[int, int] = {}
    waiting = [(index, 1) for index in reversed(range(len(parents))) if parents[index] is None]
    while waiting:
        index, depth = waiting.pop()
        depths[index] = depth
        order.append(index)
        waiting += [(child, depth + 1) for child in reversed(children[index])]
    return order, depths
