"""Who is calling: the ``Authorization`` header of a request becomes a ``Principal`` (case H18).

The tokens of the installation are proven on the spot. An API key is looked up, and whether an agent's token
was revoked, which the edge does before the routes: ``prepare`` keeps who it is, or why not, for whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litestar.types import Scope

from app.api_key import PREFIX
from app.errors import TrailsError, UnauthorizedError
from app.http.exchange import Exchange, exchange_in, headers
from app.http.peer import peer_of, site_of
from app.principal import Principal, Role
from app.tokens import AGENT_PREFIX, bearer_of


async def prepare(scope: Scope, exchange: Exchange) -> None:
    """Looks up an API key or an agent's token; a refusal is raised when a route asks who calls."""
    given = headers(scope, b"authorization")
    if len(given) != 1:
        return
    services = exchange.services
    try:
        if _KEY_PREFIX in given[0]:
            exchange.holder = await services.ledger.caller(bearer_of(given[0]))
        elif _AGENT_PREFIX in given[0]:
            agent = services.tokens.authenticate(given[0])
            await services.ledger.require_in_force(agent)
            exchange.holder = agent
    except TrailsError as error:
        exchange.refusal = error


_KEY_PREFIX: Final = f" {PREFIX}".encode()
_AGENT_PREFIX: Final = f" {AGENT_PREFIX}".encode()


async def require_still(scope: Scope) -> None:
    """Refuses a caller that was let in and would not be now. For answers that go on: nothing is counted.

    Raises:
        UnauthorizedError: its key was revoked or has expired, or its agent's token was revoked.
        TenantQuarantinedError: its tenant's administration chain does not verify.
        UnavailableError: the database is away.
    """
    services = exchange_in(scope).services
    given = headers(scope, b"authorization")
    if not given:
        raise UnauthorizedError
    if _KEY_PREFIX in given[0]:
        await services.ledger.caller(bearer_of(given[0]))
    elif _AGENT_PREFIX in given[0]:
        await services.ledger.require_in_force(services.tokens.authenticate(given[0]))


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
        except UnauthorizedError as refusal:
            if not given:
                raise
            trusted = exchange.services.settings.trusted_proxies or ()
            raise limits.failure(site_of(peer_of(scope, trusted)), refusal) from None
        exchange.principal = limits.admit(proven)
    return exchange.principal


async def authenticate_by_row(scope: Scope) -> Principal:
    """Whose API key it is, as its row says, while nobody knows what the tenant's records say of it.

    Raises:
        UnauthorizedError: it is no API key, or revoked or expired by its row.
        TooManyRequestsError: the key is over its limit.
        UnavailableError: it could not be looked up.
    """
    exchange = exchange_in(scope)
    services = exchange.services
    holder = await services.ledger.holder(bearer_of(headers(scope, b"authorization")[0]))
    exchange.principal = services.limits.admit(holder)
    return exchange.principal


def _proven(exchange: Exchange, given: Sequence[bytes]) -> Principal:
    if exchange.refusal is not None:
        raise exchange.refusal
    if exchange.holder is not None:
        return exchange.holder
    if len(given) > 1:
        raise UnauthorizedError
    principal = exchange.services.tokens.authenticate(given[0] if given else None)
    if principal.role is Role.AGENT:  # nobody has looked whether it is in force
        raise UnauthorizedError
    return principal


def authenticate_if_given(scope: Scope) -> Principal | None:
    """The caller, or None when the request carries no ``Authorization`` at all.

    Raises:
        UnauthorizedError: a header that is not valid; it never counts as none.
        TooManyRequestsError: as ``authenticate``.
    """
    return authenticate(scope) if headers(scope, b"authorization") else None
