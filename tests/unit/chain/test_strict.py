"""Strict JSON: what is refused, with which place, and that the limits hold to the last unit."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.strict import MAX_DEPTH, MAX_DIGITS, MAX_MEMBERS, MAX_STRING, MAX_VALUES, parse
from app.errors import InvalidJsonError


def _refusal(raw: bytes, **limits: int) -> str:
    with pytest.raises(InvalidJsonError) as caught:
        parse(raw, **limits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"tool":"read_file","cost":0,"args":{"p":1},"tool":"wire_transfer"}', "$.tool"),
        (b'{"args":{"p":1,"\\u0070":2}}', "$.args.p"),
        (b'[{}, {"a": 1, "b": {"x y": 1, "x y": 1}}]', '$[1].b["x y"]'),
        ('{"é":1,"\\u00e9":1}'.encode(), '$["\\u00e9"]'),
    ],
)
def test_c05_duplicate_keys_are_refused(raw: bytes, place: str) -> None:
    refusal = _refusal(raw)
    assert "duplicate key" in refusal
    assert f"at {place} (line 1 column " in refusal


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"q":"a\\u0000b"}', "$.q"),
        (b'{"k\\u0000":1}', '$["k\\u0000"]'),
        (b'{"a":[1,{"tool":"x\\u0000"}]}', "$.a[1].tool"),
        (b'"\\\\\\u0000"', "$"),
    ],
)
def test_c07_nul_is_refused_and_named(raw: bytes, place: str) -> None:
    refusal = _refusal(raw)
    assert "U+0000" in refusal
    assert f"at {place} (" in refusal


def test_c07_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert parse(b'"\\\\u0000"').value == "\\u0000"
    assert parse(b' "\\\\u0000"').value == "\\u0000"


@pytest.mark.parametrize(
    "raw",
    [
        b'"\\ud800"', b'"\\udc00"', b'"\\uDBFF x"', b'"\\ud800\\ud800\\udc00"', b'"\\udc00\\ud800"',
        b'"\\\\ud83d\\ude00"', b'{"\\ud83d":1}', b'"\\ud83d\\\\ude00"', b'"\\ud83d\\ude00\\ude00"',
    ],
)  # fmt: skip
def test_lone_surrogates_are_refused(raw: bytes) -> None:
    assert "lone surrogate" in _refusal(raw)


def test_surrogate_pairs_and_their_look_alikes_are_read() -> None:
    assert parse(b'"\\ud83d\\ude00"').value == "😀"
    assert parse(b'"\\uD83D\\uDE00 \\\\ud800 \\n"').value == "😀 \\ud800 \n"


def test_c09_integers_keep_every_digit_up_to_the_limit() -> None:
    limit = int("9" * MAX_DIGITS)
    raw = f'{{"a":9007199254740993,"b":9223372036854775808,"c":{-limit},"d":{limit}}}'
    wanted = {"a": 2**53 + 1, "b": 2**63, "c": -limit, "d": limit}
    assert parse(raw.encode()).value == wanted
    assert parse(f" {raw}".encode()).value == wanted


@pytest.mark.parametrize("digits", [MAX_DIGITS + 1, MAX_DIGITS + 2, 500, 5000, 20_000])
@pytest.mark.parametrize("before", ["", "x" * 7, " "])
def test_c09_longer_integers_are_refused_wherever_they_stand(digits: int, before: str) -> None:
    for sign in ("", "-"):
        for space in ("", " "):
            refusal = _refusal(f'["{before}",{space}{sign}{"1" * digits}]'.encode())
            assert f"more than {MAX_DIGITS} digits at $[1] (" in refusal


def test_digits_in_strings_and_fractions_are_no_integers() -> None:
    digits = "1" * 500
    assert parse(f'["{digits}",0.{digits}]'.encode()).value == [digits, 0.1111111111111111]


@pytest.mark.parametrize("raw", [b'{"cost":NaN}', b'{"x":[Infinity,-Infinity]}', b"[-Infinity]", b"NaN"])
def test_c11_nan_and_infinity_are_refused(raw: bytes) -> None:
    assert "not JSON at $" in _refusal(raw)


@pytest.mark.parametrize("number", ["1e309", "-1e400", "123e100000", "1.8e308"])
def test_c11_numbers_that_overflow_a_double_are_refused(number: str) -> None:
    assert "overflows a double at $.a[0] (" in _refusal(f'{{"a":[{number}]}}'.encode())


def test_numbers_that_underflow_are_zero() -> None:
    assert parse(b"[1e-400,-1e-999]").value == [0.0, 0.0]


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1_200, 100_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[{"k": ', "}]")])
def test_c12_deep_nesting_is_refused(depth: int, opened: str, closed: str) -> None:
    assert f"nested deeper than {MAX_DEPTH} levels" in _refusal(f"{opened * depth}1{closed * depth}".encode())
    # Never closed: it is no JSON either, and which of the two is said first depends on Python's version.
    assert _refusal((opened * depth).encode())


@pytest.mark.parametrize("filling", ["", "1", '"x"'])
@pytest.mark.parametrize("space", ["", " "])
def test_c12_the_depth_limit_is_exact(filling: str, space: str) -> None:
    siblings = "[0],[0],[0],"  # more brackets than levels: counting alone does not decide
    for depth in (MAX_DEPTH, MAX_DEPTH - 1):
        inner = siblings if depth == MAX_DEPTH - 1 else ""
        document = f"{'[' * (depth - 1)}{inner}[{filling}]{']' * (depth - 1)}{space}"
        assert json.loads(document) == parse(document.encode()).value
    too_deep = f"{'[' * MAX_DEPTH}[{filling}]{']' * MAX_DEPTH}{space}"
    assert "nested deeper" in _refusal(too_deep.encode())


def test_c12_a_document_at_the_limit_is_read_far_down_the_stack() -> None:
    document = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH

    def descend(frames: int) -> object:
        return parse(document) if frames == 0 else descend(frames - 1)

    assert descend(sys.getrecursionlimit() // 2) == parse(document)


@pytest.mark.parametrize("character", ["a", "é", "€", "😀"])
@pytest.mark.parametrize("space", ["", " "])
def test_strings_are_bounded_in_utf8_bytes(character: str, space: str) -> None:
    limit = 12
    fits = character * (limit // len(character.encode()))
    for document in (f'["{fits}"]', f'{{"{fits}":1}}'):
        parse((document + space).encode(), max_string=limit)
        longer = document.replace(fits, fits + "b")
        assert f"more than {limit} bytes" in _refusal((longer + space).encode(), max_string=limit)


def _values(value: object) -> int:
    """How many values a document holds, itself included."""
    if isinstance(value, dict):
        return 1 + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("pad", ["", " ", '"[{,\\",]"'], ids=["none", "spaces", "punctuation in strings"])
@pytest.mark.parametrize(
    "document",
    [
        "[]", "{}", "[[]]", "[1]", "[1,2,3]", '{"a":1,"b":[{}],"c":{"d":[[],[]]}}', "[[[[1],[2]],[3]]]",
        r'["a,b","[[[","{",",,,,\\","\",",[  ],{  },"\\"]', "[[\n],{\t}]",
    ],
)  # fmt: skip
def test_the_values_of_a_document_are_counted_exactly(document: str, pad: str) -> None:
    padded = f"[{document},{pad or 0}{' ' * 100}]" if pad != " " else f"[ {document} {' ' * 100}]"
    count = _values(json.loads(padded))
    assert parse(padded.encode(), max_values=count).value == json.loads(padded)
    assert (
        _refusal(padded.encode(), max_values=count - 1)
        == f"more than {count - 1} values in one document at $"
    )
    assert parse(padded.encode()).value == json.loads(padded)


_SCALARS = st.none() | st.integers(0, 9) | st.text('[]{},:"\\\\ a', max_size=6)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text('a,["\\\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=60,
)


@settings(max_examples=200, deadline=None)
@given(_DOCUMENTS, st.sampled_from([None, 1]))
def test_the_values_of_any_document_are_counted_exactly(document: object, indent: int | None) -> None:
    padded = json.dumps(document, indent=indent).encode() + b" " * 400
    count = _values(document)
    assert parse(padded, max_values=count).value == document
    assert f"more than {count - 1} values" in _refusal(padded, max_values=count - 1)


def test_values_are_counted_across_many_strings() -> None:
    strings = 30_000
    document = b"[" + b",".join([b'"[,"'] * strings) + b",[]]"
    assert len(parse(document, max_values=strings + 2).value) == strings + 1  # type: ignore[arg-type]  # a list
    assert "values" in _refusal(document, max_values=strings + 1)


def test_c12_of_too_many_brackets_the_depth_is_told() -> None:
    for raw in (b"[" * 3 * MAX_VALUES, b"[" * 3 * MAX_VALUES + b"]" * 3 * MAX_VALUES):
        assert f"nested deeper than {MAX_DEPTH} levels at $" in _refusal(raw, max_values=MAX_VALUES)
    wide = b"[" + b",".join([b"[[1]]"] * (MAX_VALUES // 2)) + b"]"
    assert f"more than {MAX_VALUES} values" in _refusal(wide, max_values=MAX_VALUES)


def test_a_string_that_never_ends_is_refused_at_once() -> None:
    endless = b'["' + b'\\",[' * (8 * MAX_VALUES)  # looking for its end from each quote would take hours
    assert "Unterminated string" in _refusal(endless, max_values=MAX_VALUES)


def test_a_string_is_measured_after_unescaping() -> None:
    parse(b'"' + b"\\u0041" * MAX_STRING + b'"')
    assert "a string of more than" in _refusal(b'"' + b"\\u0041" * (MAX_STRING + 1) + b'"')


@pytest.mark.parametrize("space", ["", " "])
def test_members_are_bounded(space: str) -> None:
    array = ",".join("0" * MAX_MEMBERS)
    keys = ",".join(f'"{n}":0' for n in range(MAX_MEMBERS))
    parse(f"[{array}]{space}".encode())
    parse(f"{{{keys}}}{space}".encode())
    parse(f"[[{array}],[{array}]]{space}".encode())
    assert "more than 100000 members" in _refusal(f"[[{array},0]]{space}".encode())
    assert "more than 100000 members" in _refusal(f'{{{keys},"x":0}}{space}'.encode())


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"\xef\xbb\xbf{}", "line 1 column 1"),
        (b'{"a":"\xff"}', "byte 6"),
        (b'"\xc0\xaf"', "byte 1"),
        (b'"\xed\xa0\x80"', "byte 1"),
        (b"", "line 1 column 1"),
        (b"\n\n [1,]", "line 3 column"),
        ("[1]".encode("utf-16"), "byte 0"),
        ("[1]".encode("utf-16-le"), "line 1 column"),
        (b"{} {}", "line 1 column 4"),
    ],
)
def test_c32_what_is_no_utf8_json_is_refused_with_its_place(raw: bytes, place: str) -> None:
    with pytest.raises(InvalidJsonError) as caught:
        parse(raw)
    assert caught.value.place.startswith(place)


def test_a_place_too_far_to_walk_to_is_still_a_refusal() -> None:
    raw = b"[" + b"[0]," * 90_000 + b'{"a":1,"a":1}]'
    assert "duplicate key" in _refusal(raw)


def test_a_place_names_lines_and_columns() -> None:
    assert "(line 3 column 8)" in _refusal(b'{\n "a": 1,\n "b": [1e999]}')


def test_one_and_true_and_one_point_zero_stay_apart() -> None:
    value = parse(b'[1,true,1.0,"1"]').value
    assert isinstance(value, list)
    assert [type(item) for item in value] == [int, bool, float, str]
