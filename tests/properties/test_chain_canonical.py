"""Canonical text over all values: idempotent, independent of key order, equal to another implementation."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.canonical import canonical, canonical_parsed, number, with_member
from app.chain.strict import JsonValue, parse

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
BMP_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0", max_codepoint=0xFFFF), max_size=12
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SAFE_INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
LONG_INTEGERS = st.integers(-(10**128) + 1, 10**128 - 1)


def values(text: st.SearchStrategy[str], integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Any JSON value over these strings and integers."""
    atoms = st.none() | st.booleans() | integers | FLOATS | text
    return st.recursive(
        atoms,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
        max_leaves=20,
    )


ANY = values(TEXT, LONG_INTEGERS | st.integers())


@settings(max_examples=200, deadline=None)
@given(values(BMP_TEXT, SAFE_INTEGERS))
def test_canonical_text_equals_that_of_the_rfc8785_package(value: JsonValue) -> None:
    assert canonical(value).encode() == rfc8785.dumps(value)


@settings(max_examples=200, deadline=None)
@given(values(TEXT, LONG_INTEGERS))
def test_canonical_text_is_a_fixed_point(value: JsonValue) -> None:
    text = canonical(value)
    parsed = parse(text.encode())
    assert canonical_parsed(parsed) == canonical(parsed.value) == text


@settings(max_examples=200, deadline=None)
@given(values(TEXT, LONG_INTEGERS), st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_keys(value: JsonValue, random: Random) -> None:
    def shuffled(item: JsonValue) -> JsonValue:
        if isinstance(item, dict):
            members = [(key, shuffled(member)) for key, member in item.items()]
            random.shuffle(members)
            return dict(members)
        return [shuffled(inner) for inner in item] if isinstance(item, list) else item

    assert canonical(shuffled(value)) == canonical(value)


@settings(max_examples=200, deadline=None)
@given(
    values(TEXT, LONG_INTEGERS),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]),
)
def test_canonical_text_does_not_depend_on_how_the_document_was_written(
    value: JsonValue,
    indent: int | None,
    ascii_only: bool,
    separators: tuple[str, str],
) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=separators)
    assert canonical_parsed(parse(written.encode())) == canonical(value)


@settings(max_examples=200, deadline=None)
@given(FLOATS)
def test_a_number_reads_back_as_itself_and_is_written_as_the_package_writes_it(x: float) -> None:
    text = number(x)
    assert float(text) == x
    assert text.encode() == rfc8785.dumps(x)
    assert canonical(x) == text == canonical_parsed(parse(repr(x).encode()))


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e23), st.integers(0, 8))
def test_numbers_around_the_turns_of_notation_are_written_right(x: float, digits: int) -> None:
    for value in (x, round(x, digits), float(int(x)), math.nextafter(x, math.inf), -x):
        assert number(value).encode() == rfc8785.dumps(value)
        assert canonical([value]) == f"[{number(value)}]"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXT, st.none(), max_size=12))
def test_keys_stand_in_the_order_of_their_utf8_bytes(value: dict[str, None]) -> None:
    keys = [key.encode() for key in json.loads(canonical(dict(value)))]
    assert keys == sorted(keys)


@settings(max_examples=100)
@given(st.dictionaries(TEXT, ANY, max_size=6), TEXT, ANY)
def test_a_member_is_added_as_if_the_object_had_had_it(
    members: dict[str, JsonValue], name: str, value: JsonValue
) -> None:
    assert with_member(canonical(members), name, value) == canonical({**members, name: value})


def test_a_member_stands_between_names_that_are_near() -> None:
    names = [
        "",
        "data",
        "idempotenc",
        "idempotency",
        "idempotency\u0001",
        "idempotencyé",
        "idempotencz",
        "é",
        "\U0001f600",
    ]
    text = canonical({name: [1.5, 10**30, {"b": 1, "a": "\\u0000"}] for name in names})
    members = {name: [1.5, 10**30, {"a": "\\u0000", "b": 1}] for name in names}
    assert with_member(text, "idempotency", {"key": 1}) == canonical({**members, "idempotency": {"key": 1}})
