"""The collection of real runs as trace trees: every file for which the manifest has rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tests.support.runs.anyagent import anyagent_trees
from tests.support.runs.chat import drift_trees, tau_trees
from tests.support.runs.counts import Counts, expected_of
from tests.support.runs.sweagent import sweagent_trees
from tests.support.runs.toolbench import toolbench_trees
from tests.support.runs.tree import Json
from tests.support.shared import SHARED_DATA, manifest

CONVERTERS: dict[str, Callable[[str, Any], list[Json]]] = {
    "tau": tau_trees,
    "drift": drift_trees,
    "toolbench": toolbench_trees,
    "sweagent": sweagent_trees,
    "anyagent": anyagent_trees,
}


class RunFile(msgspec.Struct, frozen=True):
    """One file of the collection: its trees, and what the manifest expects of them."""

    name: str
    format: str
    trees: list[Json]
    expected: Counts


def run_files() -> list[RunFile]:
    """All files that become trees; skips the test where the collection is absent."""
    return [_read(entry) for entry in manifest()["files"] if entry["format"] in CONVERTERS]


def _read(entry: Json) -> RunFile:
    content = json.loads((SHARED_DATA / entry["file"]).read_text("utf-8"))
    trees = CONVERTERS[entry["format"]](entry["file"], content)
    return RunFile(entry["file"], entry["format"], trees, expected_of(entry))
