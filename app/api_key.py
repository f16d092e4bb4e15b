"""API keys: their text, what is stored of them, and the seal that makes a stored row a key.

A key is ``trk_<tenant, 32 hex>.<id, 16 hex>.<secret, 43 of base64url>.<check, 16 hex>``: 256 random bits,
shown once. The database holds the SHA-256 of the secret, and over the whole row an HMAC under a key derived
from the master key: a row that was written by SQL, or moved to another tenant, role or agent, is no key. The
check is part of another such HMAC: what was never issued is refused without a look at the database.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from app.chain.canonical import canonical
from app.chain.keys import derive
from app.chain.strict import JsonObject
from app.errors import BadRequestError
from app.principal import Role

PREFIX: Final = "trk_"
"""How every key begins, so that scanners for leaked secrets find it."""

MAX_NAME_CHARS: Final = 64
SECRET_BYTES: Final = 32
KEY_ID_BYTES: Final = 8

TENANT_ROLES: Final = (Role.OPERATOR, Role.AUDITOR, Role.WRITER, Role.AGENT)
"""Roles of keys within a tenant; root's is a secret of the installation."""

_CHECK_DIGITS: Final = 16
_KEY: Final = re.compile(rb"trk_([0-9a-f]{32})\.([0-9a-f]{16})\.([A-Za-z0-9_-]{43})\.([0-9a-f]{16})")
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_NAME: Final = re.compile(r"[^\W_](?:[\w .@+-]{0,62}[\w.@+-])?")


class Presented(msgspec.Struct, frozen=True):
    """A bearer token in the form of a key: nothing is proven yet. Its repr shows no secret."""

    tenant_id: UUID
    key_id: str
    secret_hash: bytes

    def __repr__(self) -> str:
        return f"Presented({self.key_id})"


class ApiKey(msgspec.Struct, frozen=True):
    """What is stored of a key. Times are aware, UTC.

    Attributes:
        tenant_id: whose.
        key_id: visible id, 16 hex; lists, records and logs name a key by it.
        role: what it may do.
        agent_id: the one agent that it reaches; of keys of role agent alone.
        name: what its holder is called on the record.
        secret_hash: SHA-256 of the secret, 32 bytes.
        created_at: when it was issued.
        expires_at: from when on it is none any more; None: never.
    """

    tenant_id: UUID
    key_id: str
    role: Role
    agent_id: str | None
    name: str
    secret_hash: bytes
    created_at: datetime
    expires_at: datetime | None


class Mint:
    """Makes keys and tells which tokens and rows are keys, with what is derived from the master key."""

    def __init__(self, master_key: bytes) -> None:
        self._sealing = derive(master_key, "api-key")
        self._checking = derive(master_key, "api-key-check")

    def seal(self, key: ApiKey) -> bytes:
        """The HMAC-SHA256 over everything that the row of ``key`` says."""
        fields: JsonObject = {
            name: value if value is None else _written(value)
            for name, value in msgspec.structs.asdict(key).items()
        }
        return hmac.digest(self._sealing, canonical(fields).encode(), hashlib.sha256)

    def is_genuine(self, key: ApiKey, seal: bytes) -> bool:
        """Whether ``seal`` was made of exactly this key by who holds the master key."""
        return hmac.compare_digest(self.seal(key), seal)

    def token(self, tenant_id: UUID, key_id: str, secret: bytes) -> str:
        """The key as its holder gets it, once."""
        text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
        head = f"{PREFIX}{tenant_id.hex}.{key_id}.{text}"
        return f"{head}.{self._check(head.encode())}"

    def presented(self, token: bytes) -> Presented | None:
        """What a bearer token says it is; None when no key of this text was ever issued.

        Whether it is still one, and for what, its row says.
        """
        match = _KEY.fullmatch(token)
        if match is None:
            return None
        head, _, check = token.rpartition(b".")
        if not hmac.compare_digest(self._check(head).encode(), check):
            return None
        secret = base64.urlsafe_b64decode(match[3] + b"=")
        return Presented(UUID(match[1].decode()), match[2].decode(), hash_secret(secret))

    def _check(self, head: bytes) -> str:
        return hmac.digest(self._checking, head, hashlib.sha256).hex()[:_CHECK_DIGITS]


def _written(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def hash_secret(secret: bytes) -> bytes:
    """What is stored of a secret. 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret).digest()


def check_key_id(value: str) -> str | None:
    """``value`` when it can be the id of a key, else None."""
    return value if _KEY_ID.fullmatch(value) else None


def check_name(value: str) -> str:
    """A name for a key: what records show as the actor.

    Raises:
        BadRequestError: says what a name may be.
    """
    if _NAME.fullmatch(value) is None or not value.isprintable():
        raise BadRequestError(
            f"name: must have 1 to {MAX_NAME_CHARS} letters, digits, spaces or . @ + - _; the first a letter "
            "or digit, the last no space"
        )
    return value
