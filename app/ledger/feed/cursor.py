"""Cursors: a place in the feed that a client keeps, and that nobody but the service can make.

A cursor is encrypted and authenticated under keys derived from the master key, for one tenant: an edited one,
and one of another tenant, is none (case H33), and nobody reads from it how many transactions others make. It
names the database that it was made from and the last record that was read. In a copy that was set back, or
behind a failover that lost commits, the same numbers mean other transactions: there it is refused, instead of
passing records over in silence.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.chain.keys import derive
from app.errors import BadRequestError
from app.ledger.feed.snapshot import Snapshot

if TYPE_CHECKING:
    from uuid import UUID

MAX_CURSOR_CHARS: Final = 32_768
"""A snapshot names the transactions that run: some ten bytes for each."""

HASH_BYTES: Final = 8
"""Of the last record's hash: enough to tell another one in its place."""

_PURPOSE: Final = "feed-cursor"
_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Behind this record of a chain; with ``seq`` None behind all records of it."""

    log_uuid: bytes
    seq: int | None


class Position(msgspec.Struct, frozen=True, array_like=True):
    """What was read: all that ``since`` shows, and a part of what ``upto`` shows beyond it.

    Attributes:
        since: None: nothing.
        not_before_us: records with a time before this count as read (µs since 1970).
        upto: None: nothing of what came after ``since`` was read yet.
        place: how far that was read, chain after chain in the order of their ids; None: to nowhere.
    """

    since: Snapshot | None
    not_before_us: int | None = None
    upto: Snapshot | None = None
    place: Place | None = None


class Source(msgspec.Struct, frozen=True, array_like=True):
    """Which database: the server's identifier, its timeline, the database's oid."""

    system: int
    timeline: int
    database: int


class Anchor(msgspec.Struct, frozen=True, array_like=True):
    """The last record that was read, and the beginning of its hash."""

    log_uuid: bytes
    seq: int
    hash: bytes


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A place in the feed of one tenant."""

    source: Source
    position: Position
    anchor: Anchor | None = None


class Cursors:
    """Seals cursors and opens them."""

    def __init__(self, master_key: bytes) -> None:
        self._cipher = AESGCM(derive(master_key, _PURPOSE))
        self._nonces = derive(master_key, f"{_PURPOSE}-nonce")

    def seal(self, tenant_id: UUID, cursor: Cursor) -> str:
        """The cursor as clients keep it: letters, digits, ``-`` and ``_``."""
        packed = _VERSION + msgspec.msgpack.encode(cursor)
        # Made of what is sealed, so that none is used for two cursors: nothing has to be counted or drawn.
        nonce = hmac.digest(self._nonces, tenant_id.bytes + packed, hashlib.sha256)[:_NONCE_BYTES]
        sealed = nonce + self._cipher.encrypt(nonce, packed, tenant_id.bytes)
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, tenant_id: UUID, text: str) -> Cursor:
        """What a client sent.

        Raises:
            BadRequestError: it is no cursor of this tenant's feed. Never says why.
        """
        if len(text) > MAX_CURSOR_CHARS or not text.isascii():
            raise _no_cursor()
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            packed = self._cipher.decrypt(nonce, rest, tenant_id.bytes)
        except (binascii.Error, InvalidTag, ValueError):
            raise _no_cursor() from None
        # Of several texts that mean the same bytes one alone is a cursor.
        is_exact = base64.urlsafe_b64encode(sealed).rstrip(b"=").decode() == text
        if not is_exact or packed[:1] != _VERSION:
            raise _no_cursor()
        return msgspec.msgpack.decode(packed[1:], type=Cursor)


def _no_cursor() -> BadRequestError:
    return BadRequestError("after: must be the next of an earlier answer, unchanged")
