"""Both encodings give the same spans; a bad span costs no other (cases C06, C07, C09, C12, H04, H06)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no types
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.chain.canonical import canonical
from app.errors import BadRequestError
from app.trace.otlp import json_form
from app.trace.otlp import protobuf as protobuf_form
from app.trace.otlp.json_form import MAX_JSON_DEPTH, decode_json
from app.trace.otlp.node import otel_of
from app.trace.otlp.protobuf import decode_protobuf
from app.trace.otlp.span import MAX_MESSAGES, MAX_NESTING, MAX_SPANS, Export
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


def deep_json(levels: int, form: str) -> bytes:
    """Two spans, the first with an attribute that nests so deep."""
    opening, closing = b'{"arrayValue":{"values":[', b"]}}"
    if form == "kvlistValue":
        opening, closing = b'{"kvlistValue":{"values":[{"key":"k","value":', b"}]}}"
    bottom = b"{}" if form == "kvlistValue" else b""
    return as_json(Sent(attributes={"q": "deep"}), Sent()).replace(
        b'{"stringValue": "deep"}', opening * levels + bottom + closing * levels
    )


@pytest.mark.parametrize("form", ["arrayValue", "kvlistValue"])
def test_c12_json_deeper_than_an_attribute_may_be_rejects_its_span_alone(form: str) -> None:
    export = decode_json(deep_json(MAX_JSON_DEPTH // 4 - 5, form))
    assert len(export.spans) == 1
    assert export.rejected[0].reason == "attribute q: nested deeper than 24 levels"


@pytest.mark.parametrize("levels", [MAX_JSON_DEPTH, 1_200, 100_000])
@pytest.mark.parametrize("form", ["arrayValue", "kvlistValue"])
def test_c12_json_deeper_than_any_document_is_refused_whole(levels: int, form: str) -> None:
    with pytest.raises(BadRequestError, match=f"nested deeper than {MAX_JSON_DEPTH} levels"):
        decode_json(deep_json(levels, form))


@pytest.mark.parametrize("levels", [40, 100, 1_200, 20_000])
def test_c12_protobuf_deeper_than_any_span_rejects_it_alone(levels: int) -> None:
    value = b""
    for _ in range(levels):
        value = field(5, field(1, value))  # AnyValue.array_value, ArrayValue.values
    attribute = field(9, field(1, b"q") + field(2, value))  # Span.attributes, KeyValue.key and .value
    export = by_wire(SPAN + attribute, SPAN)
    assert len(export.spans) == 1
    [rejected] = export.rejected
    assert "24 levels" in rejected.reason
    assert (rejected.trace_id, rejected.span_id, rejected.name) == ("74" * 16, "73" * 8, "n")


def field(number: int, payload: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    length, size = bytearray(), len(payload)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + payload


SPAN = field(1, b"t" * 16) + field(2, b"s" * 8) + field(5, b"n")
"""The least that a span in protobuf is made of."""


def by_wire(*spans: bytes) -> Export:
    return decode_protobuf(field(1, field(2, b"".join(field(2, span) for span in spans))))


def test_h04_a_span_that_is_no_protobuf_is_named_and_the_others_are_kept() -> None:
    cut = SPAN + b"\x4a\x7f"
    not_utf8 = field(5, b"\xff") + SPAN[:-3]
    export = by_wire(SPAN, cut, not_utf8, b"\x0a\xff", SPAN)
    assert len(export.spans) == 2
    at = "resourceSpans[0].scopeSpans[0].spans[3]: "
    assert [(item.name, item.reason[: len(at)] == at) for item in export.rejected] == [
        ("n", False),
        ("\ufffd".encode("ascii", "replace").decode(), False),
        ("", True),
    ]


def test_h04_a_resource_that_is_no_protobuf_costs_its_spans() -> None:
    sound = field(1, field(2, field(2, SPAN)))
    bad = field(1, field(1, field(1, field(1, b"\xff"))) + field(2, field(2, SPAN)))
    export = decode_protobuf(sound + bad + sound)
    assert len(export.spans) == 2
    [rejected] = export.rejected
    assert rejected.reason.startswith("resource: it cannot be read as protobuf")


def test_unknown_fields_of_protobuf_are_passed_over_at_every_level() -> None:
    unknown = b"\x78\x01" + b"\xfa\x01\x03abc" + b"\xf9\x01" + b"\0" * 8 + b"\xfd\x01" + b"\0" * 4
    long_key = b"\x92\x80\x00" + bytes([len(SPAN + unknown)]) + SPAN + unknown  # field 2, written at length
    scope = field(1, field(1, b"x") + unknown) + unknown + long_key
    resource = field(1, field(1, field(1, b"a")) + unknown) + unknown + field(2, scope)
    [span] = decode_protobuf(unknown + field(1, resource) + unknown).spans
    assert (span.name, span.scope, span.resource) == ("n", {"name": "x"}, {"attributes": {"a": None}})


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_any_bytes_are_refused_or_read_as_the_library_reads_them(noise: bytes, at: int) -> None:
    sound = protobuf(Sent(attributes={"a": 1}, trace_id=b"t" * 16, span_id=b"s" * 8))
    for raw in (noise, sound[:at] + noise + sound[at:], sound[:at] + noise + sound[at + len(noise) :]):
        try:
            export = decode_protobuf(raw)
        except BadRequestError:
            continue
        try:
            whole = ExportTraceServiceRequest.FromString(raw)
        except DecodeError:
            continue  # by a fault that costs one span alone, or in a field that is passed over
        scopes = [scope for resource in whole.resource_spans for scope in resource.scope_spans]
        assert len(export.spans) + len(export.rejected) == sum(len(scope.spans) for scope in scopes)


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
def test_h06_base64_ids_are_refused_and_told_so_as_they_came(member: str) -> None:
    given = {"traceId": "AB" * 16, "spanId": "cD" * 8, member: "q6urq6urq6urq6urq6urQw=="}
    [rejected] = changed(**given).rejected
    assert (rejected.trace_id, rejected.span_id) == (given["traceId"], given["spanId"])
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


# --- what one part of a document costs ---------------------------------------------------------------------


TWICE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the span": (lambda span: span, '"\\u006bind": 2'),
    "an attribute": (lambda span: span["attributes"][0], '"\\u006bey": "c"'),
    "a value": (lambda span: span["attributes"][0]["value"], '"intValue": "1"'),
    "an event": (lambda span: span["events"][0], '"name": "f"'),
    "the status": (lambda span: span["status"], '"code": 2'),
}


@pytest.mark.parametrize("where", TWICE)
def test_c05_a_key_twice_within_a_span_rejects_that_span_alone(where: str) -> None:
    pick, again = TWICE[where]
    made = document(*(Sent(name=name, attributes={"a": 1}, events=(("e", {}),)) for name in "xyz"))
    pick(made["resourceSpans"][0]["scopeSpans"][0]["spans"][1])["AGAIN"] = 0
    export = decode_json(json.dumps(made).replace('"AGAIN": 0', again).encode())
    assert [span.name for span in export.spans] == ["x", "z"]
    [rejected] = export.rejected
    assert "duplicate key" in rejected.reason
    assert (rejected.name, len(rejected.trace_id)) == ("y", 32)


def test_c05_a_key_twice_in_the_outermost_object_refuses_the_document() -> None:
    raw = as_json(Sent())
    for twice in (b'"resourceSpans": [], ', b'"x": 1, "\\u0078": 2, '):
        with pytest.raises(BadRequestError, match="duplicate key"):
            decode_json(b"{" + twice + raw[1:])


@pytest.mark.parametrize("member", ["resourceSpans", "scopeSpans"])
def test_c05_a_key_twice_in_a_resource_or_scope_costs_its_spans(member: str) -> None:
    made = json.dumps(document(Sent(name="a"), Sent(name="b"))).encode()
    key = f'"{member}": ['.encode()
    raw = made.replace(key + b"{", key + b'{"schemaUrl": "", "schemaUrl": "", ', 1)
    export = decode_json(raw)
    assert not export.spans
    assert [item.name for item in export.rejected] == ["a", "b"]
    assert all("duplicate key schemaUrl" in item.reason for item in export.rejected)


def test_c05_spans_of_an_array_that_stands_twice_are_all_told_of() -> None:
    raw = as_json(Sent(name="b")).replace(b'"spans": [', b'"spans": [{"name": "a"}], "spans": [')
    export = decode_json(raw)
    assert not export.spans
    assert [item.name for item in export.rejected] == ["a", "b"]


ODD: list[Any] = [None, 1, "x", [], True]
"""Elements that are no objects."""


@pytest.mark.parametrize("odd", ODD)
def test_h04_a_span_that_is_no_object_is_named_by_its_place(odd: Any) -> None:
    made = document(Sent(name="a"), Sent(name="b"))
    made["resourceSpans"][0]["scopeSpans"][0]["spans"].insert(1, odd)
    export = decode_json(json.dumps(made).encode())
    assert [span.name for span in export.spans] == ["a", "b"]
    assert [item.reason for item in export.rejected] == [
        "resourceSpans[0].scopeSpans[0].spans[1]: must be an object"
    ]


@pytest.mark.parametrize("odd", ODD)
def test_h04_a_resource_or_scope_that_is_no_object_costs_no_other(odd: Any) -> None:
    made = document(Sent(name="a"))
    made["resourceSpans"].insert(0, odd)
    made["resourceSpans"][1]["scopeSpans"].append(odd)
    export = decode_json(json.dumps(made).encode())
    assert [span.name for span in export.spans] == ["a"]
    assert [item.reason for item in export.rejected] == [
        "resourceSpans[0]: resource: must be an object",
        "resourceSpans[1].scopeSpans[1]: scope: must be an object",
    ]


@pytest.mark.parametrize("odd", [1, "x", {}, True])
def test_h04_what_is_no_array_is_told_at_its_place(odd: Any) -> None:
    made = document(Sent(name="a"))
    made["resourceSpans"].append({"scopeSpans": odd})
    made["resourceSpans"][0]["scopeSpans"].append({"spans": odd})
    export = decode_json(json.dumps(made).encode())
    assert [span.name for span in export.spans] == ["a"]
    assert sorted(item.reason for item in export.rejected) == [
        "resourceSpans[0].scopeSpans[1]: spans: must be an array",
        "resourceSpans[1]: scopeSpans: must be an array",
    ]


@pytest.mark.parametrize("member", ["attributes", "events", "links"])
@pytest.mark.parametrize("odd", ODD)
def test_h04_an_element_that_is_no_object_rejects_its_span_alone(member: str, odd: Any) -> None:
    made = document(Sent(name="a"), Sent(name="b"), Sent(name="c"))
    made["resourceSpans"][0]["scopeSpans"][0]["spans"][1][member] = [odd]
    export = decode_json(json.dumps(made).encode())
    assert [span.name for span in export.spans] == ["a", "c"]
    assert "must be an object" in export.rejected[0].reason


LONG = "9" * 200
NUMBERS = ["1e999", "-1e999", LONG, f"-{LONG}"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("member", ["kind", "startTimeUnixNano", "flags", "droppedAttributesCount", "name"])
def test_c09_an_overflowing_number_that_is_used_rejects_its_span_alone(number: str, member: str) -> None:
    made = document(Sent(name="a"), Sent(name="b"))
    made["resourceSpans"][0]["scopeSpans"][0]["spans"][0][member] = "HERE"
    export = decode_json(json.dumps(made).encode().replace(b'"HERE"', number.encode()))
    assert [span.name for span in export.spans] == ["b"]
    assert member in export.rejected[0].reason


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("form", ["doubleValue", "intValue"])
def test_c09_an_overflowing_value_rejects_its_span_alone(number: str, form: str) -> None:
    raw = as_json(Sent(attributes={"k": "HERE"}), Sent(name="b"))
    raw = raw.replace(b'{"stringValue": "HERE"}', f'{{"{form}": {number}}}'.encode())
    export = decode_json(raw)
    assert [span.name for span in export.spans] == ["b"]
    assert export.rejected[0].reason.startswith(f"attribute k: {form}")


ANYTHING = [*NUMBERS, '{"a": 1, "a": 2}', '"\\u0000"', '"\\ud800"', "[" * 200 + "]" * 200]


@pytest.mark.parametrize("odd", ANYTHING)
def test_h06_unknown_members_are_passed_over_whatever_they_hold(odd: str) -> None:
    raw = as_json(Sent(name="a", attributes={"k": 1}, events=(("e", {}),)))
    raw = raw.replace(b"{", b'{"unknown": ' + odd.encode() + b", ").replace(b", }", b"}")
    [span] = decode_json(raw).spans
    assert span.attributes == {"k": 1}


def test_c07_a_lone_surrogate_rejects_its_span_alone() -> None:
    raw = as_json(Sent(name="good"), Sent(name="bad")).replace(b'"bad"', b'"\\ud800"')
    export = decode_json(raw)
    assert [span.name for span in export.spans] == ["good"]
    assert export.rejected[0].reason == "name: holds a lone surrogate"


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"1",
        b'{"resourceSpans":{}}',
        b"\xef\xbb\xbf{}",
        b"",
        b"{}{}",
        b'{"x":NaN}',
        b'{"x":"\xff"}',
        b"{'x':1}",
        b"{",
    ],
)
def test_what_is_no_export_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequestError):
        decode_json(raw)


# --- how much (case H01) -----------------------------------------------------------------------------------

MIB = 1024 * 1024


def times(piece: bytes, size: int = 16 * MIB) -> bytes:
    return piece * (size // len(piece))


TOO_MANY = {
    "resources": (times(b"\x0a\x00"), "resourceSpans"),
    "resources, keys written at length": (times(b"\x8a\x80\x00\x00"), "resourceSpans"),
    "unknown fields": (times(b"\x78\x01"), "resourceSpans"),
    "scopes": (field(1, times(b"\x12\x00")), "scopeSpans"),
    "spans": (field(1, field(2, times(b"\x12\x00"))), "spans"),
    "spans of many scopes": (field(1, times(field(2, field(2, b"") * 90_000), MIB)), "spans"),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_h01_more_messages_than_the_limit_are_refused_by_name(what: str) -> None:
    raw, name = TOO_MANY[what]
    with pytest.raises(BadRequestError, match=f"more than {MAX_SPANS} {name} in one export"):
        decode_protobuf(raw)


@pytest.mark.parametrize("number", [9, 11, 13])
def test_h01_values_of_many_spans_are_counted_together(number: int) -> None:
    span = SPAN + field(number, b"") * 10_000
    with pytest.raises(BadRequestError, match=f"more than {MAX_MESSAGES} attributes, events, links"):
        by_wire(*[span] * 101)


CROWDED = {
    "attributes": field(9, b""),
    "events": field(11, b""),
    "links": field(13, b""),
    "members of an attribute": field(9, field(2, field(6, times(field(1, b""), 2 * MIB)))),
    "items of an attribute": field(9, field(2, field(5, times(field(1, b""), 2 * MIB)))),
    "attributes of an event": field(11, times(field(3, b""), 2 * MIB)),
    "attributes of a link": field(13, times(field(4, b""), 2 * MIB)),
}


@pytest.mark.parametrize("what", CROWDED)
def test_h01_a_span_of_millions_of_messages_is_never_parsed_and_rejected_alone(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    message = protobuf_form.SpanMessage  # type: ignore[attr-defined]  # not exported, on purpose

    class Watched:
        @staticmethod
        def FromString(part: bytes) -> Any:  # noqa: N802  the library's name
            parsed.append(len(part))
            return message.FromString(part)

    monkeypatch.setattr(protobuf_form, "SpanMessage", Watched)
    crowded = SPAN + times(CROWDED[what], max(2 * MIB, len(CROWDED[what])))
    export = by_wire(SPAN, crowded, SPAN)
    assert len(export.spans) == 2
    assert "more than 100000 fields" in export.rejected[0].reason
    assert parsed == [len(SPAN)] * 2


def test_a_large_span_of_few_large_values_is_kept() -> None:
    text = "\n\x12" * (MIB // 2)
    [span] = by_protobuf(Sent(attributes={f"k{n}": text for n in range(8)})).spans
    assert len(span.attributes) == 8


def test_as_many_real_spans_as_16_mib_hold_are_taken() -> None:
    attributes = field(9, field(1, b"gen_ai.tool.name") + field(2, field(1, b"x" * 16)))
    span = field(2, SPAN + attributes * 1)
    export = decode_protobuf(field(1, field(2, span * 65_536)))
    assert len(export.spans) == 65_536


def test_h01_values_of_json_are_counted_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_form, "MAX_MESSAGES", 1_000)
    assert decode_json(b'{"x":[' + b",".join([b"{}"] * 990) + b"]}") == Export([], [])
    with pytest.raises(BadRequestError, match="more than 1000 values"):
        decode_json(b'{"x":[' + b",".join([b"{}"] * 1_000) + b"]}")


@pytest.mark.parametrize("member", ["scopeSpans", "spans"])
def test_h01_spans_and_scopes_of_json_are_counted_over_all(
    member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_form, "MAX_SPANS", 10)
    scope: dict[str, Any] = {"spans": [{}] * 4} if member == "spans" else {}
    made = {"resourceSpans": [{"scopeSpans": [scope] * (1 if member == "spans" else 4)}] * 3}
    with pytest.raises(BadRequestError, match=f"more than 10 {member}"):
        decode_json(json.dumps(made).encode())
