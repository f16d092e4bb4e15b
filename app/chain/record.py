"""A record of the format ``lineage-audit-v1``: its text, its hash, its export line.

The signed text is the canonical JSON of six fields. The export line is that text with the hash and the
signature put before its last brace, a tail of fixed length: whoever removes it has the signed bytes again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from functools import lru_cache

import msgspec

from app.chain.strict import JsonValue
from app.errors import FormatError

DOMAIN = b"lineage-audit-v1\n"
"""First line of what is hashed: a hash or signature made for anything else never fits a record."""

ZERO_HASH = "0" * 64
"""``prev_hash`` of the first record."""

GENESIS = "genesis"
"""Kind of the first record, which names the chain and its first key."""

KEY_ROTATED = "key_rotated"
"""Kind of a record signed by the old key that names the new one."""

SNAPSHOT = "snapshot"
"""Kind of a record that holds what all records before it come to, so that a reader may begin behind it."""

KNOWN_KINDS = frozenset(
    {
        GENESIS,
        KEY_ROTATED,
        SNAPSHOT,
        "policy",
        "action_requested",
        "approval_required",
        "approval_given",
        "action_allowed",
        "action_denied",
        "action_rejected",
        "action_claimed",
        "claim_refused",
        "outcome",
        "scar",
        "terminated",
        "trace",
        "event",
        "admin",
    }
)
"""Kinds that this version knows. An unknown one verifies, is counted, and the guard decides nothing on it."""

MAX_KIND = 64
"""Characters of a kind."""

HASH_LENGTH = 64
SIGNATURE_LENGTH = 128

_BEFORE_HASH = ',"hash":"'
_BEFORE_SIGNATURE = '","signature":"'
_END = '"}'
TRAILER_LENGTH = len(_BEFORE_HASH) + HASH_LENGTH + len(_BEFORE_SIGNATURE) + SIGNATURE_LENGTH + len(_END)
"""Characters of ``,"hash":"…","signature":"…"}`` at the end of an export line."""

_HASH_AT = len(_BEFORE_HASH)
_HASH_TO = _HASH_AT + HASH_LENGTH
_SIGNATURE_AT = _HASH_TO + len(_BEFORE_SIGNATURE)
_SIGNATURE_TO = _SIGNATURE_AT + SIGNATURE_LENGTH

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  UTC by definition; naive arithmetic is the faster
_MICROSECOND = dt.timedelta(microseconds=1)
_TIMESTAMP_LENGTH = len("2026-09-30T08:27:35.423031Z")
_SECOND_LENGTH = len("2026-09-30T08:27:35")


class Head(msgspec.Struct, frozen=True):
    """A position in a chain: its last record's seq, hash and time (µs since 1970-01-01T00:00:00Z)."""

    seq: int
    hash: str
    timestamp_us: int


class Draft(msgspec.Struct, frozen=True):
    """A record to be: what it says, before it has a place in a chain.

    ``payload_text`` is the canonical text of ``payload`` when the caller has it already; it is believed, a
    wrong one makes a chain that does not verify. ``within_limits`` says that the caller has seen to the
    limits of depth, strings and members itself, and is believed as well.
    """

    kind: str
    payload: dict[str, JsonValue]
    actor: str
    payload_text: str | None = None
    within_limits: bool = False


class SignedRecord(msgspec.Struct, frozen=True):
    """A record as it was read: untrusted until verified."""

    text: str
    hash: str
    signature: str


class VerifiedRecord(msgspec.Struct, frozen=True):
    """A record whose format, hash, link and signature hold. Only sealing and verifying make one."""

    seq: int
    timestamp: str
    timestamp_us: int
    actor: str
    kind: str
    payload: dict[str, JsonValue]
    prev_hash: str
    hash: str
    signature: str
    text: str

    @property
    def head(self) -> Head:
        """The chain's position when this is its last record."""
        return Head(self.seq, self.hash, self.timestamp_us)


class Fields(msgspec.Struct, frozen=True):
    """The six signed fields of a record, and the microseconds that its timestamp means."""

    actor: str
    kind: str
    payload: dict[str, JsonValue]
    prev_hash: str
    seq: int
    timestamp: str
    timestamp_us: int


def _proven(fields: Fields, signed: SignedRecord) -> VerifiedRecord:
    """Makes a ``VerifiedRecord``. For ``link`` and ``verify`` alone, which have proven what it says."""
    return VerifiedRecord(
        seq=fields.seq,
        timestamp=fields.timestamp,
        timestamp_us=fields.timestamp_us,
        actor=fields.actor,
        kind=fields.kind,
        payload=fields.payload,
        prev_hash=fields.prev_hash,
        hash=signed.hash,
        signature=signed.signature,
        text=signed.text,
    )


@lru_cache(maxsize=16)  # all records of one act have the same
def format_timestamp(us: int) -> str:
    """Microseconds since the epoch as RFC 3339 in UTC with six decimals, ``2026-09-30T08:27:35.423031Z``.

    Raises:
        FormatError: the year is not one of 1 to 9999.
    """
    try:
        moment = _EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        raise FormatError(f"{us} µs since 1970 is not within the years 1 to 9999") from None
    return moment.isoformat(timespec="microseconds") + "Z"


def parse_timestamp(text: str) -> int:
    """Microseconds since the epoch of exactly the form that ``format_timestamp`` writes.

    Raises:
        FormatError: any other form, or a time that does not exist (a leap second, 24:00).
    """
    fraction = text[_SECOND_LENGTH + 1 : -1]
    if len(text) == _TIMESTAMP_LENGTH and fraction.isdecimal() and fraction.isascii() and text[-1] == "Z":
        second = _second(text[: _SECOND_LENGTH + 1])
        if second is not None:
            return second + int(fraction)
    raise FormatError("timestamp is not RFC 3339 in UTC with six decimals and Z")


@lru_cache(maxsize=256)  # records one after the other are mostly of one second
def _second(text: str) -> int | None:
    """Microseconds since the epoch of ``2026-09-30T08:27:35.``; None for any other form."""
    try:
        moment = dt.datetime.fromisoformat(text[:-1])
    except ValueError:
        return None
    # The way back settles what interpreters disagree on (24:00, a comma, other digits).
    return (moment - _EPOCH) // _MICROSECOND if moment.isoformat() + "." == text else None


def is_hex(text: str, length: int) -> bool:
    """Whether ``text`` is ``length`` lowercase hex digits."""
    try:
        return len(text) == length and bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def hash_text(text: str) -> str:
    """SHA-256 of the domain line and the text, as 64 lowercase hex digits."""
    return hashlib.sha256(DOMAIN + text.encode("utf-8")).hexdigest()


def export_line(record: VerifiedRecord | SignedRecord) -> str:
    """The record as one line of JSON, without the line feed."""
    head = record.text[:-1]
    return f"{head}{_BEFORE_HASH}{record.hash}{_BEFORE_SIGNATURE}{record.signature}{_END}"


def split_line(line: str) -> SignedRecord:
    """Takes an export line apart by its fixed-length tail. The parts are not checked.

    Raises:
        FormatError: the line does not end in such a tail.
    """
    tail = line[-TRAILER_LENGTH:]
    fits = (
        len(line) > TRAILER_LENGTH + 1
        and tail.startswith(_BEFORE_HASH)
        and tail[_HASH_TO:_SIGNATURE_AT] == _BEFORE_SIGNATURE
        and tail.endswith(_END)
    )
    if not fits:
        raise FormatError("the line does not end in a hash and a signature")
    text = line[:-TRAILER_LENGTH] + "}"
    return SignedRecord(text, tail[_HASH_AT:_HASH_TO], tail[_SIGNATURE_AT:_SIGNATURE_TO])
