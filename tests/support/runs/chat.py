"""Runs that are kept as chat messages (rule R-CHAT of the manifest): tau-bench and DRIFT on AgentDojo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tests.support.runs.tree import Json, Tree, result, text_or_none

REFUSAL = "[CALL ERROR]"
"""What DRIFT's guard writes into the user message by which it refuses a call."""

NO_RESULT = "unknown"
"""Status of a call that never came back."""


class Dialect(msgspec.Struct, frozen=True):
    """How a source writes its calls.

    ``call`` gives name and arguments of a call, ``failed`` says whether a tool message tells of a failure.
    """

    call: Callable[[Json], tuple[str, Any]]
    failed: Callable[[Json], bool]
    has_refusals: bool = False


TAU = Dialect(
    call=lambda call: (call["function"]["name"], call["function"]["arguments"]),
    failed=lambda message: str(message["content"]).startswith("Error"),
)
DRIFT = Dialect(
    call=lambda call: (call["function"], call["args"]),
    failed=lambda message: bool(message.get("error")),
    has_refusals=True,
)


def tau_trees(source: str, runs: list[Json]) -> list[Json]:
    """The trees of a tau-bench file: one a run."""
    return [
        _Walk(TAU, Tree(source, number), f"task {run['task_id']}", {"trial": run["trial"]}).tree_of(
            run["traj"]
        )
        for number, run in enumerate(runs)
    ]


def drift_trees(source: str, run: Json) -> list[Json]:
    """The one tree of a DRIFT file."""
    metadata = {
        "model": run["pipeline_name"],
        "tokens": run["total_tokens"],
        "suite": run["suite_name"],
        "attack": run["attack_type"],
    }
    return [_Walk(DRIFT, Tree(source), run["user_task_id"], metadata).tree_of(run["conversations"])]


class _Walk:
    """The walk over one run's messages: where the next answer belongs."""

    def __init__(self, dialect: Dialect, tree: Tree, task: str, metadata: Json) -> None:
        self._dialect = dialect
        self._tree = tree
        self._root = tree.add("PLANNING", task, None, metadata=metadata)
        self._current = self._root
        self._correcting: Json | None = None
        self._refused: Json | None = None
        self._calls: dict[str, Json] = {}

    def tree_of(self, messages: list[Json]) -> Json:
        for message, following in zip(messages, [*messages[1:], None], strict=True):
            if message["role"] == "user":
                self._user(message)
            elif message["role"] == "assistant":
                self._assistant(message, before_refusal=self._is_refusal(following))
            elif message["role"] == "tool":
                self._came_back(message)
            if message["role"] != "assistant":
                self._refused = None
        return self._tree.compiled()

    def _is_refusal(self, message: Json | None) -> bool:
        return (
            self._dialect.has_refusals
            and message is not None
            and message["role"] == "user"
            and REFUSAL in str(message["content"])
        )

    def _user(self, message: Json) -> None:
        if self._is_refusal(message):
            self._correcting = self._refused or self._current
            return
        self._current = self._tree.add("PLANNING", "user", self._root, inputs=message["content"])
        self._correcting = None

    def _assistant(self, message: Json, *, before_refusal: bool) -> None:
        base = self._current
        if self._correcting is not None:
            base = self._tree.add("SELF_CORRECTION", "correction", self._correcting)
            self._correcting = None
        self._refused = None
        if message.get("tool_calls"):
            for call in message["tool_calls"]:
                self._call(call, base, text_or_none(message["content"]))
        elif before_refusal:
            self._refused = self._tree.add(
                "PLANNING", "refused_attempt", base, outputs={"value": message["content"]}
            )
        else:
            self._tree.add("OUTPUT", "answer", base, outputs={"value": message["content"]})

    def _call(self, call: Json, base: Json, thought: str | None) -> None:
        name, arguments = self._dialect.call(call)
        self._calls[call["id"]] = self._tree.add(
            "TOOL_CALL",
            name,
            base,
            inputs=arguments,
            thought=thought,
            outputs={"status": NO_RESULT},
            metadata={"tool_call_id": call["id"]},
        )

    def _came_back(self, message: Json) -> None:
        node = self._calls.get(message["tool_call_id"])
        if node is None:
            return
        failed = self._dialect.failed(message)
        node["outputs"] = result(message["content"], failed=failed)
        if message.get("error"):
            node["outputs"]["error"] = message["error"]
        if failed:
            self._correcting = node
