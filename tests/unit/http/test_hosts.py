"""By which names a service may be called (case H13)."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import BadRequestError, MisdirectedError
from app.http.hosts import ANY, Hosts, name_in, served_at


def check(names: tuple[str, ...], *hosts: bytes, path: str = "/v1/agents") -> None:
    scope: Any = {"path": path, "headers": [(b"host", host) for host in hosts]}
    Hosts(names).check(scope)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"trails.example.com", "trails.example.com"),
        (b"TRAILS.example.com:443", "trails.example.com"),
        (b"trails.example.com.:80", "trails.example.com"),
        (b"trails_app:9200", "trails_app"),
        (b"127.0.0.1", "127.0.0.1"),
        (b"[::1]:9200", "[::1]"),
        (b"[2001:DB8::1]", "[2001:db8::1]"),
        (b"x:", "x"),
    ],
)
def test_a_name_is_read_without_case_port_and_final_dot(value: bytes, name: str) -> None:
    assert name_in(value) == name
    check((ANY,), value)


def test_what_is_longer_than_any_name_is_none() -> None:
    assert name_in(b"a" * 300) == "a" * 300
    assert name_in(b"a" * 301) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b".",
        b":80",
        b"a b",
        b"a,b",
        b"a@b",
        b"http://a",
        b"a/b",
        b"a:80:80",
        b"a:x",
        b"a:123456",
        b"::1",
        b"[::1",
        b"[a]b",
        b"caf\xe9",
        b"a%2eb",
        b"a\\b",
        b"*",
        b"*.example.com",
    ],
)
def test_h13_a_host_that_is_none_is_refused_whatever_is_allowed(value: bytes) -> None:
    for names in ((ANY,), ("example.com", "*.example.com")):
        with pytest.raises(BadRequestError, match="Host header"):
            check(names, value)


def test_h13_two_hosts_are_refused() -> None:
    with pytest.raises(BadRequestError):
        check((ANY,), b"a", b"a")


@pytest.mark.parametrize("value", [b"evil.example", b"127.0.0.1", b"xtrails.example.com", b"example.com"])
def test_h13_a_name_that_is_not_ours_is_refused_and_the_setting_named(value: bytes) -> None:
    with pytest.raises(MisdirectedError, match="TRAILS_ALLOWED_HOSTS") as caught:
        check(("trails.example.com",), value)
    assert value.decode() not in str(caught.value)


def test_h13_a_star_stands_for_what_is_below_and_nothing_else() -> None:
    names = ("*.example.com",)
    check(names, b"trails.example.com")
    check(names, b"a.b.EXAMPLE.com:1")
    for other in (b"example.com", b"evilexample.com", b"a.example.com.evil.example", b"a.example.org"):
        with pytest.raises(MisdirectedError):
            check(names, other)


def test_h13_without_a_host_only_a_service_of_any_name_answers() -> None:
    check((ANY,))
    with pytest.raises(MisdirectedError):
        check(("trails.example.com",))


def test_probes_are_answered_by_any_name_that_is_one() -> None:
    for path in ("/healthz", "/readyz"):
        check(("trails.example.com",), b"10.1.2.3:9200", path=path)
        with pytest.raises(BadRequestError):
            check(("trails.example.com",), b"a b", path=path)


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.53", "::1", "localhost", "LOCALHOST"])
def test_h13_on_a_local_address_only_local_names_are_ours(bind: str) -> None:
    names = served_at(None, bind)
    for ours in (b"localhost:9200", b"127.0.0.1:9200", b"[::1]:9200"):
        check(names, ours)
    check(names, f"[{bind}]".encode() if ":" in bind else bind.encode())
    for other in (b"evil.example", b"localhost.evil.example", b"10.0.0.1"):
        with pytest.raises(MisdirectedError):
            check(names, other)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "trails.internal"])  # noqa: S104  not bound
def test_on_the_network_any_name_is_ours_until_names_are_set(bind: str) -> None:
    assert served_at(None, bind) == (ANY,)
    assert served_at(("a",), bind) == served_at(("a",), "127.0.0.1") == ("a",)
