"""Sealing: place, time, text, and what no chain may hold."""

from __future__ import annotations

import json

import pytest

from app.chain.canonical import canonical
from app.chain.link import seal, seal_all
from app.chain.record import ZERO_HASH, Draft, Head, SignedRecord, format_timestamp
from app.chain.strict import MAX_DEPTH, MAX_MEMBERS, MAX_STRING, RECORD_DEPTH, JsonValue
from app.chain.verify import Verifier, verify_detached
from app.errors import FormatError, InvalidJsonError
from tests.vectors.make_vectors import ONE, START_US, STRANGER, chain, event, genesis

HEAD = Head(4, "ab" * 32, START_US)


def test_a_sealed_record_says_what_the_draft_and_its_place_say() -> None:
    draft = Draft("event", {"b": 1.0, "a": [None]}, 'actor "é"')
    record = seal(draft, HEAD, START_US + 1, ONE)
    said = json.loads(record.text)
    assert said == {
        "actor": 'actor "é"',
        "kind": "event",
        "payload": {"a": [None], "b": 1},
        "prev_hash": HEAD.hash,
        "seq": 5,
        "timestamp": format_timestamp(START_US + 1),
    }
    assert record.text == canonical(said)
    assert record.head == Head(5, record.hash, START_US + 1)
    assert verify_detached(SignedRecord(record.text, record.hash, record.signature), ONE.public) == record


def test_the_first_record_stands_on_zeros() -> None:
    record = seal(genesis(), None, START_US, ONE)
    assert (record.seq, record.prev_hash) == (0, ZERO_HASH)


def test_c15_a_clock_that_steps_back_is_clamped() -> None:
    records = list(seal_all([genesis(), event(1), event(2)], None, START_US, ONE))
    for at_us in (START_US - 600_000_000, START_US - 1, 0, START_US + 5):
        records.append(seal(event(9), records[-1].head, at_us, ONE))
    assert [record.timestamp_us for record in records] == [START_US] * 6 + [START_US + 5]
    verifier = Verifier(ONE.public)
    for record in records:
        verifier.step(SignedRecord(record.text, record.hash, record.signature))


def test_a_given_payload_text_is_used_as_it_is() -> None:
    payload: dict[str, JsonValue] = {"b": 1, "a": 2}
    with_text = seal(Draft("event", payload, "a", canonical(payload)), HEAD, START_US, ONE)
    assert with_text == seal(Draft("event", payload, "a"), HEAD, START_US, ONE)


@pytest.mark.parametrize("kind", ["", "k" * 65])
def test_a_kind_has_1_to_64_characters(kind: str) -> None:
    with pytest.raises(FormatError):
        seal(Draft(kind, {}, "a"), HEAD, START_US, ONE)


def test_a_chain_begins_with_its_own_genesis_record_and_has_no_other() -> None:
    for draft, after in ((event(0), None), (genesis(), HEAD), (genesis(STRANGER), None)):
        with pytest.raises(FormatError):
            seal(draft, after, START_US, ONE)


@pytest.mark.parametrize("text", ["a\0", "\ud800"])
def test_what_cannot_be_stored_is_not_signed(text: str) -> None:
    for draft in (Draft("event", {}, text), Draft(text, {}, "a"), Draft("event", {"a": text}, "a")):
        with pytest.raises(InvalidJsonError):
            seal(draft, HEAD, START_US, ONE)


def _nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [_nested(RECORD_DEPTH - 1), "x" * (2 * MAX_STRING), [0] * (MAX_MEMBERS + 1)],
    ids=["depth", "string", "members"],
)
@pytest.mark.parametrize("with_text", [True, False])
def test_what_a_verifier_would_refuse_is_not_signed(value: JsonValue, *, with_text: bool) -> None:
    payload: dict[str, JsonValue] = {"a": value}
    text = json.dumps(payload, separators=(",", ":")) if with_text else None
    with pytest.raises(InvalidJsonError):
        seal(Draft("event", payload, "a", text), HEAD, START_US, ONE)


@pytest.mark.parametrize("value", [_nested(MAX_DEPTH), "€" * (MAX_STRING // 3), [0] * MAX_MEMBERS])
def test_c12_what_came_in_at_a_limit_is_signed_and_verifies(value: JsonValue) -> None:
    """Even some levels down, as a node's inputs are."""
    payload: dict[str, JsonValue] = {"trace_tree": [{"inputs": {"input": value}}]}
    record = seal(Draft("event", payload, "a"), HEAD, START_US, ONE)
    assert verify_detached(SignedRecord(record.text, record.hash, record.signature), ONE.public) == record


@pytest.mark.parametrize("with_text", [True, False])
def test_a_record_is_as_deep_as_a_verifier_reads_and_no_deeper(*, with_text: bool) -> None:
    """Record and payload are two levels; brackets side by side are none."""
    payload: dict[str, JsonValue] = {"a": _nested(RECORD_DEPTH - 2), "b": [[] for _ in range(RECORD_DEPTH)]}
    text = json.dumps(payload, separators=(",", ":")) if with_text else None
    record = seal(Draft("event", payload, "a", text), HEAD, START_US, ONE)
    assert verify_detached(SignedRecord(record.text, record.hash, record.signature), ONE.public) == record


def test_several_drafts_are_sealed_one_after_the_other() -> None:
    assert seal_all([], HEAD, START_US, ONE) == ()
    first, second = seal_all([event(5), event(6)], HEAD, START_US, ONE)
    assert (first.prev_hash, second.prev_hash) == (HEAD.hash, first.hash)
    assert [record.seq for record in chain(3)] == [0, 1, 2]
