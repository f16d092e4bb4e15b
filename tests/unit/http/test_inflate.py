"""gzip never comes out further than the limit, whatever the body says of itself (case H02)."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from app.errors import BadRequestError, PayloadTooLargeError
from app.http.inflate import MAX_MEMBERS, inflate, inflated_size

MIB = 1024 * 1024
BOMB = gzip.compress(bytes(64 * MIB), 9)


def test_no_more_than_the_limit_is_ever_inflated() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLargeError):
            inflate(BOMB, MIB)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 999, 1_000])
@pytest.mark.parametrize("members", [1, 2, 7])
def test_what_is_within_the_limit_comes_out_as_it_went_in(size: int, members: int) -> None:
    plain = bytes(n % 251 for n in range(size))
    step = size // members + 1
    sent = b"".join(gzip.compress(plain[n * step : (n + 1) * step]) for n in range(members))
    assert inflate(sent, 1_000) == plain
    assert inflated_size(sent, 1_000) == size


@pytest.mark.parametrize("split", [0, 1, 500, 1_000, 1_001])
def test_one_byte_above_the_limit_is_too_much(split: int) -> None:
    plain = bytes(n % 251 for n in range(1_001))
    for work in (inflate, inflated_size):
        with pytest.raises(PayloadTooLargeError):
            work(gzip.compress(plain[:split]) + gzip.compress(plain[split:]), 1_000)


def test_members_that_straddle_what_is_taken_at_a_time_are_read() -> None:
    noise = bytes((n * n * 31 + n // 7) % 256 for n in range(50_000))
    sent = gzip.compress(noise[:20_000], 0) + gzip.compress(noise[20_000:], 0)
    assert inflate(sent, MIB) == noise


def test_so_many_members_and_no_more() -> None:
    one = gzip.compress(b"x")
    assert inflate(one * MAX_MEMBERS, MIB) == b"x" * MAX_MEMBERS
    with pytest.raises(BadRequestError, match="members"):
        inflate(one * (MAX_MEMBERS + 1), MIB)


@pytest.mark.parametrize(
    "sent", [b"", b"x", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"x", b"\0" * 100], ids=range(5)
)
def test_what_is_no_gzip_is_refused(sent: bytes) -> None:
    with pytest.raises(BadRequestError):
        inflate(sent, MIB)
