"""A session's tree: which sending counts, where it stands, and that no order of arrival changes it."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from app.guard import kinds
from app.trace.tree import (
    GUARD_KINDS,
    OUTLINE_DEPTH,
    Sending,
    Source,
    Tree,
    TreeNode,
    assemble,
    outline,
    sendings_of,
    started_us,
)

SECOND = 1_000_000
CHAINS = (UUID(int=7), UUID(int=9))


def ident(number: int) -> str:
    return str(UUID(int=(0xA << 124) + number))


def node(number: int, parent: int | None = None, **members: Any) -> dict[str, Any]:
    made = {
        "node_id": ident(number),
        "parent_id": None if parent is None else ident(parent),
        "node_type": "TOOL_CALL",
        "name": f"n{number}",
        "outputs": {"status": "success"},
    }
    return {**made, **members}


def record(
    seq: int, *nodes: Any, chain: int = 0, guarded: bool = False, at: int | None = None
) -> list[Sending]:
    """What one record holds; its time is ``at`` seconds, else its ``seq``."""
    source = Source(
        log_uuid=CHAINS[chain],
        agent_id=f"agent-{chain}",
        seq=seq,
        hash=f"{chain}:{seq}",
        recorded_us=(seq if at is None else at) * SECOND,
        guarded=guarded,
    )
    return sendings_of(source, {"trace_tree": [*nodes], "total_nodes": len(nodes)})


def shape(tree: Tree) -> list[tuple[str, int | None]]:
    return [(one.shown.name, one.depth) for one in tree.nodes]


def only(tree: Tree) -> TreeNode:
    [found] = tree.nodes
    return found


def test_children_may_come_before_their_parents_and_from_another_agent() -> None:
    tree = assemble(record(1, node(3, 2), node(2, 1)) + record(5, node(1), chain=1))
    assert shape(tree) == [("n1", 1), ("n2", 2), ("n3", 3)]
    assert (tree.depth, tree.roots, tree.orphans) == (3, 1, 0)


def test_a_parent_that_never_comes_leaves_an_orphan() -> None:
    tree = assemble(record(1, node(2, 1), node(3, 2)))
    assert shape(tree) == [("n2", 1), ("n3", 2)]
    assert [one.orphan for one in tree.nodes] == [True, False]
    assert (tree.roots, tree.orphans) == (0, 1)


def test_a_cycle_across_fragments_is_shown_without_a_depth_and_hides_nothing() -> None:
    tree = assemble(
        record(1, node(1)) + record(2, node(2, 3)) + record(3, node(3, 2), node(4, 3), node(5, 5))
    )
    assert shape(tree) == [("n1", 1), ("n2", None), ("n3", None), ("n4", None), ("n5", None)]
    assert [one.cyclic for one in tree.nodes] == [False, True, True, True, True]
    assert [entry["name"] for entry in outline(tree)] == ["n1"]


def test_no_chain_closes_a_circle_over_anothers_nodes() -> None:
    """The second one sends the missing parent of the first one's nodes, below one of them."""
    theirs = record(1, node(2, 1), node(3, 2))
    assert shape(assemble(theirs)) == [("n2", 1), ("n3", 2)]
    tree = assemble(theirs + record(1, node(1, 3), chain=1))
    assert shape(tree) == [("n2", 1), ("n3", 2), ("n1", 1)]
    assert (tree.orphans, [one.orphan for one in tree.nodes]) == (2, [True, False, True])


def test_the_latest_sending_of_a_chain_counts_and_the_difference_is_told() -> None:
    tree = assemble(record(4, node(1, name="late")) + record(2, node(1, name="early")))
    assert (only(tree).shown.name, only(tree).sendings, only(tree).conflict) == ("late", 2, True)
    again = assemble(record(4, node(1)) + record(2, node(1)))
    assert (only(again).sendings, only(again).conflict) == (2, False)


@pytest.mark.parametrize("seq", [1, 9])
def test_what_the_guard_wrote_stands_before_what_was_posted(seq: int) -> None:
    denied = record(5, node(1, outputs={"status": "denied"}), guarded=True)
    posted = record(seq, node(1, outputs={"status": "success"}))
    found = only(assemble(denied + posted))
    assert (found.shown.status, found.sendings, found.conflict) == ("denied", 1, True)


def test_a_later_outcome_of_the_guard_replaces_an_earlier_one_without_a_conflict() -> None:
    unknown = record(3, node(1, outputs={"status": "unknown"}), guarded=True)
    success = record(4, node(1, outputs={"status": "success"}), guarded=True)
    found = only(assemble(success + unknown))
    assert (found.shown.status, found.sendings, found.conflict) == ("success", 1, False)


def test_one_id_from_two_chains_is_two_nodes_and_children_hang_under_their_own() -> None:
    mine, theirs = record(1, node(1), node(2, 1)), record(1, node(1), node(3, 1), chain=1)
    tree = assemble(theirs + mine)
    assert [(one.shown.name, one.shown.source.agent_id, one.depth) for one in tree.nodes] == [
        ("n1", "agent-0", 1),
        ("n2", "agent-0", 2),
        ("n1", "agent-1", 1),
        ("n3", "agent-1", 2),
    ]
    assert [one.conflict for one in tree.nodes] == [True, False, True, False]


def test_a_child_of_neither_hangs_under_the_guards_node_else_under_the_first() -> None:
    child = record(9, node(2, 1), chain=1)
    other = record(1, node(1), chain=0, at=3)
    third = Source(UUID(int=1), "third", 2, "third:2", 8 * SECOND, guarded=True)
    guards = sendings_of(third, {"trace_tree": [node(1)]})
    tree = assemble(child + other + guards)
    [above] = [one for one in tree.nodes if one.children]
    assert above.shown.source.agent_id == "third"
    [above] = [one for one in assemble(child + other).nodes if one.children]
    assert above.shown.source.agent_id == "agent-0"


def test_siblings_stand_in_the_order_in_which_they_began() -> None:
    late = node(2, 1, metadata={"timestamp": "2026-01-01T00:00:02Z"})
    early = node(3, 1, metadata={"start_time_unix_nano": "1767225601000000000"})
    tree = assemble(record(1, node(1), late, early))
    assert [one.shown.name for one in tree.nodes] == ["n1", "n3", "n2"]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"timestamp": "1970-01-01T00:00:01.5Z"}, 1_500_000),
        ({"timestamp": "yesterday", "start_time_unix_nano": 2_000_999}, 2_000),
        ({"start_time_unix_nano": "0"}, None),
        ({"start_time_unix_nano": True}, None),
        ({"start_time_unix_nano": "٣"}, None),
        ({"start_time_unix_nano": -5}, None),
        ({"start_time_unix_nano": "253402300800000000000"}, None),
        ({"timestamp": 5}, None),
        ({}, None),
    ],
)
def test_a_start_is_read_from_either_member_or_not_at_all(metadata: Any, expected: int | None) -> None:
    assert started_us(metadata) == expected


def test_ids_are_compared_as_uuids_and_what_is_no_node_is_left_out() -> None:
    upper = node(1) | {"node_id": ident(1).upper()}
    tree = assemble(record(1, upper, "text", {"node_id": 5}, {"node_id": "x"}, node(2, 1)))
    assert shape(tree) == [("n1", 1), ("n2", 2)]
    assert sendings_of(tree.nodes[0].shown.source, {"trace_tree": "no"}) == []


def test_a_tree_deeper_than_any_stack_is_assembled_and_its_outline_is_cut() -> None:
    tree = assemble(record(1, *(node(n, n - 1 if n else None) for n in range(10_000))))
    assert tree.depth == 10_000
    at: Any = outline(tree)[0]
    for _ in range(OUTLINE_DEPTH - 1):
        assert "cut" not in at
        [at] = at["children"]
    assert (at["children"], at["cut"]) == ([], True)


def test_the_guards_kinds_are_those_of_the_guard() -> None:
    assert {kinds.OUTCOME, kinds.ACTION_DENIED, kinds.ACTION_REJECTED} == GUARD_KINDS


# --- whatever is sent in whatever order -------------------------------------------------------------

nodes = st.builds(
    lambda number, parent, name: node(number, parent, name=name),
    st.integers(0, 5),
    st.none() | st.integers(0, 7),
    st.sampled_from(["a", "b"]),
)
records = st.lists(
    st.tuples(
        st.lists(nodes, max_size=4, unique_by=lambda one: one["node_id"]),
        st.integers(0, 1),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=8,
)


def sent(drawn: list[Any]) -> list[Sending]:
    return [
        one
        for seq, (found, chain, guarded, at) in enumerate(drawn)
        for one in record(seq, *found, chain=chain, guarded=guarded, at=at)
    ]


@given(records, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(drawn: list[Any], chance: random.Random) -> None:
    sendings = sent(drawn)
    shuffled = sendings[:]
    chance.shuffle(shuffled)
    assert assemble(shuffled) == assemble(sendings)


@given(records)
def test_every_node_is_there_once_and_stands_where_a_second_reading_puts_it(drawn: list[Any]) -> None:
    sendings = sent(drawn)
    tree = assemble(sendings)
    model = {key: second_reading(sendings, key) for key in {one.key for one in sendings}}
    assert {one.shown.key: (one.shown, one.depth, one.orphan) for one in tree.nodes} == model
    assert len(tree.nodes) == len(model)


@given(records)
def test_a_subtree_follows_its_node_without_a_gap(drawn: list[Any]) -> None:
    tree = assemble(sent(drawn))
    for at, one in enumerate(tree.nodes):
        if one.depth is not None:
            first = at + 1
            for child in one.children:
                assert child == first
                first += size_of(tree, child)


def size_of(tree: Tree, at: int) -> int:
    return 1 + sum(size_of(tree, child) for child in tree.nodes[at].children)


def shown_of(sendings: list[Sending], key: tuple[UUID, str]) -> Sending:
    own = [one for one in sendings if one.key == key]
    own = [one for one in own if one.source.guarded] or own
    return max(own, key=lambda one: one.source.seq)


def above(sendings: list[Sending], child: Sending) -> Sending | None:
    """The parent, looked up from nothing but the sendings."""
    if child.parent_id is None:
        return None
    own = (child.source.log_uuid, child.parent_id)
    if any(one.key == own for one in sendings):
        return shown_of(sendings, own)
    known = {one.key for one in sendings if one.node_id == child.parent_id}
    found = [shown_of(sendings, key) for key in known]
    found.sort(key=lambda one: (not one.source.guarded, one.source.recorded_us, one.source.log_uuid.int))
    return found[0] if found else None


def second_reading(sendings: list[Sending], key: tuple[UUID, str]) -> tuple[Sending, int | None, bool]:
    """The node that counts, its depth by walking up, and whether its parent is missing."""
    shown = shown_of(sendings, key)
    parent = above(sendings, shown)
    orphan = parent is None and shown.parent_id is not None
    depth, seen = 1, {key}
    while parent is not None:
        if parent.key in seen:
            return lost(sendings, shown)
        seen.add(parent.key)
        parent, depth = above(sendings, parent), depth + 1
    return shown, depth, orphan


def lost(sendings: list[Sending], shown: Sending) -> tuple[Sending, int | None, bool]:
    """The same of a node that no root leads to: the way up ends where it would enter another chain."""
    at, depth, seen = shown, 1, {shown.key}
    while (parent := above(sendings, at)) is not None:
        if parent.source.log_uuid != at.source.log_uuid:
            return shown, depth, at is shown
        if parent.key in seen:
            return shown, None, False
        seen.add(parent.key)
        at, depth = parent, depth + 1
    raise AssertionError("a root was found the second time")
