"""A compiled trace tree in the making: nodes in order, with ids that the same run always gets again."""

from __future__ import annotations

import uuid
from typing import Any
from uuid import UUID

Json = dict[str, Any]

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "lineage-trails/real-runs")
"""Ids are made from it and from where a node stands in its source, so that they need no record."""


class Tree:
    """The tree of one trace.

    Args:
        source: the file's name in the collection.
        number: which trace of the file, from 0.
    """

    def __init__(self, source: str, number: int = 0) -> None:
        self.session_id = uuid.uuid5(NAMESPACE, f"{source}#{number}")
        self.nodes: list[Json] = []

    def add(
        self,
        node_type: str,
        name: str,
        parent: Json | None,
        *,
        key: str | None = None,
        inputs: Any = None,
        thought: str | None = None,
        outputs: Any = None,
        metadata: Json | None = None,
    ) -> Json:
        """Adds a node and returns it. ``key`` names it in its source; else its position does."""
        node = {
            "node_id": str(self.id_of(str(len(self.nodes)) if key is None else key)),
            "parent_id": None if parent is None else parent["node_id"],
            "node_type": node_type,
            "name": name,
            "inputs": inputs,
            "thought_process": thought,
            "outputs": outputs,
            "metadata": metadata,
        }
        self.nodes.append(node)
        return node

    def id_of(self, key: str) -> UUID:
        """The id of the node that ``key`` names in its source."""
        return uuid.uuid5(self.session_id, key)

    def compiled(self) -> Json:
        """The tree as it is posted."""
        return {
            "session_id": str(self.session_id),
            "total_nodes": len(self.nodes),
            "trace_tree": self.nodes,
        }


def fail(node: Json) -> None:
    """Marks a call as failed."""
    node["outputs"]["status"] = "failed"


def result(value: Any, *, failed: bool = False) -> Json:
    """Outputs of a call that came back."""
    return {"status": "failed" if failed else "success", "value": value}


def text_or_none(value: Any) -> str | None:
    """``value`` when it is a non-empty string."""
    return value if isinstance(value, str) and value else None
