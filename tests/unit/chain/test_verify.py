"""Verification: each fault by its class and place, and no later record blamed for it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from app.chain.audit import ChainAudit, verify_chain
from app.chain.link import seal
from app.chain.record import Draft, SignedRecord, VerifiedRecord, hash_text
from app.chain.report import MAX_FAULTS, OtherKey, PutInForce, Report
from app.chain.verdict import Verdict
from app.chain.verify import Verifier, verify_detached
from app.errors import (
    ChainError,
    ContentError,
    ForkError,
    FormatError,
    LinkError,
    OrderError,
    SignatureError,
)
from tests.vectors.make_vectors import (
    ONE,
    SMALL_ORDER_KEY,
    START_US,
    STRANGER,
    THREE,
    TWO,
    chain,
    event,
    extend,
    genesis,
    resign,
    rotation,
    untrusted,
)


def _faults(report: Report) -> list[tuple[int | None, int, str, int]]:
    return [(fault.seq, fault.line, fault.fault, fault.records) for fault in report.first_faults]


def _stepped(records: list[VerifiedRecord]) -> Verifier:
    verifier = Verifier(ONE.public)
    for signed in untrusted(records):
        verifier.step(signed)
    return verifier


def test_a_clean_chain_verifies_record_by_record() -> None:
    records = chain()
    verifier = Verifier(ONE.public)
    assert [verifier.step(signed) for signed in untrusted(records)] == records
    assert verifier.head == records[-1].head
    assert verifier.key == verifier.genesis_key == ONE.public
    assert verifier.genesis == genesis().payload


def test_a_clean_chain_reports_what_was_checked() -> None:
    report = verify_chain(untrusted(chain()), ONE.public)
    assert (report.verdict, report.checked, report.faulty, report.fault_count) == (Verdict.VERIFIED, 10, 0, 0)
    assert report.head == chain()[-1].head
    assert report.anchored_to is None


def _said(record: VerifiedRecord, old: str, new: str) -> SignedRecord:
    """The record with other words, hashed and signed with the right key."""
    return resign(record.text.replace(old, new), ONE)


def _changed(record: VerifiedRecord, old: str, new: str) -> SignedRecord:
    """The record with other words under its old hash and signature."""
    return SignedRecord(record.text.replace(old, new), record.hash, record.signature)


def _reordered(record: VerifiedRecord) -> SignedRecord:
    """The record with its keys the other way round, hashed and signed."""
    members = reversed(json.loads(record.text).items())
    return resign(json.dumps(dict(members), separators=(",", ":")), ONE)


def _with(record: VerifiedRecord, **fields: object) -> str:
    said = json.loads(record.text)
    return json.dumps(said | fields, separators=(",", ":"), ensure_ascii=False)


BROKEN: dict[str, tuple[type[ChainError], Callable[[VerifiedRecord], SignedRecord]]] = {
    "not json": (FormatError, lambda _: resign("{", ONE)),
    "not an object": (FormatError, lambda _: resign("[]", ONE)),
    "a field more": (FormatError, lambda r: resign(r.text[:-1] + ',"x":1}', ONE)),
    "a field less": (FormatError, lambda r: _said(r, '"kind":"event",', "")),
    "a field twice": (FormatError, lambda r: resign('{"actor":"x",' + r.text[1:], ONE)),
    "a space": (FormatError, lambda r: _said(r, '"seq":', '"seq": ')),
    "keys not sorted": (FormatError, _reordered),
    "an odd escape": (FormatError, lambda r: _said(r, "step", "st\\u0065p")),
    "a float seq": (FormatError, lambda r: _said(r, '"seq":5', '"seq":5.0')),
    "a float spelt oddly": (FormatError, lambda r: _said(r, '"n":5', '"n":5.0')),
    "an exponent spelt oddly": (FormatError, lambda r: _said(r, '"n":5', '"n":1e21')),
    "minus zero": (FormatError, lambda r: _said(r, '"n":5', '"n":-0')),
    "a text seq": (FormatError, lambda r: _said(r, '"seq":5', '"seq":"5"')),
    "a boolean seq": (FormatError, lambda r: _said(r, '"seq":5', '"seq":true')),
    "a negative seq": (FormatError, lambda r: _said(r, '"seq":5', '"seq":-5')),
    "an immense seq": (FormatError, lambda r: _said(r, '"seq":5', f'"seq":{2**63}')),
    "no kind": (FormatError, lambda r: _said(r, '"event"', '""')),
    "a long kind": (FormatError, lambda r: _said(r, '"event"', f'"{"k" * 65}"')),
    "a number for actor": (FormatError, lambda r: _said(r, '"agent-7"', "7")),
    "an array for payload": (FormatError, lambda r: resign(_with(r, payload=[1]), ONE)),
    "a second genesis": (FormatError, lambda r: _said(r, '"event"', '"genesis"')),
    "a time without zone": (FormatError, lambda r: _said(r, 'Z"}', '"}')),
    "a time that is none": (FormatError, lambda r: resign(_with(r, timestamp=5), ONE)),
    "a NUL": (FormatError, lambda r: _said(r, "step", "st\\u0000p")),
    "a lone surrogate": (FormatError, lambda r: _changed(r, "step", "\ud800")),
    "nested too deep": (FormatError, lambda r: _said(r, '"n":5', f'"n":{"[" * 200}{"]" * 200}')),
    "a rotation without key": (FormatError, lambda r: _said(r, '"event"', '"key_rotated"')),
    "a seq left out": (OrderError, lambda r: _said(r, '"seq":5', '"seq":6')),
    "a seq once more": (ForkError, lambda r: _said(r, '"seq":5', '"seq":4')),
    "another predecessor": (LinkError, lambda r: _said(r, r.prev_hash, "0" * 64)),
    "a changed text": (ContentError, lambda r: _changed(r, '"n":5', '"n":6')),
    "a changed hash": (ContentError, lambda r: SignedRecord(r.text, "0" * 64, r.signature)),
    "no hash": (ContentError, lambda r: SignedRecord(r.text, "", r.signature)),
    "another's signature": (SignatureError, lambda r: resign(r.text, STRANGER)),
    "no signature": (SignatureError, lambda r: SignedRecord(r.text, r.hash, "")),
    "a signature of another hash": (
        SignatureError,
        lambda r: SignedRecord(r.text, r.hash, ONE.sign(bytes.fromhex(r.prev_hash)).hex()),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_fault_has_its_error_and_leaves_the_state_unchanged(case: str) -> None:
    error, break_record = BROKEN[case]
    records = chain()
    verifier = _stepped(records[:5])
    before = (verifier.head, verifier.key, verifier.genesis_key)
    broken = break_record(records[5])
    assert broken not in untrusted(records)
    with pytest.raises(ChainError) as caught:
        verifier.step(broken)
    assert type(caught.value) is error
    assert caught.value.seq == (4 if error is ForkError else 5) or error is FormatError
    assert (verifier.head, verifier.key, verifier.genesis_key) == before
    for signed in untrusted(records)[5:]:
        verifier.step(signed)


@pytest.mark.parametrize("case", BROKEN)
def test_c31_a_fault_is_named_once_and_later_records_are_not_blamed(case: str) -> None:
    error, break_record = BROKEN[case]
    records = chain()
    signed = untrusted(records)
    signed[5] = break_record(records[5])
    report = verify_chain(signed, ONE.public)
    if case in {"a seq left out", "a seq once more"}:  # seq 5 itself is missing, a fault of its own
        assert report.first_faults[0].fault == error.fault
    else:
        assert [(fault.fault, fault.line) for fault in report.first_faults] == [(error.fault, 6)]
        assert report.faulty == 1
    assert report.verdict is Verdict.TAMPERED
    assert report.checked == 10
    assert report.head == records[-1].head


def test_c31_swapped_records_are_one_fault_of_order() -> None:
    signed = untrusted(chain())
    signed[5], signed[6] = signed[6], signed[5]
    report = verify_chain(signed, ONE.public)
    assert _faults(report) == [(5, 6, "order", 1)]
    assert report.faulty == 2


def test_c31_a_record_that_comes_late_is_still_checked_itself() -> None:
    signed = untrusted(chain())
    late = SignedRecord(signed[5].text.replace('"n":5', '"n":6'), signed[5].hash, signed[5].signature)
    report = verify_chain([*signed[:5], signed[6], late, *signed[7:]], ONE.public)
    assert _faults(report) == [(5, 6, "order", 1), (5, 7, "content", 1)]


@pytest.mark.parametrize("goes_on", [0, 1])
def test_c31_a_fork_is_named_whichever_branch_goes_on(goes_on: int) -> None:
    trunk = chain(5)
    branches = [extend(trunk, [Draft("event", {"branch": name}, "a")], ONE) for name in ("x", "y")]
    whole = extend(branches[goes_on], [event(6), event(7)], ONE)
    forked = untrusted([*trunk, branches[0][5], branches[1][5], *whole[6:]])
    report = verify_chain(forked, ONE.public)
    assert _faults(report) == [(5, 7, "fork", 1)]


def test_c31_a_run_of_like_faults_is_one_entry_and_entries_are_bounded() -> None:
    signed = untrusted(chain(4 * MAX_FAULTS))
    run = [resign(record.text, STRANGER) for record in signed[5:50]]
    report = verify_chain([*signed[:5], *run, *signed[50:]], ONE.public)
    assert _faults(report) == [(5, 6, "signature", 45)]
    every_other = [
        record if n % 2 == 0 else SignedRecord(record.text, "0" * 64, record.signature)
        for n, record in enumerate(signed)
    ]
    report = verify_chain(every_other, ONE.public)
    assert len(report.first_faults) == MAX_FAULTS
    assert report.fault_count == report.faulty == 2 * MAX_FAULTS


def test_c24_keys_are_followed_over_rotations() -> None:
    records = extend(chain(5), [rotation(TWO.public.hex)], ONE)
    records = extend(records, [event(6), event(7), rotation(THREE.public.hex)], TWO)
    records = extend(records, [event(9)], THREE)
    report = verify_chain(untrusted(records), ONE.public)
    assert report.verdict is Verdict.VERIFIED
    assert (report.genesis_key, report.key) == (ONE.public, THREE.public)
    middle = Verifier.resume(records[5].head, TWO.public)
    assert [middle.step(signed) for signed in untrusted(records[6:])] == records[6:]
    with pytest.raises(SignatureError):
        Verifier.resume(records[5].head, ONE.public).step(untrusted(records)[6])


def test_a_refused_rotation_is_one_fault_whichever_key_signs_on() -> None:
    forged = extend(chain(5), [rotation(TWO.public.hex)], STRANGER)
    for signer in (ONE, TWO):
        report = verify_chain(untrusted(extend(forged, [event(6), event(7)], signer)), ONE.public)
        assert _faults(report) == [(5, 6, "signature", 1)]


@pytest.mark.parametrize("text", [SMALL_ORDER_KEY, "ff" * 32, "00"])
def test_a_rotation_to_a_bad_key_is_refused(text: str) -> None:
    records = extend(chain(3), [rotation(text)], ONE)
    report = verify_chain(untrusted(extend(records, [event(4)], ONE)), ONE.public)
    assert _faults(report) == [(3, 4, "signature", 1)]


def test_c23_a_chain_signed_anew_is_never_plainly_valid() -> None:
    forged = untrusted(chain(signer=STRANGER))
    pinned = verify_chain(forged, ONE.public)
    assert (pinned.verdict, pinned.verdict.exit_code) == (Verdict.OTHER_KEY, 7)
    assert (_faults(pinned), pinned.signer_trusted) == ([], False)
    assert pinned.other_key == OtherKey(STRANGER.public, (ONE.public,), None)
    unpinned = verify_chain(forged)
    assert unpinned.verdict is Verdict.SELF_DECLARED
    assert unpinned.verdict.exit_code == 6
    assert unpinned.genesis_key == STRANGER.public


def test_c24_a_key_pinned_after_a_rotation_is_told_from_a_change() -> None:
    """Who pins the newest key learns which one the chain began with, and how the newest came in."""
    before = extend(chain(5), [rotation(TWO.public.hex)], ONE)
    records = untrusted(extend(before, [event(6), event(7), event(8)], TWO))
    report = verify_chain(records, TWO.public)
    later = PutInForce(TWO.public, 5, ONE.public, 3)
    assert report.verdict is Verdict.OTHER_KEY
    assert report.other_key == OtherKey(ONE.public, (TWO.public,), later)
    told = f"{TWO.public.hex} was put in force at seq 5 by a record that {ONE.public.hex} signed"
    assert told in report.other_key.told
    assert verify_chain(records, ONE.public).other_key is None
    claimed = verify_chain(records[:6], TWO.public).other_key
    assert claimed is not None
    assert claimed.put_in_force == PutInForce(TWO.public, 5, ONE.public, 0)
    records[7] = SignedRecord(records[7].text.replace("7", "8", 1), records[7].hash, records[7].signature)
    assert verify_chain(records, TWO.public).verdict is Verdict.TAMPERED
    assert verify_chain(records[:7], TWO.public, {8: "ab" * 32}).verdict is Verdict.INCOMPLETE


def test_a_chain_that_must_begin_with_a_key_is_at_fault_with_another() -> None:
    audit = ChainAudit(ONE.public)
    for record in untrusted(chain(3, STRANGER)):
        audit.add(record)
    assert audit.report().verdict is Verdict.TAMPERED
    assert _faults(audit.report()) == [(0, 1, "signature", 1)]


def test_c18_a_cut_tail_is_told_by_a_checkpoint_and_only_by_one() -> None:
    records = chain()
    cut = untrusted(records)[:7]
    assert verify_chain(cut, ONE.public).anchored_to is None
    told = verify_chain(cut, ONE.public, {9: records[9].hash})
    assert (told.verdict, told.missing_checkpoints) == (Verdict.INCOMPLETE, (9,))
    whole = verify_chain(untrusted(records), ONE.public, {4: records[4].hash, 9: records[9].hash})
    assert (whole.verdict, whole.anchored_to) == (Verdict.VERIFIED, 9)


def test_c18_another_branch_is_told_by_a_checkpoint() -> None:
    records = chain()
    branch = extend(records[:6], [Draft("event", {"n": "other"}, "a"), event(7)], ONE)
    report = verify_chain(untrusted(branch), ONE.public, {7: records[7].hash})
    assert report.verdict is Verdict.TAMPERED
    assert _faults(report) == [(7, 8, "fork", 1)]


def test_c20_nothing_is_not_valid() -> None:
    for trusted in (ONE.public, None):
        report = verify_chain([], trusted)
        assert (report.verdict, report.checked) == (Verdict.NOTHING, 0)
    assert verify_chain([], ONE.public, {3: "ab" * 32}).verdict is Verdict.INCOMPLETE


def test_c22_broken_outranks_incomplete() -> None:
    records = chain()
    signed = [*untrusted(records)[:5], resign(records[5].text, STRANGER)]
    assert verify_chain(signed, ONE.public, {9: records[9].hash}).verdict is Verdict.TAMPERED


def test_c15_times_may_stand_still_and_never_go_back() -> None:
    records = chain(3)
    still = seal(event(3), records[-1].head, START_US, ONE)
    verifier = _stepped([*records, still])
    assert still.timestamp == records[-1].timestamp
    following = seal(event(4), still.head, START_US, ONE)
    back = resign(following.text.replace(following.timestamp, records[0].timestamp), ONE)
    with pytest.raises(OrderError, match="timestamp"):
        verifier.step(back)


def test_an_unknown_kind_is_counted_and_no_fault() -> None:
    records = extend(chain(3), [Draft("agent.quarantined", {}, "a"), event(4)], ONE)
    report = verify_chain(untrusted(records), ONE.public)
    assert (report.verdict, report.unknown_kinds) == (Verdict.VERIFIED, 1)


def test_c28_a_signature_over_another_domain_is_none_of_a_record() -> None:
    record = chain(2)[1]
    for digest in (hash_text(hash_text(record.text)), "00" * 32):
        with pytest.raises(ContentError):
            verify_detached(
                SignedRecord(record.text, digest, ONE.sign(bytes.fromhex(digest)).hex()), ONE.public
            )
    payload = chain(3)[2].text  # the bytes of a whole record inside another one's payload
    held = seal(Draft("event", {"text": payload}, "a"), record.head, START_US, ONE)
    with pytest.raises(SignatureError):
        verify_detached(SignedRecord(payload, hash_text(payload), held.signature), ONE.public)


def test_a_detached_record_is_proven_without_its_place() -> None:
    records = chain()
    assert verify_detached(untrusted(records)[7], ONE.public) == records[7]
    with pytest.raises(SignatureError):
        verify_detached(untrusted(records)[7], TWO.public)


def test_a_verifier_resumed_before_the_first_record_wants_the_given_key() -> None:
    verifier = Verifier.resume(None, TWO.public)
    with pytest.raises(SignatureError):
        verifier.step(untrusted(chain())[0])


def test_an_audit_can_be_asked_at_any_time() -> None:
    audit = ChainAudit(ONE.public)
    records = chain(3)
    for count, signed in enumerate(untrusted(records), start=1):
        assert audit.add(signed) == records[count - 1]
        assert audit.report().checked == count


def test_c21_the_report_as_json_agrees_with_its_verdict() -> None:
    signed = untrusted(chain())
    for records, checkpoints in ((signed, {}), (signed[:4], {9: "ab" * 32}), (signed[1:], {}), ([], {})):
        report = verify_chain(records, ONE.public, checkpoints)
        said = json.loads(json.dumps(report.to_json()))
        assert said["verdict"] == report.verdict.value
        assert said["exit_code"] == report.verdict.exit_code
        assert [fault["fault"] for fault in said["faults"]] == [f.fault for f in report.first_faults]
