"""Paging: ``after`` and ``limit`` of a query, read exactly (case H33)."""

from __future__ import annotations

import re

import msgspec

from app.errors import BadRequestError
from app.http.exchange import Call
from app.http.target import one_field, parse_query

MAX_SEQ = 2**63 - 1

_DIGITS = re.compile(r"[0-9]{1,19}")


class Page(msgspec.Struct, frozen=True):
    """Which part of a list: what comes after ``after`` (None: from the start), at most ``limit`` of it."""

    after: str | None
    limit: int


def page_of(request: Call, *, default: int, most: int) -> Page:
    """Reads ``after`` and ``limit``; a limit above ``most`` counts as ``most``.

    Raises:
        BadRequestError: a limit that is no whole number from 1, or a field given twice.
    """
    fields = parse_query(request.scope["query_string"])
    limit = one_field(fields, "limit")
    if limit is None:
        return Page(one_field(fields, "after"), default)
    if _DIGITS.fullmatch(limit) is None or int(limit) < 1:
        raise BadRequestError("limit: must be a whole number from 1")
    return Page(one_field(fields, "after"), min(int(limit), most))


def seq_of(text: str | None) -> int | None:
    """``after`` of a log as a sequence number.

    Raises:
        BadRequestError: not a whole number from 0.
    """
    if text is None:
        return None
    if _DIGITS.fullmatch(text) is None or int(text) > MAX_SEQ:
        raise BadRequestError("after: must be the seq of a record, a whole number from 0")
    return int(text)
