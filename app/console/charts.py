"""Charts as plain geometry for SVG: stacked columns over time. Pure; colours are the sheet's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

WIDTH: Final = 960.0
HEIGHT: Final = 240.0
LEFT: Final = 64.0
RIGHT: Final = 52.0
"""Room for the numbers beside the grid, and for half of the last time below, in the largest text."""

BOTTOM: Final = 30.0
TOP: Final = 10.0

_MOST_COLUMN: Final = 64.0
_GRID_LINES: Final = 4
_LABELS: Final = 7
_GAP: Final = 0.8
_DECIMAL: Final = (1, 2, 5)

UNITS: Final = ("hour", "day", "month")
_MONTHS: Final = 12


class Block(msgspec.Struct, frozen=True):
    """A part of a column: one series in one step."""

    x: float
    y: float
    width: float
    height: float
    series: int
    at: dt.datetime
    count: int


class Label(msgspec.Struct, frozen=True):
    """A text beside the axis, at ``x`` or ``y``."""

    place: float
    text: str


class Chart(msgspec.Struct, frozen=True):
    """Stacked columns, the lines of the grid with their numbers, and the times below."""

    blocks: list[Block]
    grid: list[Label]
    times: list[Label]


def stack(
    steps: Sequence[dt.datetime], counts: Mapping[tuple[dt.datetime, int], int], series: int, unit: str
) -> Chart:
    """Places the columns.

    Args:
        steps: all steps of time in order, empty ones too.
        counts: by step and series; missing ones are 0.
        series: how many there are.
        unit: what a step is, for its label.
    """
    totals = [sum(counts.get((at, one), 0) for one in range(series)) for at in steps]
    top = _round_up(max(totals, default=0))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(steps))
    width = min(_MOST_COLUMN, max(1.0, slot * _GAP))
    blocks: list[Block] = []
    for place, at in enumerate(steps):
        reached = 0
        x = LEFT + place * slot + (slot - width) / 2
        for one in range(series):
            count = counts.get((at, one), 0)
            if count:
                y, upto = _height(reached + count, top), _height(reached, top)
                reached += count
                blocks.append(
                    Block(round(x, 2), round(y, 2), round(width, 2), round(upto - y, 2), one, at, count)
                )
    return Chart(blocks, _grid(top), _times(steps, slot, unit))


def steps_between(since: dt.datetime, until: dt.datetime, unit: str) -> list[dt.datetime]:
    """The beginnings of all steps that meet the period, in order; times are UTC."""
    at = since.replace(minute=0, second=0, microsecond=0)
    if unit != "hour":
        at = at.replace(hour=0)
    if unit == "month":
        at = at.replace(day=1)
    steps = []
    while at < until:
        steps.append(at)
        at = _next(at, unit)
    return steps


def label_of(at: dt.datetime, unit: str) -> str:
    """A step's name: ``2026-11-30``, ``11-30 08:00`` or ``2026-11``."""
    if unit == "hour":
        return f"{at:%m-%d %H}:00"
    return f"{at:%Y-%m}" if unit == "month" else f"{at:%Y-%m-%d}"


def _next(at: dt.datetime, unit: str) -> dt.datetime:
    if unit == "month":
        year, month = divmod(at.year * _MONTHS + at.month, _MONTHS)
        return at.replace(year=year, month=month + 1)
    return at + (dt.timedelta(hours=1) if unit == "hour" else dt.timedelta(days=1))


def _round_up(most: int) -> int:
    """The number at the top: a round one, and a multiple of the grid's lines."""
    lines = min(_GRID_LINES, max(1, most))
    per_line = max(1, -(-most // lines))
    power = 1
    while True:
        for factor in _DECIMAL:
            if factor * power >= per_line:
                return factor * power * lines
        power *= 10


def _height(count: int, top: int) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / top)


def _grid(top: int) -> list[Label]:
    lines = min(_GRID_LINES, top)
    return [
        Label(round(_height(top * line // lines, top), 2), f"{top * line // lines:,}")
        for line in range(lines + 1)
    ]


def _times(steps: Sequence[dt.datetime], slot: float, unit: str) -> list[Label]:
    every = max(1, -(-len(steps) // _LABELS))
    return [
        Label(round(LEFT + (place + 0.5) * slot, 2), label_of(steps[place], unit))
        for place in range(0, len(steps), every)
    ]
