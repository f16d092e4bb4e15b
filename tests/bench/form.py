"""How much of everything is measured: the usual form, a tiny one that shows that it works, a long one."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class Form(Enum):
    """One form of the whole benchmark."""

    QUICK = "quick"
    """Everything runs once and little of it: its figures mean nothing."""

    USUAL = "usual"
    LONG = "long"
    """As usual, and the rows that a case wants for longer (P27) for as long as it says."""

    def pick(self, quick: T, usual: T, long: T | None = None) -> T:
        """One of three sizes; without a ``long`` one the usual is it."""
        if self is Form.QUICK:
            return quick
        return long if long is not None and self is Form.LONG else usual
