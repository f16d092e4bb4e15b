"""any-agent's spans (rule R-ANYAGENT), whose ids are integers that no float can hold."""

from __future__ import annotations

from typing import Any

from tests.support.runs.tree import Json, Tree

TYPES = {"invoke_agent": "PLANNING", "call_llm": "PLANNING", "execute_tool": "TOOL_CALL"}


def anyagent_trees(source: str, run: Json) -> list[Json]:
    """The one tree of a file: nodes in the order of the spans, so that a parent may come last.

    A node's id is made from its span id, which is kept beside it as a decimal string; the trace id stays
    the integer of 128 bits that the source has.
    """
    tree = Tree(source)
    spans = run["spans"]
    known = {span["context"]["span_id"] for span in spans}
    [root] = [s["context"]["span_id"] for s in spans if _of(s, "gen_ai.operation.name") == "invoke_agent"]
    for span in spans:
        span_id = span["context"]["span_id"]
        parent = None if span_id == root else _parent(span, known, root)
        _add(tree, span, None if parent is None else {"node_id": str(tree.id_of(str(parent)))})
    return [tree.compiled()]


def _add(tree: Tree, span: Json, parent: Json | None) -> None:
    operation = _of(span, "gen_ai.operation.name")
    is_tool = operation == "execute_tool"
    status = "failed" if span["status"]["status_code"] == "error" else "success"
    tree.add(
        TYPES[operation],
        _of(span, "gen_ai.tool.name") if is_tool else span["name"],
        parent,
        key=str(span["context"]["span_id"]),
        inputs=_of(span, "gen_ai.tool.args" if is_tool else "gen_ai.input.messages"),
        outputs={"status": status, "value": _of(span, "gen_ai.output")},
        metadata=_metadata(span),
    )


def _metadata(span: Json) -> Json:
    metadata: Json = {
        "span_id": str(span["context"]["span_id"]),
        "trace_id": span["context"]["trace_id"],
        "start_time_unix_nano": str(span["start_time"]),
        "end_time_unix_nano": str(span["end_time"]),
        "model": _of(span, "gen_ai.request.model"),
    }
    used = {side: _of(span, f"gen_ai.usage.{side}_tokens") for side in ("input", "output")}
    if any(count is not None for count in used.values()):
        metadata["tokens"] = used
    return metadata


def _parent(span: Json, known: set[int], root: int) -> int:
    parent = (span.get("parent") or {}).get("span_id")
    return parent if parent in known else root


def _of(span: Json, attribute: str) -> Any:
    return span["attributes"].get(attribute)
