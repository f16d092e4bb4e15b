"""Instants that come in from outside: one written form of RFC 3339, read by one rule (cases C13, C14).

``YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)``, ``T`` and ``Z`` in upper case. A fraction may have any number
of digits and is cut to microseconds, never rounded, so that no instant moves into another second. ``-00:00``
is UTC. Refused: a time without a zone, second 60, hour 24, the basic format, week and ordinal dates, a
comma, a space for ``T``. The SQL function ``trails.instant_v1`` keeps the same rule.

One instant has one canonical spelling, that of a record's own time: ``app.chain.record.format_timestamp``.
"""

from __future__ import annotations

import datetime as dt
import re

from app.chain.record import format_timestamp
from app.errors import FormatError

FORM = "must be a time such as 2026-09-30T08:27:35.423031Z, with a zone (Z or ±HH:MM)"
"""What to tell whoever sent something else."""

MAX_AHEAD_US = 5 * 60 * 1_000_000
"""A time that a sender gives may be so far ahead of the service's own; more is shown as skewed."""

MAX_BEHIND_US = 24 * 60 * 60 * 1_000_000
"""A time that a sender gives may be so far behind, since what waited is delivered late."""

_FORM = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  UTC by definition; naive arithmetic is the faster
_MICROSECOND = dt.timedelta(microseconds=1)
_MICROSECOND_DIGITS = 6


def parse_instant(text: str) -> int:
    """Microseconds since 1970-01-01T00:00:00Z.

    Raises:
        ValueError: not of the one form, no such time, or outside the years 1 to 9999 in UTC; the message
            fits behind the name of a member.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(FORM)
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    micros = int((fraction or "0")[:_MICROSECOND_DIGITS].ljust(_MICROSECOND_DIGITS, "0"))
    try:
        moment = dt.datetime(  # noqa: DTZ001  as above
            int(year), int(month), int(day), int(hour), int(minute), int(second), micros
        )
    except ValueError:
        raise ValueError("is no time that exists (there is no second 60, no hour 24)") from None
    instant = (moment - _EPOCH) // _MICROSECOND
    if sign is not None:
        offset = (int(offset_hours) * 60 + int(offset_minutes)) * 60_000_000
        instant += offset if sign == "-" else -offset
        _check_year(instant)
    return instant


def parse_day_or_instant(text: str) -> int:
    """As ``parse_instant``; a date alone (``YYYY-MM-DD``) is the start of that day in UTC.

    For questions, in which one bound of a period is meant. What goes on record has a time of its own.
    """
    if _DAY.fullmatch(text):
        text = f"{text}T00:00:00Z"
    return parse_instant(text)


def canonical_instant(text: str) -> str:
    """The instant that ``text`` means in its one canonical spelling. Raises as ``parse_instant`` does."""
    return format_timestamp(parse_instant(text))


def is_skewed(said_us: int, recorded_us: int) -> bool:
    """Whether the time that a sender gave is too far from the service's own, both in µs (case T13)."""
    return not -MAX_BEHIND_US <= said_us - recorded_us <= MAX_AHEAD_US


def _check_year(instant: int) -> None:
    try:
        format_timestamp(instant)
    except FormatError:
        raise ValueError("is not within the years 1 to 9999 in UTC") from None
