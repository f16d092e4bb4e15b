"""What a row of the benchmark is: our figure and its floor's, interleaved in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One figure against its floor; ``at_least`` and ``aim`` are ratios of the design, if it has some.

    ``cpu`` tells what a unit of ours costs, in microseconds of the server and of PostgreSQL, if it is known.
    """

    name: str
    unit: str
    ours: float
    floor: float
    at_least: float | None = None
    aim: float | None = None
    cpu: str = ""

    @property
    def ratio(self) -> float:
        """Ours as a multiple of the floor."""
        return self.ours / self.floor


def interleaved(
    name: str,
    unit: str,
    *,
    ours: Callable[[], float],
    floor: Callable[[], float],
    rounds: int,
    at_least: float | None = None,
    aim: float | None = None,
) -> Row:
    """Measures both sides in turn, so that a machine whose speed drifts moves both; medians count."""
    pairs = [(ours(), floor()) for _ in range(rounds)]
    return Row(
        name=name,
        unit=unit,
        ours=statistics.median(pair[0] for pair in pairs),
        floor=statistics.median(pair[1] for pair in pairs),
        at_least=at_least,
        aim=aim,
    )
