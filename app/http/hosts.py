"""By which names the service may be called: the ``Host`` header (case H13).

The service makes no link, redirect or address from ``Host``, and never reads ``X-Forwarded-Host``. What
remains is a browser that a foreign page leads here under a name of its own (DNS rebinding), and a proxy that
hands on what is not ours. So a service that only this machine reaches answers to local names alone, unless
``TRAILS_ALLOWED_HOSTS`` says others; one that listens to the network answers to any name until it is told.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from litestar.types import Scope

from app.errors import BadRequestError, MisdirectedError
from app.http.exchange import headers

ANY: Final = "*"

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that answer to any name: orchestrators probe the address of a process, whatever it is called."""

_LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")
_HOST: Final = re.compile(rb"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


class Hosts:
    """The names of one service.

    Args:
        names: names and addresses in lower case; ``*.example.com`` is every name below ``example.com``, ``*``
            any name.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._any = ANY in names
        self._names = frozenset(names)
        self._below = tuple(name[1:] for name in names if name.startswith("*."))

    def check(self, scope: Scope) -> None:
        """Refuses a request for somebody else. Ports say nothing: proxies and containers map them.

        Raises:
            BadRequestError: two ``Host`` headers, or none that is a name or address.
            MisdirectedError: a name that is not ours.
        """
        given = headers(scope, b"host")
        # HTTP/1.0 knows no Host; who comes without one was not sent by another site.
        name = name_in(given[0]) if given else None
        if len(given) > 1 or (given and name is None):
            raise BadRequestError("the Host header must be one name or address, with or without a port")
        if not self._any and not self._is_ours(name) and scope["path"] not in PROBES:
            raise MisdirectedError("this service is not called that; name it in TRAILS_ALLOWED_HOSTS")

    def _is_ours(self, name: str | None) -> bool:
        return name is not None and (name in self._names or name.endswith(self._below))


def served_at(allowed: tuple[str, ...] | None, bind_host: str) -> tuple[str, ...]:
    """The names of a service that listens at an address: those that are set, else local ones or any."""
    if allowed is not None:
        return allowed
    if not _is_local(bind_host):
        return (ANY,)
    own = f"[{bind_host}]" if ":" in bind_host else bind_host
    return (*_LOCAL, own.lower())


MAX_HOST_CHARS: Final = 300
"""Of a ``Host``: a name has 253 at most (RFC 1035). What is longer is none, and is not remembered."""


def name_in(value: bytes) -> str | None:
    """The name of a ``Host`` in lower case, without port and final dot; None when there is none."""
    return _known_name(value) if len(value) <= MAX_HOST_CHARS else None


@lru_cache(maxsize=1_024)
def _known_name(value: bytes) -> str | None:
    match = _HOST.fullmatch(value)
    if match is None:
        return None
    name = match[1].decode().lower()
    return name.removesuffix(".") or None


def _is_local(bind_host: str) -> bool:
    try:
        return ip_address(bind_host).is_loopback
    except ValueError:
        return bind_host.lower() == "localhost"
