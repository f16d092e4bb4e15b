"""What an export says of itself: a statement, whole and signed, that stands at its end.

A statement is one line of canonical JSON with the members ``form``, ``public_key`` (who signs, hex; null:
nobody) and one that says what it is about. Signed it gets the tail of an export line,
``,"hash":"…","signature":"…"`` before its last brace: the hash is SHA-256 over ``lineage-export-v1``, a line
feed and the text without that tail, the signature Ed25519 over the 32 bytes of the hash. The first line of
what is hashed is another one than that of records, so that neither ever passes for the other.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.keys import PublicKey
from app.chain.record import SignedRecord, export_line, split_line
from app.chain.strict import JsonObject, JsonValue, parse
from app.errors import ContentError, FormatError, InvalidJsonError, KeyMaterialError, SignatureError

DOMAIN: Final = b"lineage-export-v1\n"
"""First line of what is hashed."""

FORM: Final = "lineage-export-v1"
"""The member ``form`` of what this version writes and reads."""

BEGINNING: Final = b'{"export":'
"""How the first line of an export begins that ends in a statement; no record begins so."""

CHAIN_END: Final = b'{"chain":'
"""How a line begins that stands behind the records of one chain."""

ENDING: Final = b'{"form":"lineage-export-v1",'
"""How a statement begins."""

CSV_COLUMN: Final = "export_trailer"
"""The last column of a CSV file that ends in a statement, which stands there in its last row."""

_MAX_STATEMENT: Final = 64 * 1024 * 1024


class Statement(msgspec.Struct, frozen=True):
    """A statement that was read, and if it is signed, verified: ``signed_by`` is the key that it names."""

    about: str
    says: JsonObject
    signed_by: PublicKey | None


def statement_text(about: str, says: JsonObject, public_key: str | None) -> str:
    """The text to sign; without a key it is the whole statement."""
    return canonical({"form": FORM, "public_key": public_key, about: says})


def statement_hash(text: str) -> str:
    """What is signed: 64 hex digits."""
    return hashlib.sha256(DOMAIN + text.encode()).hexdigest()


def signed_statement(text: str, signature: bytes) -> str:
    """The statement as one line, without the line feed."""
    return export_line(SignedRecord(text, statement_hash(text), signature.hex()))


def read_statement(line: str, about: str) -> Statement:
    """Reads a statement, and verifies the signature that it carries.

    Args:
        line: without its line feed.
        about: the member that it has to have.

    Raises:
        FormatError: it is no statement of this form.
        ContentError: the hash is not that of the text.
        SignatureError: it is not signed by the key that it names.
    """
    signed: SignedRecord | None = None
    try:
        signed = split_line(line)
        text = signed.text
    except FormatError:
        text = line
    says, named = _read(text, about)
    if named is None and signed is None:
        return Statement(about, says, None)
    if named is None or signed is None:
        raise FormatError("the statement names a key and is not signed, or is signed by no key")
    if statement_hash(text) != signed.hash:
        raise ContentError("the hash of the statement is not that of its text")
    try:
        key = PublicKey.load(named)
    except KeyMaterialError as error:
        raise SignatureError(f"the key that the statement names: {error.message}") from None
    key.verify(signed.hash, signed.signature)
    return Statement(about, says, key)


def _read(text: str, about: str) -> tuple[JsonObject, str | None]:
    try:
        value: JsonValue = parse(text.encode(), max_string=_MAX_STATEMENT).value
    except (InvalidJsonError, UnicodeError) as error:
        raise FormatError(f"the statement is not strict JSON: {error}") from None
    if (
        not isinstance(value, dict)
        or value.get("form") != FORM
        or set(value) != {"form", "public_key", about}
    ):
        raise FormatError(f"no statement of the form {FORM} about the {about}")
    says, named = value[about], value["public_key"]
    if not isinstance(says, dict) or not (named is None or isinstance(named, str)):
        raise FormatError("a statement that says nothing")
    return says, named
