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
from app.principal import Principal
from app.tokens import bearer_of


async def prepare(scope: Scope, exchange: Exchange) -> None:
    """Looks up the API key of a request that carries one; a refusal is raised when a route asks who calls."""
    given = headers(scope, b"authorization")
    if len(given) != 1 or _KEY_PREFIX not in given[0]:
        return
    try:
        exchange.principal = await exchange.services.ledger.caller(bearer_of(given[0]))
    except TrailsError as error:
        exchange.refusal = error


_KEY_PREFIX: Final = f" {PREFIX}".encode()


def authenticate(scope: Scope) -> Principal:
    """The caller, proven by its token; remembered for the rest of the request.

    Raises:
        UnauthorizedError: no header, two of them, or no token of ours.
        UnavailableError: an API key could not be looked up.
    """
    exchange = exchange_in(scope)
    if exchange.refusal is not None:
        raise exchange.refusal
    if exchange.principal is None:
        given = headers(scope, b"authorization")
        if len(given) > 1:
            raise UnauthorizedError
        exchange.principal = exchange.services.tokens.authenticate(given[0] if given else None)
    return exchange.principal


def authenticate_if_given(scope: Scope) -> Principal | None:
    """The caller, or None when the request carries no ``Authorization`` at all.

    Raises:
        UnauthorizedError: a header that is not valid; it never counts as none.
    """
    return authenticate(scope) if headers(scope, b"authorization") else None
