"""What a row of the benchmark is: our runs and the floor's, interleaved, and what they must reach.

A floor is measured in the same run, between our runs, so that a machine whose speed drifts moves both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from tests.bench.cpu import Meter, Spent


class Timed(msgspec.Struct, frozen=True):
    """One run: its figure, and how much of one core the program that measured spent meanwhile (0 to 1)."""

    figure: float
    generator: float | None = None


class Kind(Enum):
    """How a row's result comes of its figures."""

    RATIO = "ratio"
    """Ours as a multiple of the floor: the more, the better."""

    DIFFERENCE = "difference"
    """Ours less the floor: the less, the better."""

    LIMIT = "limit"
    """Ours alone: the less, the better. A floor is there to compare, if at all."""


class Side(msgspec.Struct, frozen=True):
    """The runs of one side, what a unit cost in CPU time, and the share of a core that the generator took."""

    runs: tuple[float, ...]
    spent: Spent | None = None
    generator: float | None = None

    @property
    def median(self) -> float:
        """The run in the middle."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """How far the runs lie apart, as a part of their median."""
        return (max(self.runs) - min(self.runs)) / self.median if self.median else 0.0


class Row(msgspec.Struct, frozen=True):
    """One figure against its floor.

    Attributes:
        key: the name that ``--row`` takes.
        name: what is measured, short.
        unit: of both figures.
        ours: our runs.
        floor: the floor's; None when there is none.
        floor_name: what the floor is.
        kind: how the result comes of both.
        bound: what the result has to reach (or may not exceed), if the design says.
        aim: what it should reach.
        note: what else a reader has to know; may be empty.
    """

    key: str
    name: str
    unit: str
    ours: Side
    floor: Side | None
    floor_name: str
    kind: Kind = Kind.RATIO
    bound: float | None = None
    aim: float | None = None
    note: str = ""

    @property
    def result(self) -> float:
        """What is held against ``bound`` and ``aim``."""
        if self.kind is Kind.LIMIT or self.floor is None:
            return self.ours.median
        if self.kind is Kind.DIFFERENCE:
            return self.ours.median - self.floor.median
        return self.ours.median / self.floor.median

    def reaches(self, goal: float | None) -> bool:
        """Whether the result is as good as ``goal``, which None always is."""
        if goal is None:
            return True
        return self.result >= goal if self.kind is Kind.RATIO else self.result <= goal


def constant(figure: float) -> Side:
    """A floor that others measured elsewhere."""
    return Side((figure,))


def interleaved(
    ours: Callable[[], Timed],
    floor: Callable[[], Timed],
    rounds: int,
    *,
    units: int = 0,
    meters: tuple[Meter | None, Meter | None] = (None, None),
    before_pair: Callable[[], None] = lambda: None,
) -> tuple[Side, Side]:
    """Measures both sides in turn: ours, floor, ours, floor, and so on.

    Args:
        ours: does one run of ours.
        floor: does one run of the floor.
        rounds: runs of each.
        units: units of work of one run, which CPU time is told by.
        meters: what reads the CPU time of our side and of the floor, if it is to be told.
        before_pair: makes what a run of both is about to do, unmeasured.
    """
    sides: tuple[list[Timed], list[Timed]] = ([], [])
    for _ in range(rounds):
        before_pair()
        for runs, meter, run in zip(sides, meters, (ours, floor), strict=True):
            runs.append(run() if meter is None else meter.around(run, units))
    ours_side, floor_side = (_side(runs, meter) for runs, meter in zip(sides, meters, strict=True))
    return ours_side, floor_side


def _side(runs: Sequence[Timed], meter: Meter | None) -> Side:
    shares = [run.generator for run in runs if run.generator is not None]
    return Side(
        tuple(run.figure for run in runs),
        None if meter is None else meter.told(),
        statistics.median(shares) if shares else None,
    )
