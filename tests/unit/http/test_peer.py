"""Whose request it is: socket and headers (case H12)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from app.http.peer import MAX_PROXIES, Networks, peer_of, site_of

PROXY = "10.0.0.7"
TRUSTED: Networks = (ip_network("10.0.0.0/24"), ip_network("2001:db8:1::/48"))


def peer(client: str | None, *headers: tuple[str, str], trusted: Networks = TRUSTED) -> str:
    scope: Any = {
        "client": None if client is None else (client, 4711),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    return peer_of(scope, trusted)


def forwarded(value: str, client: str = PROXY) -> str:
    return peer(client, ("X-Forwarded-For", value))


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Client-IP", "Via"])
def test_h12_a_forwarded_header_is_no_peer(name: str) -> None:
    assert peer("192.0.2.1", (name, "198.51.100.9")) == "192.0.2.1"
    assert peer("192.0.2.1", (name, "for=198.51.100.9")) == "192.0.2.1"
    assert peer(PROXY, (name, "198.51.100.9"), trusted=()) == PROXY


@pytest.mark.parametrize("name", ["Forwarded", "X-Real-IP"])
def test_h12_only_one_header_is_read_even_from_a_trusted_proxy(name: str) -> None:
    assert peer(PROXY, (name, "198.51.100.9")) == PROXY


def test_h12_what_a_client_wrote_before_its_proxy_did_does_not_count() -> None:
    assert forwarded("203.0.113.5") == "203.0.113.5"
    assert forwarded("1.1.1.1, 10.0.0.9, 203.0.113.5") == "203.0.113.5"
    assert forwarded("1.1.1.1, 203.0.113.5, 10.0.0.9,10.0.0.8") == "203.0.113.5"
    assert peer(PROXY, ("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "203.0.113.5")) == "203.0.113.5"


def test_h12_behind_proxies_alone_the_first_of_them_is_the_peer() -> None:
    assert forwarded("10.0.0.9, 10.0.0.8") == "10.0.0.9"
    assert peer(PROXY) == PROXY
    many = ", ".join(["203.0.113.5", *["10.0.0.9"] * (2 * MAX_PROXIES)])
    assert forwarded(many) == "10.0.0.9"


@pytest.mark.parametrize(
    "odd", ["", "unknown", "_hidden", "1.2.3", "café", "[", "::g", "1.2.3.4:5:6", "a:b", "::1%" + "z" * 99]
)
def test_h12_an_entry_that_is_no_address_ends_the_reading(odd: str) -> None:
    assert forwarded(odd) == PROXY
    assert forwarded(f"1.1.1.1, {odd}, 10.0.0.9") == "10.0.0.9"
    assert forwarded(f"{odd}, 203.0.113.5") == "203.0.113.5"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("203.0.113.5:443", "203.0.113.5"),
        ("[2001:DB8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8:0:0::1", "2001:db8::1"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
    ],
)
def test_an_address_has_one_form(written: str, address: str) -> None:
    assert forwarded(written) == address


def test_a_socket_of_both_families_is_the_same_peer() -> None:
    assert peer("::ffff:192.0.2.1") == "192.0.2.1"
    assert forwarded("203.0.113.5", client="::ffff:10.0.0.7") == "203.0.113.5"
    assert forwarded("203.0.113.5", client="2001:db8:1::7") == "203.0.113.5"
    assert peer("fe80::1%eth0") == "fe80::1"


def test_a_connection_without_an_address_is_somebody_all_the_same() -> None:
    assert peer(None, ("X-Forwarded-For", "1.1.1.1")) == "unknown"


def test_a_site_is_an_address_or_the_network_of_a_site() -> None:
    assert site_of("192.0.2.1") == "192.0.2.1"
    assert site_of("2001:db8::1") == site_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert site_of("2001:db8:0:1::1") != site_of("2001:db8::1")
    assert site_of("unknown") == "unknown"
