"""Sealing: a draft gets its place, its time, its hash and its signature. The only maker of new records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from app.chain.canonical import canonical
from app.chain.record import (
    GENESIS,
    MAX_KIND,
    ZERO_HASH,
    Draft,
    Fields,
    Head,
    SignedRecord,
    VerifiedRecord,
    _proven,
    format_timestamp,
    hash_text,
)
from app.chain.signer import Signer
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, parse, plainly_within
from app.errors import FormatError

WORDS = 4_096
"""Actors and kinds whose canonical text is remembered."""


def seal(draft: Draft, after: Head | None, at_us: int, key: Signer) -> VerifiedRecord:
    """Makes the record that follows ``after``.

    Args:
        draft: what the record says.
        after: the chain's head; None for the first record, which must be the genesis record of ``key``.
        at_us: the present time in µs since the epoch. When the clock stepped back, the predecessor's time
            is used instead: a record's time is never before its predecessor's.
        key: the key in force.

    Raises:
        FormatError: a draft that no chain may hold here.
        InvalidJsonError: a payload, actor or kind that has no canonical text or breaks a limit.
    """
    _check(draft, after, key)
    timestamp_us = at_us if after is None else max(at_us, after.timestamp_us)
    fields = Fields(
        actor=draft.actor,
        kind=draft.kind,
        payload=draft.payload,
        prev_hash=ZERO_HASH if after is None else after.hash,
        seq=0 if after is None else after.seq + 1,
        timestamp=format_timestamp(timestamp_us),
        timestamp_us=timestamp_us,
    )
    text = _text(fields, draft)
    hash_hex = hash_text(text)
    return _proven(fields, SignedRecord(text, hash_hex, key.sign(bytes.fromhex(hash_hex)).hex()))


def seal_all(
    drafts: Iterable[Draft], after: Head | None, at_us: int, key: Signer
) -> tuple[VerifiedRecord, ...]:
    """Seals several drafts one after the other, all at the same moment. Raises as ``seal`` does."""
    records: list[VerifiedRecord] = []
    for draft in drafts:
        records.append(seal(draft, records[-1].head if records else after, at_us, key))
    return tuple(records)


@lru_cache(maxsize=WORDS)
def _word(text: str) -> str:
    """The canonical text of an actor or a kind, which come again and again."""
    return canonical(text)


def _check(draft: Draft, after: Head | None, key: Signer) -> None:
    if not 0 < len(draft.kind) <= MAX_KIND:
        raise FormatError(f"a kind has 1 to {MAX_KIND} characters")
    if (after is None) != (draft.kind == GENESIS):
        raise FormatError("a chain begins with its genesis record and has no other")
    if after is None and draft.payload.get("public_key") != key.public.hex:
        raise FormatError("the genesis record names another public key than the one that signs it")


def _text(fields: Fields, draft: Draft) -> str:
    """The canonical text of the six fields, whose keys stand in sorted order here."""
    payload = canonical(fields.payload) if draft.payload_text is None else draft.payload_text
    text = (
        f'{{"actor":{_word(fields.actor)},"kind":{_word(fields.kind)},"payload":{payload}'
        f',"prev_hash":"{fields.prev_hash}","seq":{fields.seq},"timestamp":"{fields.timestamp}"}}'
    )
    if draft.within_limits:
        return text
    raw = text.encode("utf-8")
    if not plainly_within(raw, fields.payload, RECORD_DEPTH - 1, RECORD_STRING):
        # A verifier would refuse what breaks a limit, so it must not be signed; most are plainly small.
        parse(raw, max_depth=RECORD_DEPTH, max_string=RECORD_STRING)
    return text
