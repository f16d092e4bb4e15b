"""The request target as raw bytes (cases G21, H11, H19)."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequestError
from app.http.target import check_path, one_field, parse_query


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/healthz",
        b"/v1/agents",
        b"/v1/agents/mail-er_1/actions/act-1/outcome",
        b"/v1/agents/%6dailer",
        b"/v1/agents/caf%C3%A9",
        b"/v1/agents/a%20b",
        b"/v1/agents/..",
        b"/schema/",
    ],
)
def test_a_path_with_one_reading_passes(path: bytes) -> None:
    check_path(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (b"/v1/agents/%", "broken"),
        (b"/v1/agents/%4", "broken"),
        (b"/v1/agents/%zz", "broken"),
        (b"/v1/agents/%ff", "UTF-8"),
        (b"/v1/agents/%ed%a0%80", "UTF-8"),
        (b"/v1/agents/\xff", "UTF-8"),
        (b"/v1/agents/%00", "control"),
        (b"/v1/agents/a\x7f", "control"),
        (b"/v1/agents/a%C2%85", "control"),
        (b"/v1/agents/a%0d%0ab", "control"),
        (b"/v1/agents/%2f", "slash"),
        (b"/v1/agents/..%2F..%2fetc", "slash"),
        (b"/v1/agents/a%5cb", "slash"),
        (b"/v1/agents/a\\b", "slash"),
        (b"/v1/agents/%252e", "twice"),
        (b"/v1/agents/%25", "twice"),
        (b"/v1//agents", "empty"),
        (b"//", "empty"),
        (b"/v1/agents/", "empty"),
    ],
)
def test_a_path_with_more_than_one_reading_is_refused(path: bytes, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        check_path(path)


@given(
    st.lists(
        st.sampled_from([b"/", b"a", b".", b"%2e", b"%2f", b"%25", b"%", b"\\", b"%c3%a9", b"%00"]),
        max_size=12,
    )
)
def test_what_passes_is_decoded_once_and_keeps_its_segments(parts: list[bytes]) -> None:
    raw = b"/" + b"".join(parts)
    try:
        check_path(raw)
    except BadRequestError:
        return
    once = unquote_to_bytes(raw)
    assert unquote_to_bytes(once) == once
    assert once.count(b"/") == raw.count(b"/")
    assert b"\0" not in once
    once.decode()


def test_a_query_is_read_in_order() -> None:
    assert parse_query(b"after=1&limit=%35&x=&y=a+b&y=%C3%A9") == [
        ("after", "1"),
        ("limit", "5"),
        ("x", ""),
        ("y", "a b"),
        ("y", "é"),
    ]


@pytest.mark.parametrize(
    "query", [b"q=%ff", b"q=%00", b"q=%", b"\xff=1", b"q=\xc3\xa9", b"&".join([b"a=1"] * 21)]
)
def test_a_query_that_is_none_is_refused(query: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_query(query)


@pytest.mark.parametrize(
    "name", ["token", "api_key", "access_token", "apikey", "authorization", "Token", "t%6fken"]
)
def test_h19_a_credential_in_the_query_is_refused_without_repeating_it(name: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_query(f"{name}=s3cret".encode())
    assert "s3cret" not in str(caught.value)


def test_a_field_is_given_once_or_not_at_all() -> None:
    fields = parse_query(b"a=1&b=2&b=3")
    assert one_field(fields, "a") == "1"
    assert one_field(fields, "c") is None
    with pytest.raises(BadRequestError, match="b:"):
        one_field(fields, "b")
