"""ToolBench's search trees (rule R-TOOLBENCH): a thought that is not its parent's first child is a retry."""

from __future__ import annotations

from tests.support.runs.tree import Json, Tree, result

FAILED_CODES = frozenset({1, 2, 5, 6, 7, 8, 9, 10, 11, 12})
"""``observation_code`` of calls that failed; 0 went well, 3 and 4 end the run."""


def toolbench_trees(source: str, run: Json) -> list[Json]:
    """The one tree of a file. Walked without recursion: a search goes as deep as it likes."""
    tree = Tree(source)
    answer = run["answer_generation"]
    native = run["tree"]["tree"]
    root = tree.add(
        "PLANNING", "search", None, inputs=answer["query"], metadata={"tokens": answer["total_tokens"]}
    )
    waiting = [(child, root, first) for child, first in _children(native)]
    while waiting:
        native, parent, first = waiting.pop()
        node, below = _mapped(tree, native, parent, is_first=first)
        waiting += [(child, node, is_first) for child, is_first in _children(below)]
    return [tree.compiled()]


def _children(native: Json) -> list[tuple[Json, bool]]:
    """The children, last first, as a stack takes them; with each, whether it is the first one."""
    return [(child, index == 0) for index, child in enumerate(native["children"])][::-1]


def _mapped(tree: Tree, native: Json, parent: Json, *, is_first: bool) -> tuple[Json, Json]:
    """The node of one native node, and the native node whose children go below it."""
    if native["node_type"] == "Thought":
        kind = "PLANNING" if is_first else "SELF_CORRECTION"
        return tree.add(kind, "thought", parent, thought=native["description"]), native
    [carried_out] = native["children"]
    if (native["node_type"], carried_out["node_type"]) != ("Action", "Action Input"):
        raise ValueError(f"{native['node_type']} over {carried_out['node_type']} has no rule")
    tool, code = native["description"], carried_out["observation_code"]
    node = tree.add(
        "OUTPUT" if tool == "Finish" else "TOOL_CALL",
        tool,
        parent,
        inputs=carried_out["description"],
        outputs=result(carried_out["observation"], failed=code in FAILED_CODES),
        metadata={"observation_code": code},
    )
    return node, carried_out
