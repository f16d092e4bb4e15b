"""JSON in lines stays the same JSON value, and no character steers or hides it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.canonical import canonical
from app.console.json_text import FOLDED_CHARS, SHOWN_CHARS, shown_json, shown_text, visible

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_the_lines_are_the_same_value(value: Any) -> None:
    shown = shown_json(value)
    assert json.loads(shown.text) == value
    assert shown.chars == len(canonical(value))


def test_numbers_keep_their_digits() -> None:
    value = {"n": 10**40, "x": 1e21, "small": 1e-7}
    assert shown_json(value).text == '{\n  "n": 1' + "0" * 40 + ',\n  "small": 1e-7,\n  "x": 1e+21\n}'


def test_empty_ones_stay_on_their_line() -> None:
    assert shown_json({"a": [], "b": {}}).text == '{\n  "a": [],\n  "b": {}\n}'


def test_what_steers_text_is_written_as_its_escape() -> None:
    assert visible("a\u202eb\u200bc\U000e0041\td\n") == "a\\u202eb\\u200bc\\udb40\\udc41\td\n"
    assert visible("grün 日本") == "grün 日本"
    assert visible("a\u3164b\u2800") == "a\\u3164b\\u2800"


def test_what_is_long_is_folded_and_cut() -> None:
    assert not shown_text("x" * FOLDED_CHARS).folded
    long = shown_text("x" * (SHOWN_CHARS + 1))
    assert (long.folded, long.is_cut, len(long.text), long.chars) == (
        True,
        True,
        SHOWN_CHARS,
        SHOWN_CHARS + 1,
    )
