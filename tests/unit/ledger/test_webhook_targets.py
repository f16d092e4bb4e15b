"""Where webhooks may go, address by address: nothing that leads into the network, however it is written."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address, ip_network

import pytest

from app.errors import BadRequestError
from app.ledger.webhooks import target
from app.ledger.webhooks.target import TargetError, is_public, parse_url, refuse_address, resolved

INNER = """
    127.0.0.1 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 169.254.169.254 172.16.0.1 192.168.1.1 168.63.129.16
    192.0.0.8 192.0.0.192 192.88.99.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255
    ::1 ::127.0.0.1 ::169.254.169.254 ::ffff:127.0.0.1 ::ffff:168.63.129.16 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b:1::8.8.8.8 2002:7f00:1:: 2001:0:1::1 2001:db8::1 3fff::1 100::1 5f00::1
    fe80::1 fec0::1 fd00:ec2::254 ff02::1 ff0e::1
"""


@pytest.mark.parametrize("address", INNER.split())
def test_an_address_that_is_not_the_internets_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "192.0.1.1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111"]
)
def test_one_of_the_internet_is(address: str) -> None:
    assert is_public(ip_address(address))


WRITTEN = ["127.1", "0x7f000001", "2130706433", "017700000001", "[::1]", "[fe80::1%25eth0]", "10.0.0.1"]


@pytest.mark.parametrize("host", WRITTEN)
async def test_an_address_in_any_form_is_refused_when_it_is_given_and_when_it_is_told(host: str) -> None:
    url = parse_url(f"https://{host}/hook")
    with pytest.raises(BadRequestError, match="not a public address"):
        refuse_address(url, ())
    with pytest.raises(TargetError, match=r"not public|no address"):
        await resolved(url, ())


def test_an_address_that_is_allowed_and_any_name_are_not_refused() -> None:
    local = (ip_network("127.0.0.0/8"),)
    for host in ("127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "8.8.8.8", "localhost", "cafe.example", "dead"):
        refuse_address(parse_url(f"https://{host}/hook"), local)


async def test_names_that_take_long_hold_nobody_else_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers are their owner's: they answer when they like, in threads that nothing else waits for."""
    answered = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        assert answered.wait(20)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(target, "RESOLVE_SECS", 0.05)
    url = parse_url("https://slow.example/hook")
    try:
        found = await asyncio.gather(*(resolved(url, ()) for _ in range(100)), return_exceptions=True)
        assert {type(error) for error in found} == {TargetError}
        assert await asyncio.wait_for(asyncio.to_thread(int, "7"), 10) == 7
    finally:
        answered.set()
