"""What one process's ledger has done, in plain numbers: counting must cost nothing beside an append.

Who shows them (``app.http.metrics``) reads them when asked. Nothing here names an agent, a key or a tool.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec

from app.errors import ClaimRefusedError
from app.guard.answers import Allowed, Claimed, Denied, PendingApproval

if TYPE_CHECKING:
    from app.guard.answers import Act

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for durations: from a commit on a fast disk to the longest time-out."""

SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Bounds for how many share one commit."""

MAX_TENANTS: Final = 1_000
"""Tenants whose decisions are counted apart; those of further ones are counted together."""

OTHERS: Final = "(others)"
"""Stands for tenants beyond ``MAX_TENANTS``; no slug is written so."""

_VERDICTS: Final = {
    Allowed: "allowed",
    Denied: "denied",
    PendingApproval: "pending_approval",
    Claimed: "claimed",
}


class Distribution:
    """How values are spread over ``bounds``, each of which is part of what is below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Load(msgspec.Struct, frozen=True):
    """What a ledger holds at one moment.

    Attributes:
        chains: chains in memory.
        quarantined: those of them that do not verify.
        waiting: appends that wait for their statement.
        connections: open database connections, and those of them that nobody uses.
        most_connections: how many there may be.
    """

    chains: int
    quarantined: int
    waiting: int
    connections: int
    idle_connections: int
    most_connections: int


class HeadsMeter:
    """What became of the file of heads (``TRAILS_HEADS_FILE``).

    Attributes:
        at: when this process last knew it to be up to date, seconds since 1970; 0.0: none is kept.
        failures: rounds in which it could not be read or written.
        behind: chains of which more was seen than the table holds.
    """

    __slots__ = ("at", "behind", "failures")

    def __init__(self) -> None:
        self.at = 0.0
        self.failures = 0
        self.behind = 0


class Meter:
    """Counts since the process began. For one event loop.

    Attributes:
        records: records that are on disk; those of administration chains are not counted.
        appends: seconds from asking for an append to its being on disk.
        groups: appends that were sent in one statement.
        stale: times that another process was faster on a chain, so that it was read on.
        heads: the file of heads that this process helps to keep.
        broken: chains that were quarantined here.
        verified: records that were verified in the background.
        rounds: times that this got round all chains, the last time in ``round_secs``.
        covered_since: monotonic time since when each chain was verified in the background: the beginning of
            the last round that ended, or of the first one; None when it is off.
        decisions: what the guard put on record, by tenant's slug, verdict and the code of a denial.
    """

    __slots__ = (
        "appends",
        "broken",
        "covered_since",
        "decisions",
        "groups",
        "heads",
        "records",
        "round_secs",
        "rounds",
        "stale",
        "tenants",
        "verified",
    )

    def __init__(self) -> None:
        self.records = 0
        self.appends = Distribution(SECONDS)
        self.groups = Distribution(SIZES)
        self.stale = 0
        self.heads = HeadsMeter()
        self.broken = 0
        self.verified = 0
        self.rounds = 0
        self.round_secs = 0.0
        self.covered_since: float | None = None
        self.decisions: dict[tuple[str, str, str], int] = {}
        self.tenants: set[str] = set()

    def appended(self, records: int, seconds: float) -> None:
        """An append is on disk."""
        self.records += records
        self.appends.add(seconds)

    def decided(self, tenant: str, act: Act) -> None:
        """An act is on disk; one that is no decision counts as none."""
        if act.answer is not None:
            verdict, reason = _VERDICTS[type(act.answer)], getattr(act.answer, "reason", {})
        elif isinstance(act.refusal, ClaimRefusedError):
            verdict, reason = "claim_refused", act.refusal.reason
        else:
            return
        place = self._known(tenant), verdict, str(reason.get("code", ""))
        self.decisions[place] = self.decisions.get(place, 0) + 1

    def _known(self, tenant: str) -> str:
        if tenant not in self.tenants:
            if len(self.tenants) >= MAX_TENANTS:
                return OTHERS
            self.tenants.add(tenant)
        return tenant
