"""Who looks at the console: a person's key, signed in, in a cookie that only this service can read.

The cookie holds the key itself, sealed under a key that is derived from the master key. So a signed-in page
is authenticated exactly as the same key would be at the API, at every request: one that was revoked, expired,
or whose tenant does not verify, is refused here, too. Whoever signs out ends the visit on every server
process: the cookie opens nothing any more, wherever a copy of it is.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from app.api_key import PREFIX
from app.chain.strict import JsonObject
from app.console.cookie import Cookie, cookie_of, new_cookie, no_cookie, set_cookie
from app.errors import ForbiddenError, TrailsError, UnauthorizedError
from app.http.access import PERMISSION, check_agent_id
from app.http.exchange import Call, Services, exchange_in, headers, services_of
from app.http.peer import peer_of, site_of
from app.principal import Grant, Permission, Principal, Role, grant

ROLES: Final = frozenset({Role.OPERATOR, Role.AUDITOR})
"""Whose keys open the console."""

_PAGE: Final = re.compile(rb"https?://[^/?#]*(/[^#]*)")
"""A page's whole address, as its script tells it; the group is path and query."""

_VISITOR: Final = "trails.visitor"

_log: Final = logging.getLogger("trails.console")


class SignInNeededError(Exception):
    """Nobody is signed in, or not any more; the page is asked for again afterwards."""


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


async def begin_visit(request: Call, token: bytes, principal: Principal) -> tuple[bytes, bytes]:
    """Signs a proven key in, and out whoever was signed in before; the ``Set-Cookie`` header.

    Raises:
        UnavailableError: the database is away.
    """
    ledger, before = services_of(request).ledger, cookie_of(request)
    if before is not None:
        await ledger.visits.end(before.tenant_id, before.visit_hash)
    cookie = new_cookie(token, principal.tenant_id)
    until_us = cookie.expires_at * 1_000_000
    await ledger.visits.begin(cookie.tenant_id, cookie.visit_hash, until_us=until_us)
    await _tell(request, principal, "signed_in")
    return set_cookie(request, cookie)


async def end_visit(request: Call, visitor: Visitor) -> tuple[bytes, bytes]:
    """Signs out, on every server process; the ``Set-Cookie`` header.

    Raises:
        UnavailableError: the database is away.
    """
    cookie = cookie_of(request)
    if cookie is not None:
        await services_of(request).ledger.visits.end(cookie.tenant_id, cookie.visit_hash)
    await _tell(request, visitor.principal, "signed_out")
    return no_cookie(request)


async def _tell(request: Call, principal: Principal, act: str) -> None:
    """Puts on the tenant's record who came and went; where nothing can be recorded one may still look."""
    administration = services_of(request).ledger.administration
    payload: JsonObject = {"act": act, "key": principal.key_id or principal.name}
    try:
        await administration.record(principal.tenant_id, principal.name, payload)
    except TrailsError as error:
        _log.warning("%s has %s, which is not on record: %s", principal.name, act, error.message)


async def visitor_of(request: Call, *, renews: bool = False) -> Visitor:
    """Who is signed in; ``renews``: a person asked for this page, so that the visit goes on.

    Raises:
        SignInNeededError: nobody, or the visit or the key has ended.
        TooManyRequestsError, TenantQuarantinedError, UnavailableError: as at the API.
    """
    exchange = exchange_in(request.scope)
    try:
        cookie, principal = await _still(request)
    except (UnauthorizedError, ForbiddenError):
        raise SignInNeededError from None
    exchange.principal = exchange.services.limits.admit(principal)
    if renews and cookie.is_due:
        exchange.cookies.append(set_cookie(request, cookie))
    visitor = Visitor(principal, cookie.csrf, cookie.expires_at)
    _notes_of(request)[_VISITOR] = visitor
    return visitor


def visitor_if_known(request: Call) -> Visitor | None:
    """Who is signed in, if this request has already found out: for a page that tells what went wrong."""
    return _notes_of(request).get(_VISITOR)


def has_visit(request: Call) -> bool:
    """Whether the browser holds a cookie of ours: nothing is proven by it, and it shows the way at most."""
    cookie = cookie_of(request)
    return cookie is not None and not cookie.is_over


def _notes_of(request: Call) -> dict[str, Any]:
    """The request's scope as what ASGI lets it be: a dictionary to which applications add keys."""
    return cast("dict[str, Any]", request.scope)


async def _still(request: Call) -> tuple[Cookie, Principal]:
    """Whose visit it is, which has not ended, and whose key is one.

    Raises:
        UnauthorizedError: the visit or the key has ended.
        ForbiddenError: the key does not open the console.
        TenantQuarantinedError, UnavailableError: as at the API.
    """
    services, cookie = services_of(request), cookie_of(request)
    if cookie is None or cookie.is_over:
        raise UnauthorizedError
    principal = await principal_of(services, cookie.token)
    if principal.tenant_id != cookie.tenant_id:
        raise UnauthorizedError
    if not await services.ledger.visits.is_open(cookie.tenant_id, cookie.visit_hash):
        raise UnauthorizedError
    return cookie, principal


async def visit(request: Call, *, renews: bool = True) -> tuple[Visitor, Grant]:
    """Who is signed in, and the grant for what the page is for; ids of the path are checked.

    What a page asks for by itself, now and then, does not renew the visit: its person may have left.

    Raises:
        SignInNeededError: as ``visitor_of``.
        BadRequestError, ForbiddenError: as at the API.
    """
    visitor = await visitor_of(request, renews=renews)
    permission: Permission = request.route_handler.opt[PERMISSION]
    ids = request.scope["path_params"]
    agent_id = check_agent_id(ids["agent_id"]) if "agent_id" in ids else None
    given = grant(visitor.principal, permission, agent_id)
    return await with_waiting(request, visitor), given


async def with_waiting(request: Call, visitor: Visitor) -> Visitor:
    """The visitor with how many actions wait for a person in the tenant, for the head of the page."""
    given = grant(visitor.principal, Permission.READ_PENDING)
    waiting = await services_of(request).ledger.approvals_waiting(given)
    return msgspec.structs.replace(visitor, waiting=waiting)


async def require_visit(request: Call) -> None:
    """Refuses a visitor that was let in and would not be now. For answers that go on: nothing is counted.

    Raises:
        UnauthorizedError: the visit or the key has ended.
        TenantQuarantinedError, UnavailableError: as at the API.
    """
    await _still(request)


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


def failure(request: Call, refusal: UnauthorizedError) -> TrailsError:
    """Counts a sign-in with a key that is none; what to tell."""
    services = services_of(request)
    return services.limits.failed_sign_in(
        site_of(peer_of(request.scope, services.settings.trusted_proxies or ())), refusal
    )


def sign_in_place(request: Call) -> str:
    """The sign-in page, which comes back to the page that was asked for, as it was asked for."""
    place = _page_of(request)
    if request.scope["method"] != "GET" or place == "/":
        return "/sign-in"
    return "/sign-in?next=" + quote(place, safe="")


def _page_of(request: Call) -> str:
    """Path and query of the page; of a part that its script asks for, those of the page around it."""
    for whole in headers(request.scope, b"hx-current-url"):
        page = _PAGE.match(whole)
        if page is not None:
            return page[1].decode("latin-1")
    query = request.scope["query_string"]
    return (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
