"""How long fault tests last: a short form with all tests, the long one with ``make faults``."""

from __future__ import annotations

import os
from typing import Final

FULL: Final = os.environ.get("TRAILS_TEST_FAULTS") == "full"
"""Whether the long form was asked for."""


def rounds(short: int, full: int) -> int:
    """How often something is done: ``short`` times with all tests, ``full`` times with ``make faults``."""
    return full if FULL else short
