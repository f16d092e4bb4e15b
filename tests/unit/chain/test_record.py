"""Records: time stamps, hashes, export lines."""

from __future__ import annotations

import hashlib
import json

import pytest

from app.chain.link import seal
from app.chain.record import (
    DOMAIN,
    TRAILER_LENGTH,
    ZERO_HASH,
    Draft,
    SignedRecord,
    export_line,
    format_timestamp,
    hash_text,
    is_hex,
    parse_timestamp,
    split_line,
)
from app.errors import FormatError
from tests.vectors.make_vectors import ONE, START_US, chain, event


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_704_067_200_123_456, "2024-01-01T00:00:00.123456Z"),
        (START_US, "2026-09-30T08:27:35.423031Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_c13_a_time_has_one_spelling_with_six_decimals(us: int, text: str) -> None:
    assert format_timestamp(us) == text
    assert parse_timestamp(text) == us


@pytest.mark.parametrize("us", [253_402_300_800_000_000, -62_135_596_800_000_001, 2**63, 10**40])
def test_years_beyond_four_digits_are_refused(us: int) -> None:
    with pytest.raises(FormatError):
        format_timestamp(us)


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123Z",
        "2016-12-31T23:59:60.000000Z", "2024-01-01T24:00:00.000000Z", "2024-02-30T00:00:00.000000Z",
        "2024-01-01T00:00:00.123456", "2024-01-01T00:00:00.123456z", "2024-01-01 00:00:00.123456Z",
        "2024-01-01t00:00:00.123456Z", "2024-01-01T00:00:00,123456Z", "2024-01-01T00:00:00.12345+Z",
        "2024-01-01T05:30:00.12+05:30", "20240101T000000.123456789Z", "2024-W01-1T00:00:00.123456Z",
        "2024-01-01T00:00:00.12345\uff16Z", " 024-01-01T00:00:00.123456Z", "",
    ],
)  # fmt: skip
def test_c13_no_other_spelling_of_a_time_is_read(text: str) -> None:
    with pytest.raises(FormatError):
        parse_timestamp(text)


def test_the_hash_is_of_the_domain_line_and_the_text() -> None:
    assert hash_text('{"é":1}') == hashlib.sha256('lineage-audit-v1\n{"é":1}'.encode()).hexdigest()
    assert DOMAIN == b"lineage-audit-v1\n"


def test_an_export_line_is_json_and_comes_apart_again() -> None:
    for record in chain(4):
        line = export_line(record)
        assert split_line(line) == SignedRecord(record.text, record.hash, record.signature)
        parsed = json.loads(line)
        assert (parsed.pop("hash"), parsed.pop("signature")) == (record.hash, record.signature)
        assert parsed == json.loads(record.text)
        assert (line[:-TRAILER_LENGTH] + "}") == record.text
        assert export_line(split_line(line)) == line


@pytest.mark.parametrize("length", [0, 1, TRAILER_LENGTH - 1, TRAILER_LENGTH, TRAILER_LENGTH + 1])
def test_a_short_line_is_no_record(length: int) -> None:
    line = export_line(chain(1)[0])
    with pytest.raises(FormatError):
        split_line(line[-length:] if length else "")


@pytest.mark.parametrize("cut", [1, 2, 100, 218, 230])
def test_a_cut_line_is_no_record(cut: int) -> None:
    line = export_line(chain(1)[0])
    with pytest.raises(FormatError):
        split_line(line[:-cut])


@pytest.mark.parametrize(
    "text", ["A" * 64, "a" * 63, "a" * 65, "g" * 64, "a b" + "a" * 61, "é" * 64, "a" * 62 + "\n "]
)
def test_a_hash_is_lowercase_hex_of_its_length(text: str) -> None:
    assert not is_hex(text, 64)
    assert is_hex(ZERO_HASH, 64)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Draft("event", {"tool": "bc"}, "a"), Draft("event", {"tool": "c"}, "ab")),
        (Draft("event", {}, "a|b"), Draft("event|b", {}, "a")),
        (Draft("event", {"a": "x\x1f"}, "a"), Draft("event", {"a": "x"}, "\x1fa")),
        (Draft("event", {"a": 'x","b":"y'}, "a"), Draft("event", {"a": "x", "b": "y"}, "a")),
        (Draft("event\n", {}, "a"), Draft("event", {}, "\na")),
        (Draft("event", {"n": 1}, "a"), Draft("event", {"n": "1"}, "a")),
        (Draft("event", {"n": True}, "a"), Draft("event", {"n": 1}, "a")),
    ],
)
def test_c28_shifted_field_boundaries_hash_differently(one: Draft, other: Draft) -> None:
    head = chain(3)[-1].head
    assert seal(one, head, START_US, ONE).hash != seal(other, head, START_US, ONE).hash


def test_c28_a_hash_of_something_else_is_never_a_records_hash() -> None:
    record = chain(2)[1]
    for prefix in (b"", b"lineage-audit-v2\n", b"lineage-checkpoint-v1\n", b"lineage-audit-v1"):
        assert hashlib.sha256(prefix + record.text.encode()).hexdigest() != record.hash


def test_c28_the_kind_is_inside_the_signed_text() -> None:
    head = chain(3)[-1].head
    as_event = seal(event(3), head, START_US, ONE)
    as_other = seal(Draft("admin", event(3).payload, event(3).actor), head, START_US, ONE)
    assert as_event.hash != as_other.hash
    assert as_event.signature != as_other.signature
