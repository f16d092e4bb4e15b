"""Stretches of a chain are proven by themselves, and count only behind the very record that they follow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.chain.audit import ChainAudit, verify_chain
from app.chain.link import seal_all
from app.chain.position import Stretch
from app.chain.record import Draft, Head, SignedRecord, VerifiedRecord
from tests.vectors.make_vectors import ONE, TWO, chain, untrusted

CHAIN = chain(9)
SIGNED = untrusted(CHAIN)


def proven(records: Sequence[VerifiedRecord], start: int, end: int, hashes: dict[int, str]) -> Stretch:
    """What a worker proves of the records from ``start`` to before ``end``."""
    if start == 0:
        audit = ChainAudit(ONE.public, hashes)
    else:
        before = records[start - 1]
        audit = ChainAudit.suppose(Head(before.seq, before.hash, 0), ONE.public, hashes)
    for record in untrusted(list(records[start:end])):
        audit.add(record)
    stretch = audit.stretch(records[start].timestamp_us)
    assert stretch is not None
    return stretch


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(1, 8)), st.sets(st.integers(0, 8)))
def test_stretches_one_behind_the_other_come_to_the_report_of_all(cuts: set[int], kept: set[int]) -> None:
    checkpoints = {seq: CHAIN[seq].hash for seq in kept}
    whole = ChainAudit(ONE.public, checkpoints)
    for record in SIGNED:
        whole.add(record)
    shared = ChainAudit(ONE.public, checkpoints)
    places = [0, *sorted(cuts), 9]
    for start, end in pairwise(places):
        assert shared.adopt(proven(CHAIN, start, end, checkpoints))
    assert shared.report() == whole.report()
    assert shared.position() == whole.position()


def test_a_stretch_counts_only_behind_the_record_that_it_names() -> None:
    later = proven(CHAIN, 4, 9, {})
    other = seal_all([Draft("event", {}, "x")] * 2, CHAIN[3].head, CHAIN[3].timestamp_us, ONE)
    for before in (CHAIN[:3], CHAIN[:5], [*CHAIN[:4], *other], []):
        audit = ChainAudit(ONE.public)
        for record in untrusted(list(before)):
            audit.add(record)
        report = audit.report()
        assert not audit.adopt(later)
        assert audit.report() == report
    audit = ChainAudit(ONE.public)
    for record in SIGNED[:4]:
        audit.add(record)
    assert audit.adopt(later)


@pytest.mark.parametrize(
    "change",
    [
        {"signed_by": TWO.public.hex},
        {"after": Head(3, "0" * 64, CHAIN[4].timestamp_us)},
        {"after": Head(3, CHAIN[3].hash, CHAIN[3].timestamp_us - 1)},
        {"after": None},
    ],
)
def test_another_key_another_record_or_a_time_before_it_does_not_follow(change: dict[str, object]) -> None:
    audit = ChainAudit(ONE.public)
    for record in SIGNED[:4]:
        audit.add(record)
    assert not audit.adopt(msgspec.structs.replace(proven(CHAIN, 4, 9, {}), **change))


def test_what_begins_with_another_key_than_the_trusted_one_is_not_taken() -> None:
    first = proven(CHAIN, 0, 4, {})
    assert not ChainAudit(TWO.public).adopt(first)
    assert not ChainAudit(TWO.public, pins=[TWO.public]).adopt(first)
    assert ChainAudit(ONE.public, pins=[ONE.public]).adopt(first)
    assert ChainAudit().adopt(first)


def test_behind_a_fault_nothing_is_taken_and_no_position_is_known() -> None:
    audit = ChainAudit(ONE.public)
    for record in (*SIGNED[:3], SignedRecord("{}", "", "")):
        audit.add(record)
    assert audit.position() is None
    assert not audit.adopt(proven(CHAIN, 3, 9, {}))
    doubtful = ChainAudit.suppose(Head(3, CHAIN[3].hash, 0), TWO.public)
    doubtful.add(SIGNED[4])
    assert doubtful.stretch(0) is None


def test_an_audit_goes_on_behind_a_position_as_if_it_had_read_what_is_before() -> None:
    audit = ChainAudit(ONE.public)
    for record in SIGNED[:4]:
        audit.add(record)
    position = audit.position()
    assert position is not None
    later = ChainAudit.resume(position, ONE.public)
    for record in SIGNED[4:]:
        later.add(record)
    report = verify_chain(SIGNED, ONE.public)
    assert later.report() == msgspec.structs.replace(report, checked=5)
    later.add(SIGNED[8])
    assert [fault.line for fault in later.report().first_faults] == [10]
