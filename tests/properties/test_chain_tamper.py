"""Any changed bit, and any row taken out, put in or moved, is found; the independent rules hold for all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain import reading
from app.chain.audit import verify_chain
from app.chain.canonical import canonical
from app.chain.export import verify_export
from app.chain.link import seal_all
from app.chain.record import (
    Draft,
    SignedRecord,
    VerifiedRecord,
    export_line,
    format_timestamp,
    parse_timestamp,
    split_line,
)
from app.chain.verdict import Verdict
from app.chain.verify import Verifier
from tests.vectors.make_vectors import ONE, START_US, chain, export, genesis, untrusted

CHAIN = chain(6)
FILE = export(CHAIN)
CHECKPOINT = {5: CHAIN[5].hash}

PAYLOADS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    max_size=5,
)
DRAFTS = st.lists(
    st.builds(Draft, kind=st.just("event"), payload=PAYLOADS, actor=st.just("agent-7")), max_size=5
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(FILE) * 8 - 1))
def test_any_flipped_bit_of_an_export_is_found(bit: int) -> None:
    changed = bytearray(FILE)
    changed[bit // 8] ^= 1 << bit % 8
    report = verify_export(bytes(changed).splitlines(keepends=True), ONE.public, CHECKPOINT)
    if bit // 8 == len(FILE) - 1:  # the last line feed: the line is no longer ended as it was
        assert report.verdict is not Verdict.VERIFIED
    else:
        assert report.verdict is Verdict.TAMPERED


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.data())
def test_any_flipped_bit_of_a_line_is_found_in_its_place(position: int, data: st.DataObject) -> None:
    line = export_line(CHAIN[position]).encode()
    bit = data.draw(st.integers(0, len(line) * 8 - 1))
    changed = bytearray(line)
    changed[bit // 8] ^= 1 << bit % 8
    lines = [export_line(record).encode() + b"\n" for record in CHAIN]
    lines[position] = bytes(changed) + b"\n"
    report = verify_export(lines, ONE.public, CHECKPOINT)
    assert report.verdict is Verdict.TAMPERED
    assert [fault.line for fault in report.first_faults][:1] == [position + 1]


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(6)))
def test_any_moved_row_is_found(order: list[int]) -> None:
    signed = untrusted(CHAIN)
    report = verify_chain([signed[n] for n in order], ONE.public)
    assert (report.verdict is Verdict.VERIFIED) == (order == sorted(order))


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 5)))
def test_any_missing_row_is_found(kept: set[int]) -> None:
    signed = untrusted(CHAIN)
    report = verify_chain([signed[n] for n in sorted(kept)], ONE.public, CHECKPOINT)
    assert (report.verdict is Verdict.VERIFIED) == (len(kept) == 6)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 6), st.integers(0, 5))
def test_any_row_put_in_once_more_is_found(position: int, row: int) -> None:
    signed = untrusted(CHAIN)
    signed.insert(position, signed[row])
    assert verify_chain(signed, ONE.public).verdict is Verdict.TAMPERED


@settings(max_examples=100, deadline=None)
@given(DRAFTS, st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=3))
def test_whatever_is_sealed_verifies(drafts: list[Draft], times: list[int]) -> None:
    records: list[VerifiedRecord] = []
    for at_us in times:
        batch = drafts if records else [genesis(), *drafts]
        records += seal_all(batch, records[-1].head if records else None, START_US + at_us, ONE)
    verifier = Verifier(ONE.public)
    for record in records:
        read = split_line(export_line(record))
        again = verifier.step(read)
        assert (again.text, again.head) == (record.text, record.head)
        assert canonical(again.payload) == canonical(record.payload)
    assert verifier.head == records[-1].head


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 6))
def test_verifying_a_prefix_and_then_the_rest_is_verifying_all(at: int) -> None:
    signed = untrusted(CHAIN)
    first = Verifier(ONE.public)
    for record in signed[:at]:
        first.step(record)
    second = Verifier.resume(first.head, first.key or ONE.public)
    assert [second.step(record) for record in signed[at:]] == CHAIN[at:]


@settings(max_examples=200, deadline=None)
@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_c13_every_microsecond_has_its_own_text_and_reads_back(us: int) -> None:
    text = format_timestamp(us)
    assert parse_timestamp(text) == us
    assert len(text) == 27


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.text(max_size=70), st.text(max_size=130))
def test_any_text_taken_for_a_record_is_refused_as_a_record(text: str, digest: str, signature: str) -> None:
    report = verify_chain([SignedRecord(text, digest, signature)], ONE.public)
    assert report.verdict is Verdict.TAMPERED


@settings(max_examples=100, deadline=None)
@given(DRAFTS, st.data())
def test_a_text_is_read_the_same_quickly_and_thoroughly(drafts: list[Draft], data: st.DataObject) -> None:
    """What is read quickly is what a thorough look reads, whatever was done to the text."""
    records = seal_all([genesis(ONE), *drafts], None, START_US, ONE)
    text = data.draw(st.sampled_from(records)).text
    quick = reading._read_quickly(text)
    assert quick is None or quick == reading._read_thoroughly(text)
    position = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(
        st.sampled_from(["", "0", "-", '"', ".0", "e1", "\\u0000", " ", ",", "}", "true", "\ud800"])
    )
    changed = text[:position] + put + text[position + data.draw(st.integers(0, 2)) :]
    quick = reading._read_quickly(changed)
    if quick is not None:
        assert quick == reading._read_thoroughly(changed)
