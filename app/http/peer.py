"""Where a request comes from: the socket's peer, or whom a trusted proxy says it speaks for (case H12).

``X-Forwarded-For`` is a header like any other: whoever connects may write it. It counts only when the
socket's peer is a proxy that the installation names, and of it only what such proxies wrote: read from its
right end, where each proxy adds the address it was called from, up to the first that is none of them.
``Forwarded`` and ``X-Real-IP`` are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from litestar.types import Scope

from app.http.exchange import headers

Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]
Address: TypeAlias = IPv4Address | IPv6Address

NOBODY: Final = "unknown"
"""The peer of a connection that has no address, such as one over a Unix socket."""

MAX_PROXIES: Final = 32
"""Entries of ``X-Forwarded-For`` that are looked at: more proxies than any chain of them has."""

MAX_ENTRY_CHARS: Final = 100
"""Of an entry: an IPv6 address with a zone and a port has fewer; what is longer is none."""

SITE_BITS: Final = 64
"""Of an IPv6 address: what is handed to one site, whose hosts choose the rest themselves."""

_CACHED: Final = 4_096
"""Addresses whose reading is remembered; reading one costs more than all the rest."""


def peer_of(scope: Scope, trusted: Networks) -> str:
    """The address that a request comes from, in its canonical form.

    Args:
        scope: the connection's.
        trusted: proxies whose ``X-Forwarded-For`` is believed; with none of them the header is not read.
    """
    client = scope.get("client")
    host = client[0] if client else NOBODY
    address = _address(host)
    if address is None:
        return host
    if trusted and _is_in(address, trusted):
        address = _spoken_for(address, headers(scope, b"x-forwarded-for"), trusted)
    return str(address)


@lru_cache(maxsize=_CACHED)
def site_of(peer: str) -> str:
    """What failures of one peer are counted under: an IPv4 address, or the /64 of an IPv6 address."""
    address = _address(peer)
    if not isinstance(address, IPv6Address):
        return peer
    return str(ip_network((int(address), SITE_BITS), strict=False))


def _spoken_for(proxy: Address, values: Iterable[bytes], trusted: Networks) -> Address:
    """The right-most address that is no proxy of ours; the last proxy when one cannot be read."""
    last = proxy
    for entry in reversed(b",".join(values).rsplit(b",", MAX_PROXIES)):
        address = _entry(entry)
        if address is None:
            return last  # whoever wrote that, nothing to its left can be believed
        if not _is_in(address, trusted):
            return address
        last = address
    return last


def _entry(entry: bytes) -> Address | None:
    """An entry of the header: an address, also with a port (``192.0.2.1:80``, ``[2001:db8::1]:80``)."""
    text = entry.decode("latin-1").strip(" \t")
    if len(text) > MAX_ENTRY_CHARS:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return _address(text)


@lru_cache(maxsize=_CACHED)
def _address(text: str) -> Address | None:
    """An address without its zone; an IPv4 address that stands in an IPv6 one is itself."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=_CACHED)
def _is_in(address: Address, networks: Networks) -> bool:
    return any(address in network for network in networks)
