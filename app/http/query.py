"""Queries, read exactly: ``after`` and ``limit`` of a page, times, and which fields there are (case H33)."""

from __future__ import annotations

import re

import msgspec

from app.errors import BadRequestError
from app.http.exchange import Call
from app.http.target import Query, one_field, parse_query
from app.trace.instant import parse_day_or_instant

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


def known_fields(request: Call, known: frozenset[str]) -> Query:
    """The query's fields; one that means nothing is refused, since an auditor would trust the answer.

    Raises:
        BadRequestError: a field that is not one of ``known``.
    """
    fields = parse_query(request.scope["query_string"])
    for name, _ in fields:
        if name not in known:
            raise BadRequestError(f"{name}: is no field of this query; there are {', '.join(sorted(known))}")
    return fields


def instant_of(fields: Query, name: str) -> int | None:
    """A field that is a time, as microseconds since the epoch.

    Raises:
        BadRequestError: it is none.
    """
    value = one_field(fields, name)
    if value is None:
        return None
    try:
        return parse_day_or_instant(value)
    except ValueError:
        plus = "; write its + as %2B" if " " in value else ""
        raise BadRequestError(
            f"{name}: must be a day such as 2026-11-30 (its start in UTC) or a time with its zone such as "
            f"2026-11-30T08:27:35Z{plus}"
        ) from None
