"""The picture's rows: every node once, each below what it hangs on, whatever the senders say."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.console.tree import (
    MAX_NESTED,
    MAX_ROWS,
    Chosen,
    Line,
    Picture,
    Row,
    corrections,
    draw,
    parents_of,
    path_to,
    read_row,
)
from app.trace.tree import Source, assemble, sendings_of

CHAIN = UUID(int=7)
EVERYTHING = Chosen()


def ident(number: int) -> str:
    return str(UUID(int=number + 1))


def node(number: int, parent: int | None = None, **members: Any) -> dict[str, Any]:
    made = {
        "node_id": ident(number),
        "parent_id": None if parent is None else ident(parent),
        "node_type": "TOOL_CALL",
        "name": f"n{number}",
        "outputs": {"status": "success"},
    }
    return {**made, **members}


def rows_of(nodes: list[dict[str, Any]], chosen: Chosen = EVERYTHING, per_record: int = 1) -> list[Row]:
    """The rows of nodes that came in so many to a record: cycles across fragments are possible."""
    sendings, sent = [], {}
    for seq in range(0, len(nodes), per_record):
        source = Source(CHAIN, "agent", seq, f"{seq:064x}", 1_000_000 + seq, guarded=False)
        part = nodes[seq : seq + per_record]
        for sending in sendings_of(source, {"trace_tree": part}):
            sendings.append(sending)
            sent[seq, sending.position] = part[sending.position]
    tree = assemble(sendings)
    return [read_row(one, sent[one.shown.source.seq, one.shown.position], chosen) for one in tree.nodes]


def pages(rows: list[Row], chosen: Chosen = EVERYTHING) -> list[Picture]:
    found = [draw(rows, chosen)]
    while (following := found[-1].following) is not None:
        found.append(draw(rows, chosen, first=following))
        assert len(found) < 100
    return found


def nesting(lines: list[Line]) -> list[int]:
    """How deep each line is nested when its lists are opened and closed as it says; they must close."""
    depth, depths = 0, []
    for line in lines:
        depths.append(depth)
        depth += 1 if line.opens else 0
        assert not (line.opens and line.closes)
        depth -= line.closes
        assert depth >= 0
    assert depth == 0
    return depths


PARENTS = st.lists(st.one_of(st.none(), st.integers(0, 60)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(PARENTS, st.integers(1, 5))
def test_every_node_stands_once_below_its_parent(parents: list[int | None], per_record: int) -> None:
    """Parents are any numbers: later ones, missing ones, itself, cycles across records."""
    rows = rows_of([node(n, parent) for n, parent in enumerate(parents)], per_record=per_record)
    picture = draw(rows, EVERYTHING)
    lines = picture.lines + picture.astray
    assert sorted(line.row.node_id for line in lines) == sorted(ident(n) for n in range(len(parents)))
    assert all(line.row.level is None for line in picture.astray)
    depths = nesting(picture.lines)
    assert depths == [min(line.row.level or 0, MAX_NESTED) for line in picture.lines]
    above: dict[int, str] = {}
    for line, depth in zip(picture.lines, depths, strict=True):
        above[depth] = line.row.node_id
        if 0 < depth < MAX_NESTED:
            said = parents[UUID(line.row.node_id).int - 1]
            assert above[depth - 1] == ident(said if said is not None else -1)
    assert sum(line.below for line in picture.lines if line.row.level == 0) == sum(
        bool(line.row.level) for line in picture.lines
    )


@settings(max_examples=60, deadline=None)
@given(PARENTS, st.data())
def test_only_what_failed_keeps_the_whole_path(parents: list[int | None], data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, max(0, len(parents) - 1))))
    nodes = [
        node(n, parent, outputs={"status": "failed" if n in bad else "success"}, name="t" * (1 + n % 3))
        for n, parent in enumerate(parents)
    ]
    rows = rows_of(nodes)
    picture = draw(rows, Chosen(failed=True))
    places, fixes = parents_of(rows), corrections(rows)
    asked = {place for place, row in enumerate(rows) if row.is_wrong or place in fixes}
    wanted = {row.node_id for place in asked for row in path_to(place, rows, places)}
    lines = picture.lines + picture.astray
    assert {line.row.node_id for line in lines} == wanted
    assert {line.number - 1 for line in lines if not line.aside} == asked
    nesting(picture.lines)


def test_a_large_tree_comes_in_pages_and_every_node_once() -> None:
    count, rng = 2 * MAX_ROWS + 500, random.Random(7)  # noqa: S311  no secret
    rows = rows_of([node(n, None if n == 0 else rng.randrange(max(0, n - 40), n)) for n in range(count)])
    found = pages(rows)
    assert len(found) == 3
    own = [line.row.node_id for page in found for line in page.lines]
    assert set(own) == {ident(n) for n in range(count)}
    for page in found:
        assert nesting(page.lines)[0] == 0
        assert len(page.lines) <= MAX_ROWS + MAX_NESTED + 1
    numbers = [line.number for page in found for line in page.lines]
    repeated = len(numbers) - len(set(numbers))
    assert repeated <= 2 * (MAX_NESTED + 1), "only what a page hangs on stands again"


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_ten_thousand_nodes_end(shape: str) -> None:
    failing = {"outputs": {"status": "failed"}, "name": "same"}
    above = [None, *(range(9_999) if shape == "chain" else [0] * 9_999)]
    rows = rows_of([node(n, parent, **failing) for n, parent in enumerate(above)], per_record=10_000)
    assert sum(len(page.lines) for page in pages(rows)) >= 10_000
    assert len(corrections(rows)) >= 9_998


def test_a_correction_stands_below_the_failure_or_later_beside_it() -> None:
    failed = {"outputs": {"status": "failed"}}
    rows = rows_of(
        [
            node(0, None, node_type="PLANNING"),
            node(1, 0, name="fetch"),
            node(2, 0, name="fetch", **failed),
            node(3, 2, node_type="SELF_CORRECTION", name="think"),
            node(4, 2, name="other"),
            node(5, 0, name="fetch"),
            node(6, 0, name="other"),
            node(7, 0, node_type="SELF_CORRECTION", name="again"),
        ],
        per_record=8,
    )
    place = {row.node_id: at for at, row in enumerate(rows)}
    found = {rows[fix].node_id: rows[of].node_id for fix, of in corrections(rows).items()}
    assert found == {ident(3): ident(2), ident(5): ident(2), ident(7): ident(2)}
    lines = draw(rows, EVERYTHING).lines
    assert {line.row.node_id for line in lines if line.path} == {ident(0)}
    assert [line.fixes for line in lines if line.fixes] == [place[ident(2)] + 1] * 3


def test_a_large_tree_is_closed_but_for_what_failed() -> None:
    nodes = [node(n, n - 1 if n % 10 else None) for n in range(1_000)]
    nodes[555]["outputs"] = {"status": "failed"}
    lines = draw(rows_of(nodes), EVERYTHING).lines
    opened = {line.row.node_id for line in lines if line.shown and (line.row.level or 0) >= 2}
    assert opened == {ident(n) for n in range(552, 556)}
    assert all(line.shown for line in draw(rows_of(nodes), EVERYTHING, everything=True).lines)


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (Chosen(text="NEEDLE"), {1, 2, 3, 4, 5}),
        (Chosen(text="needle", node_type="PLANNING"), {3}),
        (Chosen(text="18446744073709551616"), {6}),
        (Chosen(node_type="OUTPUT"), set()),
        (Chosen(text="needle", failed=True), {5}),
    ],
)
def test_text_is_looked_for_everywhere(chosen: Chosen, numbers: set[int]) -> None:
    nodes = [
        node(0),
        node(1, 0, name="a needle"),
        node(2, 0, inputs={"deep": [{"in": "needles"}]}),
        node(3, 0, thought_process="Needle", node_type="PLANNING"),
        node(4, 0, metadata={"needle": 1}),
        node(5, 0, outputs={"status": "failed", "error": {"message": "no needle"}}),
        node(6, 0, outputs={"n": 2**64}),
    ]
    picture = draw(rows_of(nodes, chosen), chosen)
    assert {UUID(line.row.node_id).int - 1 for line in picture.lines if not line.aside} == numbers
    assert picture.found == len(numbers)


@pytest.mark.parametrize(
    ("members", "gist"),
    [
        ({"thought_process": "  think\n twice "}, "think twice"),
        ({"outputs": {"status": "failed", "error": {"message": "gone"}}, "thought_process": "t"}, "gone"),
        ({"outputs": {"status": "denied", "reason": {"code": "rate_limited"}}}, "rate_limited"),
        ({"outputs": {"status": "success", "value": [1, "x"]}}, '[1,"x"]'),
        ({"outputs": {"status": "success", "value": None}}, ""),
        ({"outputs": {"status": "success"}}, ""),
        ({"outputs": "done"}, "done"),
        ({"outputs": None}, ""),
        ({"outputs": {"a": 1, "b": 2}}, '{"a":1,"b":2}'),
        ({"outputs": [1]}, ""),
    ],
)
def test_the_gist_of_a_node(members: dict[str, Any], gist: str) -> None:
    [row] = rows_of([node(0, **members)])
    assert row.gist == gist


def test_long_texts_are_cut() -> None:
    [row] = rows_of([node(0, name="n" * 1_000, thought_process="t" * 100_000)])
    assert len(row.name) == 200
    assert len(row.gist) == 160
