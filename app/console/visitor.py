"""Who looks at the console: a person's key, signed in, in a cookie that only this service can read.

The cookie holds the key itself, sealed under a key that is derived from the master key. So a signed-in page
is authenticated exactly as the same key would be at the API, at every request: one that was revoked, expired,
or whose tenant does not verify, is refused here, too, and no process has to know of another's visitors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from app.api_key import PREFIX
from app.chain.keys import open_secret, seal_secret
from app.errors import ForbiddenError, KeyMaterialError, TrailsError, UnauthorizedError
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, Services, exchange_in, headers, services_of
from app.http.hosts import name_in
from app.http.peer import peer_of, site_of
from app.principal import Grant, Permission, Principal, Role, grant

COOKIE: Final = b"trails_session"
SESSION_SECS: Final = 8 * 3_600
"""A visit ends after a working day, whatever happens meanwhile."""

ROLES: Final = frozenset({Role.OPERATOR, Role.AUDITOR})
"""Whose keys open the console."""

_CONTEXT: Final = b"console-session/v1"
_NONCE_BYTES: Final = 12
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_MAX_COOKIE_BYTES: Final = 4_096


class SignInNeededError(Exception):
    """Nobody is signed in, or not any more; the page is asked for again afterwards."""


class _Sealed(msgspec.Struct, frozen=True):
    token: bytes
    expires_at: int
    csrf: str


class Visitor(msgspec.Struct, frozen=True):
    """A signed-in person.

    Attributes:
        principal: who, as at the API.
        csrf: what every form of this visit carries.
        expires_at: when the visit ends, in seconds since 1970.
        waiting: how many actions wait for a person, for the head of the page.
    """

    principal: Principal
    csrf: str
    expires_at: int
    waiting: int = 0

    @property
    def name(self) -> str:
        """The name of the key that is signed in."""
        return self.principal.name

    def may(self, permission: str) -> bool:
        """Whether a page offers this: the same table as the API's."""
        try:
            grant(self.principal, Permission(permission))
        except ForbiddenError:
            return False
        return True


async def principal_of(services: Services, token: bytes) -> Principal:
    """Whose key this is.

    Raises:
        UnauthorizedError: it is none of ours, or not any more.
        ForbiddenError: a key that does not open the console.
        TenantQuarantinedError, UnavailableError: as at the API.
    """
    if token.startswith(PREFIX.encode()):
        principal = await services.ledger.caller(token)
    else:
        principal = services.tokens.authenticate(b"Bearer " + token)
    if principal.role not in ROLES:
        raise ForbiddenError(
            f"a key of role {principal.role} does not open the console; use an operator's or auditor's"
        )
    return principal


def begin_visit(request: Call, token: bytes) -> tuple[bytes, bytes]:
    """The ``Set-Cookie`` header that signs a proven key in."""
    until = int(time.time()) + SESSION_SECS
    sealed = _Sealed(token, until, base64.urlsafe_b64encode(os.urandom(24)).decode())
    box = seal_secret(
        services_of(request).console_key,
        msgspec.msgpack.encode(sealed),
        context=_CONTEXT,
        nonce=os.urandom(_NONCE_BYTES),
    )
    return _set_cookie(request, base64.urlsafe_b64encode(box), SESSION_SECS)


def end_visit(request: Call) -> tuple[bytes, bytes]:
    """The ``Set-Cookie`` header that signs out."""
    return _set_cookie(request, b"", 0)


async def visitor_of(request: Call) -> Visitor:
    """Who is signed in.

    Raises:
        SignInNeededError: nobody, or the visit or the key has ended.
        TooManyRequestsError, TenantQuarantinedError, UnavailableError: as at the API.
    """
    exchange = exchange_in(request.scope)
    services = exchange.services
    sealed = _opened(services, _cookies(headers(request.scope, b"cookie")))
    if sealed is None or sealed.expires_at <= time.time():
        raise SignInNeededError
    try:
        principal = await principal_of(services, sealed.token)
    except (UnauthorizedError, ForbiddenError):
        raise SignInNeededError from None
    exchange.principal = services.limits.admit(principal)
    return Visitor(principal, sealed.csrf, sealed.expires_at)


async def visit(request: Call) -> tuple[Visitor, Grant]:
    """Who is signed in, and the grant for what the page is for; ids of the path are checked.

    Raises:
        SignInNeededError: as ``visitor_of``.
        BadRequestError, ForbiddenError: as at the API.
    """
    visitor = await visitor_of(request)
    permission: Permission = request.route_handler.opt[PERMISSION]
    ids = request.scope["path_params"]
    agent_id = check_agent_id(ids["agent_id"]) if "agent_id" in ids else None
    given = grant(visitor.principal, permission, agent_id)
    waiting = await services_of(request).ledger.approvals_waiting(given)
    return msgspec.structs.replace(visitor, waiting=waiting), given


async def require_visit(request: Call) -> None:
    """Refuses a visitor that was let in and would not be now. For answers that go on: nothing is counted.

    Raises:
        UnauthorizedError: the visit or the key has ended.
        TenantQuarantinedError, UnavailableError: as at the API.
    """
    services = services_of(request)
    sealed = _opened(services, _cookies(headers(request.scope, b"cookie")))
    if sealed is None or sealed.expires_at <= time.time():
        raise UnauthorizedError
    await principal_of(services, sealed.token)


def check_form(request: Call, visitor: Visitor, given: str) -> None:
    """Refuses a form that this visit's own pages did not send (cross-site request forgery).

    Raises:
        ForbiddenError: another site's, or of an earlier visit.
    """
    check_origin(request)
    if not hmac.compare_digest(_digest(given), _digest(visitor.csrf)):
        raise ForbiddenError("this form belongs to an earlier visit; open the page again")


def check_origin(request: Call) -> None:
    """Refuses what the browser says another site has sent.

    Raises:
        ForbiddenError: it did.
    """
    for site in headers(request.scope, b"sec-fetch-site"):
        if site not in {b"same-origin", b"none"}:
            raise ForbiddenError("this form was sent by another site")
    hosts = headers(request.scope, b"host")
    for origin in headers(request.scope, b"origin"):
        if origin.partition(b"://")[2] != (hosts[0] if hosts else b""):
            raise ForbiddenError("this form was sent by another site")


def failure(request: Call) -> TrailsError:
    """Counts a sign-in with a key that is none; what to tell."""
    services = services_of(request)
    return services.limits.failure(site_of(peer_of(request.scope, services.settings.trusted_proxies or ())))


def sign_in_place(request: Call) -> str:
    """The sign-in page, which comes back to the page that was asked for."""
    scope = request.scope
    query = scope["query_string"].decode("latin-1")
    place = scope["path"] + (f"?{query}" if query else "")
    if scope["method"] != "GET" or place == "/":
        return "/sign-in"
    return "/sign-in?next=" + quote(place, safe="")


def _cookies(values: Sequence[bytes]) -> list[bytes]:
    pairs = (pair.strip().partition(b"=") for value in values for pair in value.split(b";"))
    return [value for name, _, value in pairs if name == COOKIE and value]


def _opened(services: Services, values: Sequence[bytes]) -> _Sealed | None:
    for value in values[:2]:
        if len(value) > _MAX_COOKIE_BYTES:
            continue
        try:
            box = base64.urlsafe_b64decode(value)
            return msgspec.msgpack.decode(
                open_secret(services.console_key, box, context=_CONTEXT), type=_Sealed
            )
        except (KeyMaterialError, ValueError):
            continue
    return None


def _set_cookie(request: Call, value: bytes, secs: int) -> tuple[bytes, bytes]:
    # Browsers keep Secure cookies of plain HTTP on the loopback names only in part, so there it is left out.
    hosts = headers(request.scope, b"host")
    secure = b"" if hosts and name_in(hosts[0]) in _LOOPBACK else b"; Secure"
    text = b"%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax%s" % (COOKIE, value, secs, secure)
    return b"set-cookie", text


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
