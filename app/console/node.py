"""One node of a session: what it thought, was given and gave back, and where it stands on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from app.chain.strict import JsonObject
from app.console.json_text import Shown, shown_json, shown_text
from app.console.tree import Chosen, Row, error_of, outer_of, read_row
from app.errors import NotFoundError
from app.ledger.surveys import Survey
from app.trace.tree import Sending, TreeNode

LISTED: Final = 20
"""Sendings, and other nodes, that are listed of one node."""

_TITLES: Final = (
    ("thought_process", "Thought process"),
    ("inputs", "Inputs"),
    ("outputs", "Outputs"),
    ("metadata", "Metadata"),
)
_KNOWN: Final = frozenset({"node_id", "parent_id", "node_type", "name", *(member for member, _ in _TITLES)})


class Part(msgspec.Struct, frozen=True):
    """One member of a node with its text."""

    title: str
    member: str
    shown: Shown


class Looked(msgspec.Struct, frozen=True):
    """What is read of the node itself."""

    node: TreeNode
    row: Row
    error: str | None
    outer: str | None
    parts: list[Part]


class Place(msgspec.Struct, frozen=True):
    """Another node that stands near it."""

    agent_id: str
    node_id: str
    name: str
    node_type: str
    status: str | None


class Detail(msgspec.Struct, frozen=True):
    """A node with everything that is said of it.

    Attributes:
        sendings: records in which its chain sent it, the newest first; ``sent`` counts all.
        partners: what other chains sent under the same id.
        path: from the root down to its parent.
        outer: the node that it says it is the inner end of; ``outer_place`` where that is in this session.
    """

    looked: Looked
    hash: str
    sendings: list[Sending]
    sent: int
    partners: list[Place]
    path: list[Place]
    outer_place: Place | None


def look(node: TreeNode, sent: JsonObject) -> Looked:
    """Reads a node whole."""
    parts = [
        Part(title, member, _shown(sent[member])) for member, title in _TITLES if sent.get(member) is not None
    ]
    further = {name: value for name, value in sent.items() if name not in _KNOWN}
    if further:
        parts.append(Part("Further members", "further", shown_json(further)))
    return Looked(node, read_row(node, sent, Chosen()), error_of(sent.get("outputs")), outer_of(sent), parts)


def detail_of(survey: Survey[Looked]) -> Detail:
    """The node that a survey looked at.

    Raises:
        NotFoundError: the session has no such node.
    """
    if not survey.seen:
        raise NotFoundError("the session has no such node, or its record does not verify")
    looked = survey.seen[0]
    nodes = survey.tree.nodes
    shown = looked.node.shown
    sendings = [one for one in survey.sendings if one.key == shown.key]
    same = [node for node in nodes if node.shown.node_id == shown.node_id and node.shown.key != shown.key]
    outer = [node for node in nodes if looked.outer is not None and node.shown.node_id == looked.outer]
    own = [node for node in outer if node.shown.source.log_uuid == shown.source.log_uuid]
    return Detail(
        looked=looked,
        hash=shown.source.hash,
        sendings=sorted(sendings, key=lambda one: (one.source.seq, one.position), reverse=True)[:LISTED],
        sent=len(sendings),
        partners=[_place(node) for node in same[:LISTED]],
        path=[_place(node) for node in _path(looked.node, nodes)[-LISTED:]],
        outer_place=next((_place(node) for node in (*own, *outer)), None),
    )


def _path(node: TreeNode, nodes: Sequence[TreeNode]) -> list[TreeNode]:
    parents: dict[int, int] = {}
    for place, one in enumerate(nodes):
        if one.depth is not None:
            parents.update(dict.fromkeys(one.children, place))
    path: list[TreeNode] = []
    at = parents.get(nodes.index(node))
    while at is not None:
        path.append(nodes[at])
        at = parents.get(at)
    return path[::-1]


def _place(node: TreeNode) -> Place:
    shown = node.shown
    return Place(shown.source.agent_id, shown.node_id, shown.name, shown.node_type, shown.status)


def _shown(value: object) -> Shown:
    return shown_text(value) if isinstance(value, str) else shown_json(value)  # type: ignore[arg-type]  # JSON
