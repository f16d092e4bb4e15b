"""Compares the JSONB mirror of a payload with the payload itself: as JSON values, numbers exactly.

JSONB reorders keys and rewrites exponents, so texts cannot be compared; doubles would call two numbers equal
that differ in their twentieth digit.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from app.chain.strict import JsonValue


def same_payload(mirror: str | None, payload: JsonValue) -> bool:
    """Whether the text of a JSONB value says exactly what ``payload`` (strictly parsed) says.

    Args:
        mirror: ``trace_data::text``; None when the column is NULL.
        payload: the payload of the verified record, floats in their shortest digits.
    """
    if mirror is None:
        return False
    try:
        found = json.loads(mirror, parse_float=Decimal, parse_int=_integer)
    except (ValueError, RecursionError):
        return False
    return _same(found, payload)


def _integer(digits: str) -> int | Decimal:
    """JSONB spells 1e300 with 301 digits; such a number is compared as a decimal."""
    return int(digits) if len(digits) <= 256 else Decimal(digits)


def _same(found: Any, said: JsonValue) -> bool:  # noqa: ANN401  whatever the text holds
    if isinstance(said, dict):
        names = isinstance(found, dict) and found.keys() == said.keys()
        return names and all(_same(found[name], value) for name, value in said.items())
    if isinstance(said, list):
        items = isinstance(found, list) and len(found) == len(said)
        return items and all(map(_same, found, said))
    if said is None or isinstance(said, (bool, str)):
        return type(found) is type(said) and bool(found == said)
    # The shortest digits of a double are what the signed text says.
    exact = Decimal(repr(said)) if isinstance(said, float) else said
    return type(found) in {int, Decimal} and bool(found == exact)
