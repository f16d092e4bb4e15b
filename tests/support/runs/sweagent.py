"""SWE-agent's trajectories (rule R-SWEAGENT): a step that follows a failed one corrects it."""

from __future__ import annotations

from tests.support.runs.tree import Json, Tree, result, text_or_none

FAILURES = (
    "Traceback (most recent call last):",
    "Your proposed edit has introduced new syntax error",
    "Your edit was not applied",
    "EXECUTION TIMED OUT",
    ": command not found",
    ": No such file or directory",
)
"""The source has no flag of failure; these texts in an observation tell of one."""


def sweagent_trees(source: str, run: Json) -> list[Json]:
    """The one tree of a file."""
    tree = Tree(source)
    stats = (run.get("info") or {}).get("model_stats")
    tokens = {"input": stats["tokens_sent"], "output": stats["tokens_received"]} if stats else None
    root = tree.add("PLANNING", str(run["environment"]), None, metadata={"tokens": tokens})
    failed_before: Json | None = None
    for step in run["trajectory"]:
        base = root
        if failed_before is not None:
            base = tree.add("SELF_CORRECTION", "correction", failed_before)
            failed_before = None
        if not (step["action"] or "").strip():
            continue
        tool = step["action"].split()[0]
        failed = any(text in (step["observation"] or "") for text in FAILURES)
        node = tree.add(
            "OUTPUT" if tool == "submit" else "TOOL_CALL",
            tool,
            base,
            inputs=step["action"],
            thought=text_or_none(step["thought"]),
            outputs=result(step["observation"], failed=failed),
        )
        failed_before = node if failed else None
    return [tree.compiled()]
