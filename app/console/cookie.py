"""The cookie of a visit: the key that signed in, sealed so that only this service can read it.

It names its visit by 256 random bits, of which the database has a hash. A cookie that was copied is worth
nothing once its visit has ended; one that nobody renews ends by itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from typing import Final
from uuid import UUID

import msgspec

from app.chain.keys import open_secret, seal_secret
from app.errors import KeyMaterialError
from app.http.exchange import Call, headers, services_of
from app.http.hosts import name_in

SESSION_SECS: Final = 8 * 3_600
"""A visit ends after a working day, whatever happens meanwhile."""

IDLE_SECS: Final = 30 * 60
"""A visit of which no page was asked for so long has ended."""

RENEW_SECS: Final = 60
"""How old what the cookie says of the last page may become before it is said anew."""

_NAME: Final = b"trails_session"
_CONTEXT: Final = b"console-session/v2"
_NONCE_BYTES: Final = 12
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_MAX_COOKIE_BYTES: Final = 4_096
_SECRET_BYTES: Final = 32


class Cookie(msgspec.Struct, frozen=True):
    """What the cookie says; times in seconds since 1970.

    Attributes:
        token: the key that signed in.
        tenant_id: whose it is.
        secret: 32 random bytes that name the visit.
        csrf: what every form of the visit carries.
        expires_at: when the visit ends in any case.
        seen_at: when a page was asked for, to ``RENEW_SECS``.
    """

    token: bytes
    tenant_id: UUID
    secret: bytes
    csrf: str
    expires_at: int
    seen_at: int

    @property
    def visit_hash(self) -> bytes:
        """What the database knows the visit by."""
        return hashlib.sha256(self.secret).digest()

    @property
    def is_over(self) -> bool:
        """Whether the visit's time is over, or nobody was there for too long."""
        now = int(time.time())
        return now >= self.expires_at or now - self.seen_at >= IDLE_SECS

    @property
    def is_due(self) -> bool:
        """Whether it is to be renewed when a page is asked for."""
        return int(time.time()) - self.seen_at >= RENEW_SECS


def new_cookie(token: bytes, tenant_id: UUID) -> Cookie:
    """A new visit; nothing of one before is kept (session fixation)."""
    now = int(time.time())
    csrf = base64.urlsafe_b64encode(os.urandom(24)).decode()
    return Cookie(token, tenant_id, os.urandom(_SECRET_BYTES), csrf, now + SESSION_SECS, now)


def cookie_of(request: Call) -> Cookie | None:
    """The cookie of a request, as it was sealed here; None when there is none that was."""
    name, key = _name(request), services_of(request).console_key
    values = headers(request.scope, b"cookie")
    pairs = (pair.strip().partition(b"=") for value in values for pair in value.split(b";"))
    for value in [value for found, _, value in pairs if found == name][:2]:
        if 0 < len(value) <= _MAX_COOKIE_BYTES:
            try:
                box = base64.b64decode(value, altchars=b"-_", validate=True)
                return msgspec.msgpack.decode(open_secret(key, box, context=_CONTEXT), type=Cookie)
            except (KeyMaterialError, ValueError):
                continue
    return None


def set_cookie(request: Call, cookie: Cookie) -> tuple[bytes, bytes]:
    """The ``Set-Cookie`` header with this cookie, as of now."""
    now = int(time.time())
    box = seal_secret(
        services_of(request).console_key,
        msgspec.msgpack.encode(msgspec.structs.replace(cookie, seen_at=now)),
        context=_CONTEXT,
        nonce=os.urandom(_NONCE_BYTES),
    )
    return _header(request, base64.urlsafe_b64encode(box), max(cookie.expires_at - now, 0))


def no_cookie(request: Call) -> tuple[bytes, bytes]:
    """The ``Set-Cookie`` header that takes it away."""
    return _header(request, b"", 0)


def _header(request: Call, value: bytes, secs: int) -> tuple[bytes, bytes]:
    secure = b"; Secure" if _is_secure(request) else b""
    text = b"%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax%s" % (_name(request), value, secs, secure)
    return b"set-cookie", text


def _name(request: Call) -> bytes:
    # With this prefix browsers take it from this very host alone, and by TLS: no neighbour can plant one.
    return b"__Host-" + _NAME if _is_secure(request) else _NAME


def _is_secure(request: Call) -> bool:
    # Browsers keep Secure cookies of plain HTTP on the loopback names only in part, so there it is left out.
    hosts = headers(request.scope, b"host")
    return not (hosts and name_in(hosts[0]) in _LOOPBACK)
