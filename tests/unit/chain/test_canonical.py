"""Canonical text: numbers as ECMAScript writes them, integers exactly, and nothing that is not JSON."""

from __future__ import annotations

import enum
import math
import shutil
import struct
import subprocess
from typing import Any, cast

import pytest

from app.chain.canonical import canonical, canonical_parsed, number
from app.chain.strict import MAX_DIGITS, RECORD_DEPTH, JsonValue, parse
from app.errors import InvalidJsonError

RFC_8785_APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), RFC_8785_APPENDIX_B.items())
def test_numbers_are_written_as_rfc8785_lists_them(bits: str, text: str) -> None:
    (x,) = struct.unpack(">d", bytes.fromhex(bits))
    assert number(x) == text
    assert canonical([x]) == f"[{text}]"


def test_c01_one_number_rule_on_every_way_in() -> None:
    raw = b'{"v":[1e-7,1e16,1e21,123456789012345680.0,5e-324,0.1,1.0,100.0]}'
    expected = '{"v":[1e-7,10000000000000000,1e+21,123456789012345680,5e-324,0.1,1,100]}'
    values: list[JsonValue] = [1e-7, 1e16, 1e21, 123456789012345680.0, 5e-324, 0.1, 1.0, 100.0]
    assert canonical_parsed(parse(raw)) == expected
    assert canonical({"v": values}) == expected
    assert canonical_parsed(parse(expected.encode())) == expected


def test_c03_spellings_of_one_value_become_one_text() -> None:
    raw = b'{"z":1,"a":{"c":1.0,"b":1e2},"n":-0,"m":-0.0,"e":null,"l":[]}'
    expected = '{"a":{"b":100,"c":1},"e":null,"l":[],"m":0,"n":0,"z":1}'
    assert canonical_parsed(parse(raw)) == expected
    assert canonical(parse(raw).value) == expected


def test_c09_integers_keep_their_digits() -> None:
    digits = "9" * MAX_DIGITS
    raw = f"[-{digits},9007199254740993,{digits}]"
    assert canonical_parsed(parse(raw.encode())) == raw


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_c11_nan_and_infinity_have_no_canonical_text(value: float) -> None:
    for document in (value, [value], {"cost": {"args": [value]}}):
        with pytest.raises(InvalidJsonError):
            canonical(cast("JsonValue", document))
    with pytest.raises(InvalidJsonError):
        number(value)


@pytest.mark.parametrize(
    "value",
    [
        {1: 2}, {None: 1}, {("a",): 1}, {b"a": 1}, b"bytes", {1, 2}, object(), 1j,
        10**MAX_DIGITS, -(10**MAX_DIGITS), "\ud800", {"\udc00": 1}, "a\0b", {"\0": 1}, ["\\\0"],
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(value: object) -> None:
    for document in (value, [value], {"a": [value]}):
        with pytest.raises(InvalidJsonError):
            canonical(cast("JsonValue", document))


def test_c12_what_is_too_deep_is_refused_and_what_is_just_not_is_written() -> None:
    value: JsonValue = 1
    for _ in range(RECORD_DEPTH):
        value = [value]
    assert canonical(value) == "[" * RECORD_DEPTH + "1" + "]" * RECORD_DEPTH
    circular: list[JsonValue] = []
    circular.append(circular)
    for too_deep in ([value], circular):
        with pytest.raises(InvalidJsonError, match="nested deeper"):
            canonical(cast("JsonValue", too_deep))


def test_keys_are_sorted_by_their_utf8_bytes_and_not_by_utf16_units() -> None:
    assert canonical({"😀": 1, "\ufb33": 2, "é": 3, "z": 4, "": 5}) == '{"":5,"z":4,"é":3,"\ufb33":2,"😀":1}'


def test_only_what_must_be_escaped_is_escaped() -> None:
    controls = "".join(chr(code) for code in range(1, 32))
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    expected = "".join(short.get(code, f"\\u{code:04x}") for code in range(1, 32))
    assert canonical(controls) == f'"{expected}"'
    assert canonical('"\\/\x7f\x80é\u2028😀') == '"\\"\\\\/\x7f\x80é\u2028😀"'


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert canonical("\\u0000") == '"\\\\u0000"'


def test_tuples_and_string_enums_are_written_as_what_they_hold() -> None:
    class Word(enum.StrEnum):
        ONE = "one"

    class Old(str, enum.Enum):  # noqa: UP042  the older form is what is tried here
        TWO = "two"

    value = cast("JsonValue", {Word.ONE: (Old.TWO, True, None)})
    assert canonical(value) == '{"one":["two",true,null]}'


def test_an_integer_enum_is_refused_rather_than_guessed() -> None:
    class Level(enum.IntEnum):
        ONE = 1

    with pytest.raises(InvalidJsonError):
        canonical([Level.ONE])


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_c01_another_language_writes_the_same_numbers() -> None:
    doubles = [struct.unpack(">d", struct.pack(">Q", bits))[0] for bits in _spread(4000)]
    finite = [x for x in doubles if math.isfinite(x)]
    script = "const x=JSON.parse(require('fs').readFileSync(0));console.log(x.map(String).join(' '))"
    command = ["node", "-e", script]
    sent = repr(finite).encode()
    answer = subprocess.run(command, input=sent, capture_output=True, check=True, timeout=60).stdout
    assert [number(x) for x in finite] == answer.decode().split()


def _spread(count: int) -> list[int]:
    """Bit patterns over all exponents, by a fixed recurrence (Knuth's MMIX constants)."""
    bits: list[int] = []
    state: Any = 1
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        bits.append(state)
    return bits
