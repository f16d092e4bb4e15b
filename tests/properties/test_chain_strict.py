"""Strict parsing against a second, tiny parser, and its quick way against its thorough one."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.chain import strict
from app.chain.canonical import canonical, canonical_parsed
from app.chain.strict import MAX_DEPTH, MAX_STRING, JsonValue, parse
from app.errors import InvalidJsonError

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"')
SPACE = re.compile(r"[ \t\n\r]*")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Tiny:
    """A second reading of RFC 8259 and of our rule, for short documents: recursive descent, no tricks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> JsonValue:
        value = self.value(0)
        self.space()
        self.need(self.at == len(self.text))
        return value

    def need(self, condition: object) -> None:
        if not condition:
            raise ValueError(self.at)

    def space(self) -> None:
        match = SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def take(self, token: str) -> bool:
        self.space()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def value(self, depth: int) -> JsonValue:
        self.space()
        for word, meaning in (("null", None), ("true", True), ("false", False)):
            if self.take(word):
                return meaning
        if self.take("["):
            return self.array(depth + 1)
        if self.take("{"):
            return self.object(depth + 1)
        return self.string() if self.text[self.at : self.at + 1] == '"' else self.number()

    def array(self, depth: int) -> list[JsonValue]:
        self.need(depth <= MAX_DEPTH)
        items: list[JsonValue] = []
        if self.take("]"):
            return items
        while True:
            items.append(self.value(depth))
            if self.take("]"):
                return items
            self.need(self.take(","))

    def object(self, depth: int) -> dict[str, JsonValue]:
        self.need(depth <= MAX_DEPTH)
        members: dict[str, JsonValue] = {}
        if self.take("}"):
            return members
        while True:
            self.space()
            key = self.string()
            self.need(key not in members and self.take(":"))
            members[key] = self.value(depth)
            if self.take("}"):
                return members
            self.need(self.take(","))

    def string(self) -> str:
        match = STRING.match(self.text, self.at)
        self.need(match)
        assert match is not None
        self.at = match.end()
        units = ESCAPE.sub(lambda e: chr(int(e[1], 16)) if e[1] else SHORT.get(e[2], e[2]), match[1])
        joined = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")  # lone ones fail here
        self.need("\0" not in joined)
        return joined

    def number(self) -> int | float:
        match = NUMBER.match(self.text, self.at)
        self.need(match)
        assert match is not None
        self.at = match.end()
        if match[1] or match[2]:
            value = float(match[0])
            self.need(abs(value) != float("inf"))
            return value
        self.need(len(match[0].lstrip("-")) <= 128)
        return int(match[0])


def _tiny(raw: bytes) -> object:
    try:
        return Tiny(raw.decode("utf-8")).document()
    except ValueError:
        return InvalidJsonError


def _ours(raw: bytes) -> object:
    try:
        return parse(raw).value
    except InvalidJsonError:
        return InvalidJsonError


PIECES = st.sampled_from(
    [
        "{", "}", "[", "]", ",", ":", '"', '"a"', '"a":', '"\\u0061":', "1", "-", "0", "01", "1.0", "-0",
        "1e5",
        "1E+400", ".5", "true", "null", "NaN", "Infinity", " ", "\n", "\t", "\f", "\\", "\\u0000", "\\ud83d",
        "\\ude00", "\\\\", "\\n", "é", "😀", "\x00", "\x1f", "\x7f", "\ufeff", "1" * 128, "1" * 129,
    ]
)  # fmt: skip
CHARACTERS = st.characters(exclude_characters="\0", codec="utf-8")
SOUP = st.lists(PIECES, max_size=12).map("".join)
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | SOUP
DOCUMENTS = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def _same(one: object, other: object) -> bool:
    """Equal in value and in type, at every depth: 1, 1.0 and True are three things."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


@settings(max_examples=200, deadline=None)
@given(SOUP)
@example('{"a":1,"\\u0061":2}')
@example('["\\\\u0000"]')
@example("1E+4001.0")
@example('"\\\\ud83d\\ude00"')
def test_any_soup_of_tokens_is_judged_as_by_a_second_parser(text: str) -> None:
    raw = text.encode("utf-8")
    assert _same(_ours(raw), _tiny(raw))
    quoted = f'["{text}"]'.encode()
    assert _same(_ours(quoted), _tiny(quoted))


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, st.booleans(), st.booleans())
def test_any_written_document_is_judged_as_by_a_second_parser(
    value: object,
    ascii_only: bool,
    compact: bool,
) -> None:
    separators = (",", ":") if compact else None
    raw = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "surrogatepass")
    assert _same(_ours(raw), _tiny(raw))


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, st.data())
def test_a_document_with_a_changed_byte_is_judged_as_by_a_second_parser(
    value: object, data: st.DataObject
) -> None:
    raw = bytearray(json.dumps(value).encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert _same(_ours(bytes(raw)), _tiny(bytes(raw)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_and_nothing_else_happens(raw: bytes) -> None:
    assert _same(_ours(raw), _tiny(raw))


SPACES = st.sampled_from(["", "", "", " ", "  ", "\n", "\r\n\t", "\n    "])
NUMBERS = st.sampled_from(
    ["0", "-0", "1", "-12", "1.0", "0.25", "1e5", "1E-7", "1e400", "9" * 128, "9" * 129, "1" * 30]
)  # fmt: skip
IN_STRINGS = st.sampled_from(
    [
        " ", ": ", ", ", "{ ", "] ", '\\"', '\\": ', '\\", ', "\\\\", "\\n", "\\/", "\\u0020", "\\u00e9",
        "\\ud83d\\ude00", "\\uD83D\\uDE00", "\\ud83d", "\\ude00", "\\u0000", "\\u001b", "\\u0022", "\\u005c",
        "\\u201C", "\\U0001f600", "a", "1", "u0041", "é", "😀", "\u00a0", "\u2028", "\x7f",
    ]
)  # fmt: skip
STRINGS = st.lists(IN_STRINGS, max_size=5).map(lambda pieces: f'"{"".join(pieces)}"')
KEYS = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"a "', '"c: "', '"é"'])


@st.composite
def spaced(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """An array or object with any white space between its tokens; keys may stand twice."""
    items = draw(st.lists(inner, max_size=4))
    brackets = draw(st.sampled_from(["[]", "{}"]))
    if brackets == "{}":
        items = [f"{draw(KEYS)}{draw(SPACES)}:{draw(SPACES)}{item}" for item in items]
    written = ",".join(f"{draw(SPACES)}{item}{draw(SPACES)}" for item in items) or draw(SPACES)
    return f"{brackets[0]}{written}{brackets[1]}"


WRITTEN = st.recursive(NUMBERS | STRINGS | st.sampled_from(["true", "false", "null"]), spaced, max_leaves=12)


@settings(max_examples=100, deadline=None)
@given(WRITTEN, SPACES)
@example('{"a": 1, "b": 2, "a": 3}', "")
@example('{"a": "x", "a": "x "}', "")
@example('["\\": ", ", "]', "")
@example('[1.0, 1e5, "\\u0020"]', "")
@example('{"a": "\\u00e9 \\\\u0041", "\\ud83d\\ude00": 1}', "")
@example('["\\u00e9", "\\u0022, \\u0022"]', "")
@example("[[[" * 50 + " " + "]]]" * 50, "")
def test_a_document_with_any_white_space_is_read_alike_by_all_ways(text: str, space: str) -> None:
    raw = f"{space}{text}{space}".encode()
    assert _same(_ours(raw), _tiny(raw))
    found = strict._quick(raw, MAX_DEPTH, MAX_STRING)
    if found is None:
        return
    thorough = strict._thorough(raw, MAX_DEPTH, MAX_STRING, lenient=False)
    assert _same(found.value, thorough.value)
    assert canonical_parsed(found) == canonical_parsed(thorough) == canonical(thorough.value)


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(CHARACTERS),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner)))  # fmt: skip
def test_what_a_library_writes_takes_the_quick_way(value: object) -> None:
    for separators, indent in ((None, None), ((",", ":"), None), (None, 2), (None, "\t")):
        raw = json.dumps(value, ensure_ascii=False, separators=separators, indent=indent).encode()
        found = strict._quick(raw, MAX_DEPTH, MAX_STRING)
        assert found is not None
        assert _same(found.value, value)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=0xA0, codec="utf-8") | st.sampled_from(' a"\\/\n'))))
def test_escapes_of_characters_beyond_ascii_take_the_quick_way(value: list[str]) -> None:
    found = strict._quick(json.dumps(value).encode(), MAX_DEPTH, MAX_STRING)
    assert found is not None
    assert found.value == value


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS)
def test_the_quick_way_and_the_thorough_way_never_disagree(value: object) -> None:
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        raw = written.encode("utf-8", "surrogatepass")
        for found in (
            strict._quick(raw, MAX_DEPTH, MAX_STRING),
            strict.quick_as_it_stands(raw, msgspec.json.Encoder(), MAX_DEPTH, MAX_STRING),
        ):
            if found is not None:
                thorough = strict._thorough(raw, MAX_DEPTH, MAX_STRING, lenient=False)
                assert _same(found.value, thorough.value)


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS, st.integers(0, 6))
def test_a_value_is_deeper_as_it_is_by_recursion(value: Any, limit: int) -> None:
    assert strict._is_deeper(value, limit) == (_depth(value) > limit)


def _depth(value: object) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)
