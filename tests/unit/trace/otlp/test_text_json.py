"""JSON inside a string attribute: read only where nothing of it gets lost, whichever decoder reads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.strict import MAX_DIGITS
from app.trace.otlp.text_json import parsed

_KEYS = st.sampled_from(["a", "b", 'a"', "\\", "/", "line\n", "é", ""])
_SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from([0.25, 1.0, 1e30]) | _KEYS
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3)
)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '{"a": {"b": 1, "b": 2}}',
        '[{"a\\"":1,"a\\"":2}]',
        '{"\\/":1,"/":2}',
        '{"":"\\\\","":"\\""}',
        '{"\\u0061":1,"a":2}',
        "{'a': 1}",
        '["a\tb"]',
        "[NaN]",
        "[1e999]",
        f"[{'7' * (MAX_DIGITS + 1)}]",
    ],
)
def test_what_would_lose_something_stays_text(text: str) -> None:
    assert parsed(text).value == text


@pytest.mark.parametrize("digits", [MAX_DIGITS, MAX_DIGITS + 1])
def test_digits_in_a_string_are_no_number(digits: int) -> None:
    assert parsed(json.dumps(["7" * digits])).value == ["7" * digits]


@pytest.mark.parametrize(("number", "plain"), [("0.25", True), ("1.0", False), ("1e5", False), ("7", True)])
def test_numbers_of_another_spelling_are_told_of(number: str, plain: bool) -> None:
    found = parsed(f"[{number}]")
    assert (found.value, found.plain_numbers) == ([json.loads(number)], plain)


@settings(max_examples=100)
@given(st.lists(_VALUES, max_size=3) | st.dictionaries(_KEYS, _VALUES, max_size=3), st.booleans())
def test_every_document_is_read_as_the_standard_library_reads_it(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert repr(parsed(text).value) == repr(json.loads(text))
