"""Cross-origin requests of browsers: closed, but for origins that ``TRAILS_CORS_ORIGINS`` names (case H32).

Unless origins are named no answer carries a header of CORS, so that no page of another origin reads anything.
Those named are compared whole, byte for byte as browsers write them. Credentials that a browser holds by
itself (cookies, certificates) are never allowed: callers send a bearer token, which a page has to know.

Litestar's own support is not used: it tells every origin which methods and headers are allowed, and puts
``Vary`` only on what an allowed origin gets, so that a cache could hand that to others and the reverse.
"""

from __future__ import annotations

from typing import Final

from litestar.types import HTTPScope

from app.http.exchange import headers

Headers = list[tuple[bytes, bytes]]

MAX_AGE_SECS: Final = 600
"""How long a browser may remember the answer to a preflight."""

_TAKEN: Final = b"authorization, content-type, idempotency-key, x-request-id"
"""Request headers that mean something to the service, beside those that every page may send."""

_SHOWN: Final = b"retry-after, trails-receipt, www-authenticate, x-request-id"
"""Answer headers that a page may read, beside those that every page may."""


class Cors:
    """What is added to answers.

    Args:
        origins: allowed ones, each ``scheme://host[:port]`` as browsers write it.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, scope: HTTPScope, own: Headers) -> Headers:
        """The headers to add to an answer.

        A preflight is answered by whatever answers OPTIONS on its path: the methods that it says are allowed.

        Args:
            scope: the request's.
            own: headers of the answer.
        """
        added = [(b"vary", b"Origin")]
        given = headers(scope, b"origin")
        if len(given) != 1 or given[0] not in self._origins:
            return added
        added.append((b"access-control-allow-origin", given[0]))
        if scope["method"] != "OPTIONS" or not headers(scope, b"access-control-request-method"):
            added.append((b"access-control-expose-headers", _SHOWN))
            return added
        for name, value in own:
            if name == b"allow":
                added.append((b"access-control-allow-methods", value))
                added.append((b"access-control-allow-headers", _TAKEN))
                added.append((b"access-control-max-age", str(MAX_AGE_SECS).encode()))
        return added
