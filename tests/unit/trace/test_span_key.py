"""Which spans a payload holds; what is not of the form names none and breaks nothing."""

from __future__ import annotations

from typing import Any

import pytest

from app.trace.span_key import SpanKey, keyed_nodes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def tree(*otels: Any) -> dict[str, Any]:
    return {"trace_tree": [{"metadata": {"otel": otel}} for otel in otels]}


def test_every_node_names_its_span() -> None:
    other = {"trace_id": TRACE, "span_id": "00f067aa0ba902b7"}
    payload = tree({"trace_id": TRACE, "span_id": SPAN}, other, other)
    first, second, third = payload["trace_tree"]
    key = SpanKey(bytes.fromhex(TRACE), bytes.fromhex("00f067aa0ba902b7"))
    assert list(keyed_nodes(payload)) == [
        (SpanKey(bytes.fromhex(TRACE), bytes.fromhex(SPAN)), first),
        (key, second),
        (key, third),
    ]


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"trace_tree": None},
        {"trace_tree": {}},
        {"trace_tree": [None, 1, [], {}, {"metadata": None}, {"metadata": []}]},
        tree(None, [], {}, {"trace_id": TRACE}, {"span_id": SPAN}),
        tree({"trace_id": TRACE[:-2], "span_id": SPAN}),
        tree({"trace_id": TRACE, "span_id": SPAN + "00"}),
        tree({"trace_id": "g" * 32, "span_id": SPAN}),
        tree({"trace_id": TRACE, "span_id": 1}),
        tree({"trace_id": TRACE.upper(), "span_id": SPAN}),
        tree({"trace_id": "af " * 10 + "af", "span_id": SPAN}),
    ],
)
def test_what_is_no_span_names_none(payload: dict[str, Any]) -> None:
    assert not list(keyed_nodes(payload))
