"""Fragments of trace trees: what is sound is kept as sent, what is not is named by node and member."""

from __future__ import annotations

import contextlib
import copy
import uuid
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidMemberError
from app.trace.fragment import MAX_NAME_CHARS, MAX_NODES, Fragment

SESSION = "0b8f7c1e-6a0b-4a1f-9d3c-5e7a9b1d3f50"


def an_id(number: int) -> str:
    return str(UUID(int=(0xABCDEF << 100) + number))


def a_node(number: int, parent: int | None = None, **members: Any) -> dict[str, Any]:
    parent_id = None if parent is None else an_id(parent)
    return {
        "node_id": an_id(number), "parent_id": parent_id, "node_type": "PLANNING", "name": "n", **members
    }  # fmt: skip


def a_fragment(*nodes: Any, **members: Any) -> dict[str, Any]:
    return {"session_id": SESSION, "total_nodes": len(nodes), "trace_tree": [*nodes], **members}


def refusal(value: Any) -> InvalidMemberError:
    with pytest.raises(InvalidMemberError) as caught:
        Fragment.parse(value)
    return caught.value


def test_a_fragment_is_kept_as_sent() -> None:
    sent = a_fragment(
        a_node(1, node_type="X", inputs=[1], outputs="o", thought_process="t", metadata={"a": 1}, mine=[2]),
        a_node(2, 1, thought_process=None, metadata=None),
        a_node(3, 99),
        {"node_id": an_id(4), "node_type": "LLM_CALL", "name": "x" * MAX_NAME_CHARS},
        further={"anything": True},
        session_id=SESSION.upper(),
    )
    kept = copy.deepcopy(sent)
    fragment = Fragment.parse(sent)
    assert fragment == Fragment(UUID(SESSION), 4, kept)
    assert fragment.payload is sent


@pytest.mark.parametrize("total", [0, 2, True, 1.0, "1", None, [1]])
def test_the_number_of_nodes_must_be_the_count(total: Any) -> None:
    assert refusal(a_fragment(a_node(1), total_nodes=total)).field == "total_nodes"


@pytest.mark.parametrize("tree", [[], {}, None, "x", 1])
def test_a_tree_is_an_array_of_nodes(tree: Any) -> None:
    assert refusal({"session_id": SESSION, "total_nodes": 0, "trace_tree": tree}).field == "trace_tree"


@pytest.mark.parametrize("value", [[], "x", None, 1])
def test_a_fragment_is_an_object(value: Any) -> None:
    assert "object" in str(refusal(value))


@pytest.mark.parametrize(
    "session",
    [None, 1, "", SESSION.replace("-", ""), f"{{{SESSION}}}", f"urn:uuid:{SESSION}", "x", f"{SESSION}\n"],
)  # fmt: skip
def test_a_session_is_a_uuid_in_its_hyphenated_form(session: Any) -> None:
    assert refusal(a_fragment(a_node(1), session_id=session)).field == "session_id"
    assert refusal({"total_nodes": 1, "trace_tree": [a_node(1)]}).field == "session_id"


def test_the_services_own_member_is_refused() -> None:
    assert refusal(a_fragment(a_node(1), idempotency=None)).field == "idempotency"


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        ("node_id", [None, 1, "x", an_id(1).replace("-", "")]),
        ("parent_id", [1, "x", "", False, {}]),
        ("node_type", [None, 1, "", "tool_call", "1A", "_A", "A-B", "A" * 65, "OUTPUT\n", "É", ["OUTPUT"]]),
        ("name", [None, 1, "", "x" * (MAX_NAME_CHARS + 1)]),
        ("thought_process", [1, [], {}, True]),
        ("metadata", [1, [], "x", False]),
    ],
)  # fmt: skip
def test_a_members_fault_is_named_with_its_node(member: str, wrong: list[Any]) -> None:
    for value in wrong:
        error = refusal(a_fragment(a_node(1), a_node(2), a_node(3, 2, **{member: value})))
        assert error.field == f"trace_tree[2].{member}", value
        named = "trace_tree[2]: " if member == "node_id" else f"trace_tree[2] (node {an_id(3)}): "
        assert str(error).startswith(f"{named}{member}: "), error


@pytest.mark.parametrize("member", ["node_id", "node_type", "name"])
def test_a_member_that_is_required_is_named(member: str) -> None:
    node = a_node(2)
    del node[member]
    error = refusal(a_fragment(a_node(1), node))
    assert error.field == f"trace_tree[1].{member}"
    named = "trace_tree[1]" if member == "node_id" else f"trace_tree[1] (node {an_id(2)})"
    assert str(error).startswith(f"{named}: {member}: is required; it must ")


@pytest.mark.parametrize("member", ["session_id", "total_nodes", "trace_tree"])
def test_a_member_of_the_fragment_that_is_required_is_named(member: str) -> None:
    value = a_fragment(a_node(1))
    del value[member]
    error = refusal(value)
    assert error.field == member
    assert str(error).startswith(f"{member}: is required; it must ")
    assert "required" not in str(refusal({**value, member: None}))


@pytest.mark.parametrize("node", [None, 1, "x", [], True])
def test_a_node_is_an_object(node: Any) -> None:
    assert str(refusal(a_fragment(a_node(1), node))) == "trace_tree[1]: must be an object"


def test_an_id_stands_once_whatever_its_spelling() -> None:
    error = refusal(a_fragment(a_node(1), a_node(2), {**a_node(3), "node_id": an_id(1).upper()}))
    assert error.field == "trace_tree[2].node_id"
    assert "trace_tree[0]" in str(error)


@pytest.mark.parametrize(
    "nodes",
    [
        [a_node(1, 1)],
        [a_node(1, 2), a_node(2, 1)],
        [a_node(9), a_node(1, 3), a_node(2, 1), a_node(3, 2), a_node(4, 9)],
        [a_node(5, 1), a_node(1, 2), a_node(2, 1)],
        [{**a_node(1), "parent_id": an_id(1).upper()}],
    ],
)
def test_a_cycle_is_refused_and_shown(nodes: list[dict[str, Any]]) -> None:
    error = refusal(a_fragment(*nodes))
    assert error.field.endswith(".parent_id")
    assert "cycle" in str(error)
    assert an_id(1) in str(error)


def test_a_long_cycle_is_shown_in_part() -> None:
    nodes = [a_node(number, (number + 1) % MAX_NODES) for number in range(MAX_NODES)]
    assert len(str(refusal(a_fragment(*nodes)))) < 1_000


def test_children_may_stand_before_their_parents() -> None:
    deep = [a_node(number, number + 1) for number in range(MAX_NODES)]  # the last one's parent never comes
    assert Fragment.parse(a_fragment(*deep)).nodes == MAX_NODES


def test_more_nodes_than_the_limit_are_refused() -> None:
    error = refusal(a_fragment(*[a_node(number) for number in range(MAX_NODES + 1)]))
    assert str(MAX_NODES) in str(error)


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), min_size=1, max_size=8), st.randoms())
def test_a_cycle_is_found_exactly_when_there_is_one(parents: list[int | None], random: Any) -> None:
    nodes = [a_node(number, parent) for number, parent in enumerate(parents)]
    random.shuffle(nodes)

    def ends(number: int) -> bool:
        """Whether the way up from a node leaves the fragment within as many steps as there are nodes."""
        at: int | None = number
        for _ in parents:
            at = parents[at] if at is not None and at < len(parents) else None
        return at is None or at >= len(parents)

    if all(ends(number) for number in range(len(parents))):
        assert Fragment.parse(a_fragment(*nodes)).nodes == len(parents)
    else:
        assert "cycle" in str(refusal(a_fragment(*nodes)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just(str(uuid.UUID(int=7))),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["session_id", "total_nodes", "trace_tree", "node_id", "parent_id", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_sent_is_taken_or_refused_by_name(value: Any) -> None:
    with contextlib.suppress(InvalidMemberError):
        Fragment.parse(value)
