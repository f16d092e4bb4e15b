"""Reading a record's text: what it says, before anything of it is believed."""

from __future__ import annotations

from typing import Any

import msgspec

from app.chain.canonical import read_canonical
from app.chain.record import GENESIS, HASH_LENGTH, KEY_ROTATED, MAX_KIND, Fields, is_hex, parse_timestamp
from app.chain.strict import RECORD_DEPTH, RECORD_STRING, JsonValue, may_hide, plain_float, plainly_within
from app.errors import FormatError, InvalidJsonError

_FIELDS = frozenset({"actor", "kind", "payload", "prev_hash", "seq", "timestamp"})
_NAMING = frozenset({GENESIS, KEY_ROTATED})
_MAX_SEQ = 2**63 - 1


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """The six fields, in the order of canonical form."""

    actor: str
    kind: str
    payload: dict[str, Any]
    prev_hash: str
    seq: int
    timestamp: str


_DECODER = msgspec.json.Decoder(_Written, float_hook=plain_float)
_ENCODER = msgspec.json.Encoder(order="sorted")


def read_fields(text: str) -> Fields:
    """Reads a record's text: strict JSON of exactly the six fields, in canonical form.

    Raises:
        FormatError: it is not.
    """
    fields = _read_quickly(text) or _read_thoroughly(text)
    if (fields.seq == 0) != (fields.kind == GENESIS):
        raise FormatError("a chain begins with its genesis record and has no other", seq=fields.seq)
    if fields.kind in _NAMING and type(fields.payload.get("public_key")) is not str:
        raise FormatError(f"a {fields.kind} record names a public_key", seq=fields.seq)
    return fields


def _read_quickly(text: str) -> Fields | None:
    """The fields of a text that equals its own re-encoding, as every record of ours does; None if in doubt.

    As ``app.chain.strict.quick_as_it_stands``, with the fields and their types looked at by the decoder.
    """
    try:
        raw = text.encode()
        if may_hide(raw):
            return None
        written = _DECODER.decode(raw)
        if _ENCODER.encode(written) != raw:
            return None
        prev_hash, timestamp_us = written.prev_hash, parse_timestamp(written.timestamp)
    except (ValueError, RecursionError, FormatError):
        return None
    sound = (
        0 <= written.seq <= _MAX_SEQ
        and 0 < len(written.kind) <= MAX_KIND
        and is_hex(prev_hash, HASH_LENGTH)
        and plainly_within(raw, written.payload, RECORD_DEPTH - 1, RECORD_STRING)
    )
    if not sound:
        return None
    return Fields(
        written.actor, written.kind, written.payload, prev_hash, written.seq, written.timestamp, timestamp_us
    )


def _read_thoroughly(text: str) -> Fields:
    """The same of any text, and why it is no record's. Raises as ``read_fields``."""
    try:
        value, is_canonical = read_canonical(text, max_depth=RECORD_DEPTH, max_string=RECORD_STRING)
    except InvalidJsonError as error:
        raise FormatError(f"the text is not strict JSON: {error}") from None
    fields = _fields(value)
    if not is_canonical:
        raise FormatError("the text is not in canonical form", seq=fields.seq)
    return fields


def _fields(value: JsonValue) -> Fields:
    if type(value) is not dict or len(value) != len(_FIELDS) or not _FIELDS.issubset(value):
        raise FormatError("a record has exactly the fields actor, kind, payload, prev_hash, seq, timestamp")
    seq, actor, kind = value["seq"], value["actor"], value["kind"]
    payload, prev_hash, timestamp = value["payload"], value["prev_hash"], value["timestamp"]
    if type(seq) is not int or not 0 <= seq <= _MAX_SEQ:
        raise FormatError("seq is not an integer from 0 to 2^63-1")
    if type(kind) is not str or not 0 < len(kind) <= MAX_KIND:
        raise FormatError(f"kind is not a string of 1 to {MAX_KIND} characters", seq=seq)
    if type(actor) is not str or type(payload) is not dict:
        raise FormatError("actor is not a string or payload not an object", seq=seq)
    if type(prev_hash) is not str or not is_hex(prev_hash, HASH_LENGTH):
        raise FormatError("prev_hash is not 64 lowercase hex digits", seq=seq)
    if type(timestamp) is not str:
        raise FormatError("timestamp is not a string", seq=seq)
    try:
        timestamp_us = parse_timestamp(timestamp)
    except FormatError as error:
        raise FormatError(error.reason, seq=seq) from None
    return Fields(actor, kind, payload, prev_hash, seq, timestamp, timestamp_us)


def readable(text: str) -> Fields | None:
    """The same; None for what is no record's text."""
    try:
        return read_fields(text)
    except FormatError:
        return None
