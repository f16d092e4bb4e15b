"""What is counted of trace trees, what the manifest expects, and a count in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from tests.support.runs.tree import Json

TOOL_CALL = "TOOL_CALL"


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one or more trees; ``|`` is their union. ``tokens`` is 0 where a source has none."""

    traces: int = 0
    nodes: int = 0
    by_type: Counter[str] = msgspec.field(default_factory=Counter)
    roots: int = 0
    leaves: int = 0
    depth: int = 0
    with_thought: int = 0
    calls: Counter[str] = msgspec.field(default_factory=Counter)
    failed: Counter[str] = msgspec.field(default_factory=Counter)
    tokens: int = 0
    most_nodes: int = 0

    def __or__(self, other: Counts) -> Counts:
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        largest = {"depth", "most_nodes"}
        return Counts(**{n: max(mine[n], theirs[n]) if n in largest else mine[n] + theirs[n] for n in mine})


def total(counts: Iterable[Counts]) -> Counts:
    """The union of all."""
    return reduce(or_, counts, Counts())


def expected_of(entry: Json) -> Counts:
    """What the manifest says of one file."""
    calls, nodes = entry["expected"], entry["expected"]["expected_nodes"]
    by_tool = Counter(calls["tool_calls_by_tool"])
    if entry["format"] == "sweagent":
        del by_tool["submit"]  # a tool call to the source, an OUTPUT node by the rule
    return Counts(
        traces=nodes["traces"],
        nodes=nodes["nodes"],
        by_type=Counter(nodes["by_type"]),
        roots=nodes["roots"],
        leaves=nodes["leaf_nodes"],
        depth=nodes["max_depth"],
        with_thought=nodes["nodes_with_thought"],
        calls=by_tool,
        failed=Counter(calls["failed_by_tool"]),
        tokens=calls["total_tokens"] or 0,
        most_nodes=nodes["max_nodes_in_a_trace"],
    )


def counts_of(tree: Json) -> Counts:
    """Counts one compiled tree."""
    nodes = tree["trace_tree"]
    parents = {node["node_id"]: node["parent_id"] for node in nodes}
    calls = [node for node in nodes if node["node_type"] == TOOL_CALL]
    return Counts(
        traces=1,
        nodes=len(nodes),
        by_type=Counter(node["node_type"] for node in nodes),
        roots=sum(parent is None for parent in parents.values()),
        leaves=len(parents.keys() - parents.values()),
        depth=max(_depth(node_id, parents) for node_id in parents),
        with_thought=sum(node["thought_process"] is not None for node in nodes),
        calls=Counter(node["name"] for node in calls),
        failed=Counter(node["name"] for node in calls if node["outputs"]["status"] == "failed"),
        tokens=sum(map(_tokens, nodes)),
        most_nodes=len(nodes),
    )


def _depth(node_id: str | None, parents: dict[str, str | None]) -> int:
    depth = 0
    while node_id is not None:
        node_id, depth = parents[node_id], depth + 1
    return depth


def _tokens(node: Json) -> int:
    tokens: Any = (node["metadata"] or {}).get("tokens")
    if isinstance(tokens, dict):
        return sum(count or 0 for count in tokens.values())
    return tokens or 0
