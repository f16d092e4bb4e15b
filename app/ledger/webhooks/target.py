"""Where webhooks may go: to public addresses by HTTPS, and to what the installation allows besides.

A URL is given by a tenant's operator, and the service calls it from inside its network. So what it leads to
is looked at for each request, after the name was resolved, and the request goes to exactly the address that
was looked at: no name can lead elsewhere a moment later.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from app.errors import BadRequestError

Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]
Address: TypeAlias = IPv4Address | IPv6Address

MAX_URL_CHARS: Final = 2_000
RESOLVE_SECS: Final = 5.0

_RESOLVING: Final = ThreadPoolExecutor(16, thread_name_prefix="resolving")
"""Threads of their own: looking a name up cannot be broken off, and whoever runs its name servers can let it
take half a minute. In the threads that all of the service shares, a few such names would hold up all."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL: Final = IPv6Network("2000::/3")
"""All that is given out for the internet (IANA). What lies outside may be wrapped IPv4 (``::127.0.0.1``,
``::ffff:0:127.0.0.1``) or of a site (``fec0::1``), which ``is_global`` does not know of in every Python."""

_INNER: Final = (
    IPv6Network("2002::/16"),
    IPv6Network("2001::/32"),
    IPv6Network("3fff::/20"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
)
"""What leads to other addresses than it says, or to machines of the provider's own."""

_SERVICES: Final = frozenset({IPv4Address("168.63.129.16")})
"""Addresses that look public, at which machines of a cloud ask about themselves."""

_PLAIN: Final = re.compile(r"[\x21-\x7e]+")


class TargetError(Exception):
    """An address that no webhook may go to, or none; the message names no address inside the network."""


def parse_url(text: str) -> SplitResult:
    """A webhook's URL.

    Raises:
        BadRequestError: it is none, or one with a user's name, which would be a secret in the clear.
    """
    if len(text) > MAX_URL_CHARS or _PLAIN.fullmatch(text) is None:
        raise BadRequestError(f"url: must be at most {MAX_URL_CHARS} characters of ASCII, without spaces")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadRequestError("url: is no URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or "\\" in text:
        raise BadRequestError("url: must be an http or https URL with a host")
    if "@" in parts.netloc or parts.fragment:
        raise BadRequestError("url: must have neither a user's name nor a fragment")
    return parts


def shown(url: SplitResult) -> str:
    """What may be told of a URL: path and query are often a secret."""
    return f"{url.scheme}://{url.netloc}"


def is_public(address: Address) -> bool:
    """Whether an address is one of the whole internet's, whatever it is wrapped in."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _GLOBAL:
            return False
    if any(address in network for network in _INNER):
        return False
    return address.is_global and not address.is_multicast and address not in _SERVICES


def is_allowed(address: Address, networks: Networks) -> bool:
    """Whether the installation lets webhooks go there although it is not public."""
    plain = address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
    return any(plain in network for network in networks)


def refuse_address(url: SplitResult, networks: Networks) -> None:
    """Refuses a URL that names an address where no webhook may go, so that whoever sets it up hears of it.

    What a name leads to is looked at whenever it is told something, and may be another address each time.

    Raises:
        BadRequestError: says what to give instead.
    """
    host = url.hostname or ""
    address = _literal(host)
    if address is None or is_allowed(address, networks):
        return
    if not is_public(address):
        raise BadRequestError(
            f"url: {host} is not a public address, and webhooks go to no other; an administrator of the "
            "service may allow its network (TRAILS_WEBHOOK_ALLOW)"
        )
    if url.scheme != "https":
        raise BadRequestError(f"url: {host} is a public address, and is told nothing without https")


def _literal(host: str) -> Address | None:
    """The address that a host is, in each form in which looking it up would take it for one."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f000001 and 2130706433 are addresses, too
    except OSError:
        return None


async def resolved(url: SplitResult, networks: Networks) -> Address:
    """The address that a request to the URL is to be sent to.

    Raises:
        TargetError: the name has none, or one that no webhook may go to.
    """
    host = url.hostname or ""
    addresses = await _addresses(host)
    for address in addresses:
        allowed = is_allowed(address, networks)
        if not allowed and not is_public(address):
            raise TargetError(f"{host} leads to an address that is not public (TRAILS_WEBHOOK_ALLOW)")
        if not allowed and url.scheme != "https":
            raise TargetError(f"{host} is public, and is told nothing without https")
    return addresses[0]


async def _addresses(host: str) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECS):
            look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
            found = await loop.run_in_executor(_RESOLVING, look_up)
    except (OSError, UnicodeError):
        raise TargetError(f"{host} has no address") from None
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    if not addresses:
        raise TargetError(f"{host} has no address")
    return addresses
