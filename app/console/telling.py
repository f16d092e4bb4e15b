"""How pages write times, lengths of time, counts and names: filters of the templates."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Final

from app.chain.record import format_timestamp
from app.console.json_text import visible
from app.console.page import TEMPLATES
from app.console.waterfall import in_words
from app.errors import FormatError

NONE: Final = "\N{EN DASH}"
"""What is not there."""

_THOUSAND: Final = 1_000
_MOST_IN_DIGITS: Final = 10**15


def moment(at: int | dt.datetime | None) -> str:
    """A time in UTC to the second: ``2026-11-30 08:27:35``."""
    if at is None:
        return NONE
    if isinstance(at, int):
        try:
            return format_timestamp(at)[:19].replace("T", " ")
        except FormatError:
            return f"{at} µs"
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}"


def count(number: int | Decimal | None) -> str:
    """A count with its thousands set apart."""
    return NONE if number is None else f"{number:,}"


def amount(number: float | Decimal | None) -> str:
    """A cost as it was sent, to five digits or all that are before the point."""
    if number is None:
        return NONE
    size = abs(Decimal(number))
    if size >= _MOST_IN_DIGITS:
        return f"{Decimal(number):.3e}"
    if isinstance(number, int):
        return f"{number:,}"
    if size >= _THOUSAND:
        return f"{number:,.0f}"
    text = f"{number:.5f}".rstrip("0").rstrip(".")
    return text if text not in {"0", "-0"} or number == 0 else f"{number:.2e}"


def length(us: int | dt.timedelta | None) -> str:
    """A length of time in words."""
    if us is None:
        return NONE
    micros = us // dt.timedelta(microseconds=1) if isinstance(us, dt.timedelta) else us
    return in_words(max(0, micros))


def millis(ms: Decimal | None) -> str:
    """Milliseconds as a length of time; what cannot be one as it was sent."""
    if ms is None:
        return NONE
    return in_words(int(ms * 1000)) if 0 <= ms <= 10**12 else f"{ms:.3g} ms"


TEMPLATES.filters.update(
    moment=moment, count=count, amount=amount, length_of=length, millis=millis, visible=visible
)
