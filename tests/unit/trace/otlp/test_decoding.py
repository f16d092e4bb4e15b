"""Both encodings give the same spans; a bad span costs no other (cases C06, C07, C09, C12, H04, H06)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.canonical import canonical
from app.errors import BadRequestError
from app.trace.otlp.json_form import decode_json
from app.trace.otlp.node import otel_of
from app.trace.otlp.protobuf import decode_protobuf
from app.trace.otlp.span import MAX_NESTING, Export
from tests.support.spans import Pairs, Sent, as_json, document, protobuf

ROOT = Path(__file__).parents[4]
EXPORTS = sorted((ROOT.parent / "shared" / "data" / "otlp").glob("*.pb"))

Send = Callable[..., Export]


def by_protobuf(*spans: Sent, **more: Any) -> Export:
    return decode_protobuf(protobuf(*spans, **more))


def by_json(*spans: Sent, **more: Any) -> Export:
    return decode_json(as_json(*spans, **more))


BOTH = pytest.mark.parametrize("send", [by_protobuf, by_json])

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
KEYS = TEXT
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=64)
    | TEXT
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
SPANS = st.builds(
    Sent,
    name=TEXT.filter(bool),
    trace_id=st.binary(min_size=16, max_size=16).filter(any),
    span_id=st.binary(min_size=8, max_size=8).filter(any),
    parent_span_id=st.just(b"") | st.binary(min_size=8, max_size=8).filter(any),
    kind=st.integers(0, 5),
    start_ns=st.integers(0, 2**64 - 1),
    end_ns=st.integers(0, 2**64 - 1),
    attributes=st.dictionaries(KEYS, VALUES, max_size=4),
    events=st.lists(st.tuples(TEXT, st.dictionaries(KEYS, VALUES, max_size=2)), max_size=2).map(tuple),
    links=st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))).map(
        tuple
    ),
    code=st.integers(0, 2),
    message=TEXT,
    trace_state=TEXT,
    flags=st.integers(0, 2**32 - 1),
    dropped=st.integers(0, 2**32 - 1),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SPANS, max_size=3), st.dictionaries(KEYS, VALUES, max_size=3))
def test_h06_both_encodings_of_anything_are_the_same_spans(
    spans: list[Sent], resource: dict[str, Any]
) -> None:
    export = by_protobuf(*spans, resource=resource)
    assert len(export.spans) == len(spans), export.rejected
    again = by_json(*spans, resource=resource)
    assert again == export
    # Equal is not enough: 1 == 1.0 == True, and what is stored is the text.
    assert [canonical(otel_of(span)) for span in again.spans] == [
        canonical(otel_of(span)) for span in export.spans
    ]


@pytest.mark.skipif(not EXPORTS, reason="the exports of real programs are not beside this checkout")
@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_real_exports_are_the_same_in_both_encodings(path: Path) -> None:
    export = decode_protobuf(path.read_bytes())
    assert export.spans
    assert not export.rejected
    assert decode_json(path.with_suffix(".otlp.json").read_bytes()) == export


@BOTH
def test_values_keep_what_they_say(send: Send) -> None:
    values = {
        "big": 2**63 - 1,
        "exact": 9_007_199_254_740_993,
        "half": 0.5,
        "whole": 1.0,
        "small": 1e-7,
        "not": float("nan"),
        "below": float("-inf"),
        "raw": b"\xff\x00",
        "nothing": None,
        "yes": True,
        "list": [1, "x", {"k": [False]}],
    }
    [span] = send(Sent(attributes=values)).spans
    assert span.attributes == {
        **values,
        "not": {"doubleValue": "NaN"},
        "below": {"doubleValue": "-Infinity"},
        "raw": {"bytesValue": "/wA="},
    }
    assert type(span.attributes["yes"]) is bool
    assert type(span.attributes["whole"]) is int


BAD = {
    "a trace id that is short": (Sent(trace_id=b"x" * 8), "trace_?[iI]d: must be 16 bytes, is 8"),
    "a span id that is long": (Sent(span_id=b"x" * 9), "span_?[iI]d: must be 8 bytes, is 9"),
    "no ids, as logs have none": (Sent(trace_id=b"", span_id=b""), "trace_?[iI]d: must be 16 bytes, is 0"),
    "an id of zeros": (Sent(span_id=b"\0" * 8), "span_?[iI]d: must not be all zero"),
    "a parent that is no id": (Sent(parent_span_id=b"x"), "parent_?[sS]pan_?[iI]d: must be 8 bytes, is 1"),
    "no name": (Sent(name=""), "name: is missing"),
    "C07 U+0000 in a value": (Sent(attributes={"q": "a\0b"}), "attribute q: holds the character U\\+0000"),
    "C07 U+0000 in a key": (Sent(attributes={"k\0": 1}), "U\\+0000"),
    "C07 U+0000 in the name": (Sent(name="x\0"), "name: holds the character U\\+0000"),
    "C07 U+0000 in an event": (Sent(events=(("e", {"a": {"b": "\0"}}),)), "U\\+0000"),
    "C07 U+0000 in the status": (Sent(message="\0"), "message: holds the character U\\+0000"),
    "C06 an attribute twice": (
        Sent(attributes=(("gen_ai.tool.name", "read"), ("gen_ai.tool.name", "delete_all"))),
        "attribute gen_ai.tool.name: stands twice",
    ),
    "C06 a member twice": (
        Sent(attributes=(("args", Pairs((("a", 1), ("a", 2)))),)),
        "attribute args: the key a stands twice in it",
    ),
    "C06 twice in an event": (Sent(events=(("e", (("a", 1), ("a", 1))),)), "attribute a: stands twice"),  # type: ignore[arg-type]  # pairs, on purpose
    "a string above 1 MiB": (Sent(attributes={"q": "x" * (2**20 + 1)}), "attribute q: a string of more than"),
    "a string above 1 MiB in UTF-8": (Sent(attributes={"q": "é" * (2**19 + 1)}), "a string of more than"),
    "bytes above 1 MiB in base64": (Sent(attributes={"q": b"x" * 2**20}), "a string of more than"),
    "C12 nested too deep": (Sent(attributes={"q": [[]]}), "attribute q: nested deeper than 24 levels"),
}


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


@BOTH
@pytest.mark.parametrize("bad", BAD)
def test_h04_one_bad_span_is_named_and_the_others_are_kept(send: Send, bad: str) -> None:
    span, words = BAD[bad]
    if bad.startswith("C12"):
        span = msgspec.structs.replace(span, attributes={"q": deep(MAX_NESTING + 1)})
    export = send(Sent(name="before"), span, Sent(name="after"))
    assert [kept.name for kept in export.spans] == ["before", "after"]
    [rejected] = export.rejected
    assert re.search(words, rejected.reason), rejected.reason
    assert rejected.span_id == span.span_id.hex()
    assert "\0" not in rejected.name + rejected.reason


@BOTH
def test_c12_the_deepest_attribute_allowed_is_kept(send: Send) -> None:
    value = deep(MAX_NESTING)
    [span] = send(Sent(attributes={"q": value})).spans
    assert span.attributes["q"] == value


@pytest.mark.parametrize("levels", [100, 1_200, 100_000])
@pytest.mark.parametrize("form", ["arrayValue", "kvlistValue"])
def test_c12_json_deeper_than_any_span_is_refused_whole(levels: int, form: str) -> None:
    opening, closing = b'{"arrayValue":{"values":[', b"]}}"
    if form == "kvlistValue":
        opening, closing = b'{"kvlistValue":{"values":[{"key":"k","value":', b"}]}}"
    bottom = b"{}" if form == "kvlistValue" else b""
    raw = as_json(Sent(attributes={"q": "deep"})).replace(
        b'{"stringValue": "deep"}', opening * levels + bottom + closing * levels
    )
    with pytest.raises(BadRequestError, match="nested deeper than 128 levels"):
        decode_json(raw)


@pytest.mark.parametrize("levels", [100, 1_200, 20_000])
def test_c12_protobuf_deeper_than_any_span_is_refused_whole(levels: int) -> None:
    value = b""
    for _ in range(levels):
        value = field(5, field(1, value))  # AnyValue.array_value, ArrayValue.values
    span = field(9, field(1, b"q") + field(2, value))  # Span.attributes, KeyValue.key and .value
    raw = field(1, field(2, field(2, span)))
    with pytest.raises(BadRequestError, match="nest at most 24 levels"):
        decode_protobuf(raw)


def field(number: int, payload: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    length, size = bytearray(), len(payload)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + payload


@BOTH
def test_a_bad_resource_rejects_its_own_spans(send: Send) -> None:
    export = send(Sent(), Sent(), resource=(("a", 1), ("a", 2)))
    assert not export.spans
    assert [item.reason for item in export.rejected] == ["resource: attribute a: stands twice"] * 2


@pytest.mark.parametrize("raw", [b"{", b"\xff\xff", b"not protobuf", b"\x0a\x05abc"])
def test_bytes_that_are_no_export_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRequestError, match="not an ExportTraceServiceRequest"):
        decode_protobuf(raw)


def test_an_empty_export_has_no_spans() -> None:
    empty = Export([], [])
    assert decode_protobuf(b"") == decode_json(b"{}") == decode_json(b'{"resourceSpans":[]}') == empty


# --- the dialect of JSON ---------------------------------------------------------------------------------


def changed(**members: Any) -> Export:
    """A sound span in JSON with some members replaced; None removes one."""
    made = document(Sent(trace_id=b"\xab" * 16, span_id=b"\xcd" * 8))
    span = made["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    for name, value in members.items():
        span[name] = value
        if value is None:
            del span[name]
    return decode_json(json.dumps(made).encode())


def attribute(value: Any) -> Any:
    [span] = changed(attributes=[{"key": "k", "value": value}]).spans
    return span.attributes["k"]


def test_h06_ids_are_hex_in_either_case() -> None:
    [span] = changed(traceId="AB" * 16, spanId="cD" * 8).spans
    assert (span.trace_id, span.span_id) == ("ab" * 16, "cd" * 8)


@pytest.mark.parametrize("member", ["traceId", "spanId", "parentSpanId"])
def test_h06_base64_ids_are_refused_and_told_so(member: str) -> None:
    [rejected] = changed(**{member: "q6urq6urq6urq6urq6urqw=="}).rejected
    assert "hex" in rejected.reason
    assert "base64" in rejected.reason


@pytest.mark.parametrize("written", ["123456789012345678", 123456789012345678])
def test_h06_64_bits_are_strings_or_numbers(written: Any) -> None:
    [span] = changed(startTimeUnixNano=written, endTimeUnixNano=written).spans
    assert (span.start_ns, span.end_ns) == (123456789012345678, 123456789012345678)
    assert attribute({"intValue": written}) == 123456789012345678


@pytest.mark.parametrize("value", ["-1", -1, "18446744073709551616", "1.5", 1.5, "x", True, [], "9" * 5_000])
def test_c09_what_is_no_time_rejects_the_span(value: Any) -> None:
    [rejected] = changed(startTimeUnixNano=value).rejected
    assert "startTimeUnixNano: must be a whole number" in rejected.reason


@pytest.mark.parametrize("value", ["9223372036854775808", 2**63, "-9223372036854775809", "1e3", None, True])
def test_c09_an_integer_keeps_its_digits_or_is_refused(value: Any) -> None:
    export = changed(attributes=[{"key": "k", "value": {"intValue": value}}])
    assert [item.reason for item in export.rejected] == (
        []
        if value is None
        else [
            "attribute k: intValue: must be a whole number from -9223372036854775808 to 9223372036854775807"
        ]
    )


def test_h06_enums_are_numbers_or_names() -> None:
    [span] = changed(kind="SPAN_KIND_SERVER", status={"code": "STATUS_CODE_ERROR"}).spans
    assert (span.kind, span.status_code) == (2, 2)
    assert "kind" in changed(kind="SERVER").rejected[0].reason


def test_h06_unknown_members_are_passed_over() -> None:
    [span] = changed(futureField={"a": [1]}, status={"code": 1, "deprecatedCode": 0}).spans
    assert span == changed(status={"code": 1}).spans[0]


def test_h06_names_of_protobuf_lose_nothing_in_silence() -> None:
    with pytest.raises(BadRequestError, match="write resourceSpans"):
        decode_json(b'{"resource_spans":[]}')
    with pytest.raises(BadRequestError, match="export of logs"):
        decode_json(b'{"resourceLogs":[]}')
    [rejected] = changed(traceId=None, trace_id="ab" * 16).rejected
    assert "traceId" in rejected.reason


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"doubleValue": "NaN"}, {"doubleValue": "NaN"}),
        ({"doubleValue": "1.5"}, 1.5),
        ({"doubleValue": 3}, 3),
        ({"bytesValue": "_-8"}, {"bytesValue": "/+8="}),
        ({"stringValue": ""}, ""),
        ({"boolValue": False}, False),
        ({"stringValue": None}, None),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": None}}, {}),
        ({}, None),
        (None, None),
    ],
)
def test_h06_other_spellings_of_a_value(value: Any, kept: Any) -> None:
    assert attribute(value) == kept


@pytest.mark.parametrize(
    "value",
    [
        {"stringValue": 1},
        {"boolValue": "true"},
        {"doubleValue": "one"},
        {"doubleValue": "1e400"},
        {"doubleValue": True},
        {"bytesValue": "*"},
        {"arrayValue": [1]},
        {"stringValue": "a", "intValue": 1},
        "bare",
    ],
)
def test_a_value_of_the_wrong_form_rejects_the_span(value: Any) -> None:
    assert changed(attributes=[{"key": "k", "value": value}]).rejected


def test_c05_a_duplicate_key_refuses_the_document() -> None:
    raw = as_json(Sent()).replace(b'"kind": 1', b'"kind": 1, "\\u006bind": 2')
    with pytest.raises(BadRequestError, match="duplicate key"):
        decode_json(raw)


def test_c07_a_lone_surrogate_rejects_its_span_alone() -> None:
    raw = as_json(Sent(name="good"), Sent(name="bad")).replace(b'"bad"', b'"\\ud800"')
    export = decode_json(raw)
    assert [span.name for span in export.spans] == ["good"]
    assert export.rejected[0].reason == "name: holds a lone surrogate"


@pytest.mark.parametrize(
    "raw", [b"[]", b"1", b'{"resourceSpans":{}}', b'{"resourceSpans":[1]}', b"\xef\xbb\xbf{}"]
)
def test_what_is_no_export_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequestError):
        decode_json(raw)
