"""The one clock: microseconds since 1970-01-01 UTC, injected everywhere so that tests can set it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the present time in microseconds since the epoch, UTC."""


def system_clock() -> int:
    """The machine's wall clock in microseconds. May step back: sealing clamps a record's time."""
    return time.time_ns() // 1_000
