"""The converters of real runs, counted in plain Python, against the manifest: what later tests start from."""

from __future__ import annotations

from collections import Counter

from app.chain.canonical import canonical
from app.trace.fragment import Fragment
from tests.support.runs.collection import CONVERTERS, run_files
from tests.support.runs.counts import counts_of, total
from tests.support.shared import manifest


def test_every_source_with_rules_has_a_converter() -> None:
    assert manifest()["node_rules"].keys() == CONVERTERS.keys()


def test_each_file_gives_the_counts_of_the_manifest() -> None:
    for file in run_files():
        assert total(map(counts_of, file.trees)) == file.expected, file.name


def test_each_format_gives_the_totals_of_the_manifest() -> None:
    totals = manifest()["totals"]["by_format"]
    files = run_files()
    for kind in CONVERTERS:
        found = total(counts_of(tree) for file in files if file.format == kind for tree in file.trees)
        said = totals[kind]
        types = {name.removeprefix("nodes_"): n for name, n in said.items() if name.startswith("nodes_")}
        depth, with_thought = types.pop("max_depth"), types.pop("with_thought")
        assert found.by_type == Counter(types), kind
        assert (found.depth, found.with_thought) == (depth, with_thought), kind
        assert (found.nodes, found.roots, found.leaves) == (
            said["nodes"],
            said["roots"],
            said["leaf_nodes"],
        ), kind
        assert found.failed.total() == said["failed_TOOL_CALL_nodes"], kind


def test_each_tree_is_a_fragment_and_is_made_the_same_again() -> None:
    files, again = run_files(), run_files()
    sessions = set()
    for file, other in zip(files, again, strict=True):
        for tree in file.trees:
            fragment = Fragment.parse(tree)
            assert fragment.nodes == len(tree["trace_tree"])
            sessions.add(fragment.session_id)
        assert canonical(list(file.trees)) == canonical(list(other.trees))
    assert len(sessions) == sum(len(file.trees) for file in files)
