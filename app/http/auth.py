"""Who is calling: the ``Authorization`` header of a request becomes a ``Principal`` (case H18).

Tokens that are derived from the master key are proven on the spot. An API key is looked up, which the edge
does before the routes: ``prepare`` keeps who it is, or why not, for whoever asks.
"""

from __future__ import annotations

from typing import Final

from litestar.types import Scope

from app.api_key import PREFIX
from app.errors import TrailsError, UnauthorizedError
from app.http.exchange import Exchange, exchange_in, headers
from app.http.peer import peer_of, site_of
from app.principal import Principal
from app.tokens import bearer_of


async def prepare(scope: Scope, exchange: Exchange) -> None:
    """Looks up the API key of a request that carries one; a refusal is raised when a route asks who calls."""
    given = headers(scope, b"authorization")
    if len(given) != 1 or _KEY_PREFIX not in given[0]:
        return
    try:
        exchange.holder = await exchange.services.ledger.caller(bearer_of(given[0]))
    except TrailsError as error:
        exchange.refusal = error


_KEY_PREFIX: Final = f" {PREFIX}".encode()


def authenticate(scope: Scope) -> Principal:
    """The caller, proven by its token and counted once; remembered for the rest of the request.

    Raises:
        UnauthorizedError: no header, two of them, or no token of ours.
        TooManyRequestsError: the key, or the peer with its invalid tokens, is over its limit.
        UnavailableError: an API key could not be looked up.
    """
    exchange = exchange_in(scope)
    if exchange.principal is None:
        limits = exchange.services.limits
        given = headers(scope, b"authorization")
        try:
            proven = _proven(exchange, given)
        except UnauthorizedError:
            if not given:
                raise
            trusted = exchange.services.settings.trusted_proxies or ()
            raise limits.failure(site_of(peer_of(scope, trusted))) from None
        exchange.principal = limits.admit(proven)
    return exchange.principal


def _proven(exchange: Exchange, given: list[bytes]) -> Principal:
    if exchange.refusal is not None:
        raise exchange.refusal
    if exchange.holder is not None:
        return exchange.holder
    if len(given) > 1:
        raise UnauthorizedError
    return exchange.services.tokens.authenticate(given[0] if given else None)


def authenticate_if_given(scope: Scope) -> Principal | None:
    """The caller, or None when the request carries no ``Authorization`` at all.

    Raises:
        UnauthorizedError: a header that is not valid; it never counts as none.
        TooManyRequestsError: as ``authenticate``.
    """
    return authenticate(scope) if headers(scope, b"authorization") else None
