"""Whoever sends many members chooses their order; none makes the canonical text slow to write.

The encoder sorts by quicksort, which takes 10 s of processor time for 100,000 members in the order below. So
what it is given has to be in order already.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from app.chain import canonical as module
from app.chain.canonical import canonical, canonical_parsed, with_member
from app.chain.strict import LARGE, Doubled, JsonObject, JsonValue, parse, sort_members
from app.trace.otlp import node
from app.trace.otlp.node import SpanNode, node_text

SORTED: JsonObject = {f"m{number:06}": 0 for number in range(LARGE + 1)}
HOSTILE: JsonObject = {**SORTED, "a": 0}
"""In order, but for one at the end that belongs to the beginning."""

RAW = msgspec.json.encode(HOSTILE)
TEXT = canonical(HOSTILE)


class Watched:
    """msgspec's encoder, which says when it has to sort a large object."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(order="sorted")
        self.sorted_itself = 0

    def encode(self, value: object) -> bytes:
        self._look(value)
        return self._encoder.encode(value)

    def _look(self, value: object) -> None:
        if isinstance(value, dict):
            self.sorted_itself += len(value) > LARGE and list(value) != sorted(value)
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                self._look(inner)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(module, "_ENCODER", watched)
    monkeypatch.setattr(node, "_ENCODER", watched)
    return watched


@pytest.mark.parametrize(
    "write",
    [
        lambda: canonical(HOSTILE),
        lambda: canonical([{"deep": HOSTILE}]),
        lambda: canonical_parsed(parse(RAW)),
        lambda: canonical_parsed(parse(b'{"deep": [' + RAW + b"]}")),
        lambda: with_member(TEXT, "0", 0),
        lambda: node_text(SpanNode("", "", "", {"metadata": HOSTILE}, plain=True)),
    ],
)
def test_the_encoder_gets_large_objects_in_order(write: Callable[[], str], encoder: Watched) -> None:
    assert write()
    assert encoder.sorted_itself == 0


def test_the_text_is_the_same_in_every_order() -> None:
    backwards = dict(reversed(HOSTILE.items()))
    assert canonical(backwards) == TEXT == canonical_parsed(parse(RAW))
    assert with_member(TEXT, "0", 7) == canonical({**HOSTILE, "0": 7})
    assert parse(RAW).value == HOSTILE


def test_small_objects_stay_as_they_came() -> None:
    small: JsonObject = {"b": {"d": 1, "c": [{"z": 1, "y": 2}]}, "a": 2}
    sort_members(small)
    assert canonical(list(small)) == '["b","a"]'


def test_any_depth_will_do() -> None:
    value: JsonValue = HOSTILE.copy()
    for _ in range(100_000):
        value = [value]
    sort_members(value)
    while isinstance(value, list):
        [value] = value
    assert isinstance(value, dict)
    assert list(value) == sorted(HOSTILE)


def test_an_object_whose_key_stands_twice_is_left_alone() -> None:
    doubled = Doubled([("b", 1), ("a", 2), ("a", 3)])
    sort_members([doubled])
    assert doubled.pairs == [("b", 1), ("a", 2), ("a", 3)]
