"""Times: microseconds since 1970-01-01 UTC, as records count them, and datetimes, as PostgreSQL has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def from_microseconds(at_us: int) -> datetime:
    """Microseconds since the epoch as an aware time, exactly."""
    return _EPOCH + timedelta(microseconds=at_us)


def to_microseconds(moment: datetime) -> int:
    """An aware time as microseconds since the epoch, exactly."""
    return (moment - _EPOCH) // _MICROSECOND
