"""Paging fields (case H33)."""

from __future__ import annotations

from typing import Any

import pytest
from litestar.connection import Request

from app.errors import BadRequestError
from app.http.query import Page, page_of, seq_of


def request(query: bytes) -> Request[Any, Any, Any]:
    return Request({"type": "http", "query_string": query, "headers": []})  # type: ignore[arg-type]  # what is read


def test_h33_the_default_and_the_most() -> None:
    assert page_of(request(b""), default=500, most=5_000) == Page(None, 500)
    assert page_of(request(b"limit=5000&after=7"), default=500, most=5_000) == Page("7", 5_000)
    assert page_of(request(b"limit=5001"), default=500, most=5_000) == Page(None, 5_000)


@pytest.mark.parametrize("limit", ["0", "00", "-1", "1e9", "x", "", "1.0", "9" * 20])
def test_h33_a_limit_that_is_none(limit: str) -> None:
    with pytest.raises(BadRequestError, match="limit"):
        page_of(request(f"limit={limit}".encode()), default=500, most=5_000)


def test_h33_a_seq() -> None:
    assert seq_of(None) is None
    assert (seq_of("0"), seq_of("9223372036854775807")) == (0, 2**63 - 1)
    for text in ("", "-1", "x", "1.0", "9223372036854775808", "٣"):
        with pytest.raises(BadRequestError, match="after"):
            seq_of(text)
