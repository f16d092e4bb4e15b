"""gzip never comes out further than the limit, whatever the body says of itself (case H02)."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from app.errors import PayloadTooLargeError
from app.http.inflate import Collected, Inflated

MIB = 1024 * 1024
BOMB = gzip.compress(bytes(64 * MIB), 9)


def feed(body: Collected, sent: bytes, step: int) -> None:
    for start in range(0, len(sent), step):
        body.take(sent[start : start + step])


def test_no_more_than_the_limit_is_ever_inflated() -> None:
    body = Inflated(MIB)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLargeError):
            body.take(BOMB)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 999, 1_000])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_what_is_within_the_limit_comes_out_as_it_went_in(size: int, step: int) -> None:
    plain = bytes(n % 251 for n in range(size))
    for body, sent in ((Inflated(1_000), gzip.compress(plain)), (Collected(1_000), plain)):
        feed(body, sent, step)
        assert body.finish() == plain


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_one_byte_above_the_limit_is_too_much(step: int) -> None:
    plain = bytes(n % 251 for n in range(1_001))
    for body, sent in ((Inflated(1_000), gzip.compress(plain)), (Collected(1_000), plain)):
        with pytest.raises(PayloadTooLargeError):
            feed(body, sent, step)


def test_what_goes_in_is_limited_as_well() -> None:
    body = Inflated(1_000)
    with pytest.raises(PayloadTooLargeError):
        feed(body, gzip.compress(b"") * 100, 20)
