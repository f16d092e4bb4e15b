"""A signing key as the table holds it: sealed under the master key, its place in the order of keys with it.

Two forms of ``sealed_secret`` open::

    since rotations are ordered   02, nonce 12, AES-256-GCM(origin 1, created_at 8, public key 32, content)
    before                        nonce 12, AES-256-GCM(secret 32): 60 bytes

``origin`` says what the content is: the secret's 32 bytes, or the URI of a source that
signs (``app.ledger.keys.signers``).
``created_at`` is µs since the epoch, signed, big-endian. Who may change every row but has no master key
cannot make a retired key the newest one again: a dated key stands where its seal says, and a key of the old
form before all of them. Both are bound to tenant and key id, and neither opens as the other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from app.chain.keys import PublicKey, SigningKey, open_secret, seal_secret
from app.errors import KeyMaterialError
from app.moment import to_microseconds
from db.ledger import SigningKeyRow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_DATED: Final = b"\x02"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_UNDATED_LENGTH: Final = _NONCE_BYTES + _SECRET_BYTES + _TAG_BYTES

_HERE, _ELSEWHERE = 0, 1
"""Origins: the secret is in the row, or a source that the row names signs."""

_TIME = slice(1, 9)
_PUBLIC = slice(9, 41)
_CONTENT = slice(41, None)


class NewSigningKey(msgspec.Struct, frozen=True):
    """A key that is to be stored. ``content`` is its secret, or the URI of the source that signs with it."""

    public: PublicKey
    content: bytes | str

    @classmethod
    def random(cls) -> NewSigningKey:
        """A key of 32 random bytes, which the row itself will hold."""
        secret = os.urandom(_SECRET_BYTES)
        return cls(SigningKey.from_raw(secret).public, secret)

    def __repr__(self) -> str:
        return f"NewSigningKey({self.public.key_id})"


class StoredKey(msgspec.Struct, frozen=True):
    """What a row's seal says.

    ``content`` is as in ``NewSigningKey``, ``created_us`` when the key was made, µs since the epoch; None for
    a key of the old form, whose time nothing proves.
    """

    public: PublicKey
    content: bytes | str
    created_us: int | None

    def is_of(self, created_at: datetime) -> bool:
        """Whether the row's ``created_at`` is the sealed one, as far as it is sealed."""
        return self.created_us is None or self.created_us == to_microseconds(created_at)

    def __repr__(self) -> str:
        return f"StoredKey({self.public.key_id})"


def seal_key(master_key: bytes, tenant_id: UUID, key: NewSigningKey, created_at: datetime) -> SigningKeyRow:
    """The row of a new key, sealed with its time."""
    origin, content = (
        (_ELSEWHERE, key.content.encode()) if isinstance(key.content, str) else (_HERE, key.content)
    )
    time = to_microseconds(created_at).to_bytes(8, "big", signed=True)
    sealed = seal_secret(
        master_key,
        bytes([origin]) + time + bytes.fromhex(key.public.hex) + content,
        context=_dated_context(tenant_id, key.public.key_id),
        nonce=os.urandom(_NONCE_BYTES),
    )
    return SigningKeyRow(tenant_id, key.public.key_id, key.public.hex, _DATED + sealed, created_at)


def open_key(
    master_key: bytes, *, tenant_id: UUID, key_id: str, public_key: str, sealed_secret: bytes
) -> StoredKey:
    """Opens one stored key. Its public half is sealed, too, or derived from the secret, never believed.

    Raises:
        KeyMaterialError: it does not open under this master key, or is not the key that the row names.
    """
    if len(sealed_secret) == _UNDATED_LENGTH:
        secret = open_secret(master_key, sealed_secret, context=key_context(tenant_id, key_id))
        stored = StoredKey(SigningKey.from_raw(secret).public, secret, None)
    else:
        stored = _open_dated(master_key, tenant_id, key_id, sealed_secret)
    if (stored.public.hex, stored.public.key_id) != (public_key, key_id):
        raise KeyMaterialError(f"signing key {key_id}: the stored public key is not that of the secret")
    return stored


def open_row(master_key: bytes, row: SigningKeyRow) -> StoredKey:
    """The same of a row, which must stand where its seal says.

    Raises:
        KeyMaterialError: as ``open_key``, or the row's ``created_at`` was changed.
    """
    stored = open_key(
        master_key,
        tenant_id=row.tenant_id,
        key_id=row.key_id,
        public_key=row.public_key,
        sealed_secret=row.sealed_secret,
    )
    if not stored.is_of(row.created_at):
        raise KeyMaterialError(MOVED.format(key_id=row.key_id))
    return stored


MOVED: Final = (
    "signing key {key_id}: created_at is not the time under its seal; the order of keys was changed"
)


def in_order(rows: Iterable[SigningKeyRow]) -> list[SigningKeyRow]:
    """Rows that opened, oldest first: those of the old form, then the dated ones, each by their time."""
    return sorted(rows, key=lambda row: (is_dated(row), row.created_at, row.key_id))


def is_dated(row: SigningKeyRow) -> bool:
    """Whether the row is of the form whose time is sealed."""
    return len(row.sealed_secret) != _UNDATED_LENGTH


def key_context(tenant_id: UUID, key_id: str) -> bytes:
    """What a sealed key of the old form is bound to: moved to another tenant's row, it does not open."""
    return f"{tenant_id}/{key_id}".encode()


def _dated_context(tenant_id: UUID, key_id: str) -> bytes:
    return _DATED + key_context(tenant_id, key_id)


def _open_dated(master_key: bytes, tenant_id: UUID, key_id: str, sealed: bytes) -> StoredKey:
    if not sealed.startswith(_DATED):
        raise KeyMaterialError(f"signing key {key_id} is sealed in a form that this version does not know")
    plain = open_secret(master_key, sealed[1:], context=_dated_context(tenant_id, key_id))
    created_us = int.from_bytes(plain[_TIME], "big", signed=True)
    public, content = PublicKey(plain[_PUBLIC]), plain[_CONTENT]
    if plain[0] == _ELSEWHERE:
        return StoredKey(public, content.decode(), created_us)
    if plain[0] != _HERE or SigningKey.from_raw(content).public != public:
        raise KeyMaterialError(f"signing key {key_id} is sealed in a form that this version does not know")
    return StoredKey(public, content, created_us)
