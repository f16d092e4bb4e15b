"""Snapshots of PostgreSQL (``pg_snapshot``): which transactions had ended at a moment.

As ``pg_visible_in_snapshot`` they know of transactions, not of what savepoints begin within one. The service
writes records without savepoints.
"""

from __future__ import annotations

from typing import Self

import msgspec


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All transactions below ``xmin`` had ended, none from ``xmax`` on, of those between all but ``xip``."""

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads PostgreSQL's own form, ``xmin:xmax:xip,…``."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in xip.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"

    def shows(self, xid: int) -> bool:
        """Whether what the transaction wrote, and committed, is seen."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.xip)

    def covers(self, other: Snapshot) -> bool:
        """Whether it shows all that the other one shows."""
        ended = all(xid in other.xip for xid in self.xip if xid < other.xmax)
        return self.xmin >= other.xmin and self.xmax >= other.xmax and ended
