"""Who is calling: the ``Authorization`` header of a request becomes a ``Principal`` (case H18)."""

from __future__ import annotations

from litestar.types import Scope

from app.errors import UnauthorizedError
from app.http.exchange import exchange_in, headers
from app.principal import Principal


def authenticate(scope: Scope) -> Principal:
    """The caller, proven by its token; remembered for the rest of the request.

    Raises:
        UnauthorizedError: no header, two of them, or no token of ours.
    """
    exchange = exchange_in(scope)
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
